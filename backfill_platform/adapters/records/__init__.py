"""Records with named columns, from whatever source: their values made to fit the types of a table, as rows of Spark.

Add here: what all such sources share. Keep out: how a source is read (`files`, `iceberg`, `sql`).
"""
