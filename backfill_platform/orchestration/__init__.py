"""The only Dagster code: partitions, assets, checks, jobs and resources, each a thin skin over `repair`.

Add here: how an outcome is shown in Dagster. Keep out: decisions about hours, SQL, Spark code.
"""
