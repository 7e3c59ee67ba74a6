"""Spark: sessions, range reading until sessions are closed, checks in one pass, Parquet by hour.

Everything runs unchanged on a classic session and on Spark Connect: no `sparkContext`, no `_jvm`, no RDD.
Add here: steps that every pipeline shares. Keep out: the lake's catalog, the warehouse, Dagster, pipelines.
"""
