"""The only Dagster code: partitions, assets, resources, running in this process; each a thin skin over the use cases.

Add here: what Dagster needs to know. Keep out: decisions about hours, SQL, Spark code, private parts of Dagster
(`dagster_overrides`).
"""
