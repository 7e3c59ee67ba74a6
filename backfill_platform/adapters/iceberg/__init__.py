"""Iceberg tables of zstd Parquet through pyiceberg: which files hold what, and atomic replacement of hours.

Add here: catalog work: tables, snapshots, branches, file planning. Keep out: reading or computing rows (Spark does), the
warehouse, pipelines.
"""
