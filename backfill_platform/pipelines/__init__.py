"""What a user writes: one file per pipeline, and the declarations it is written with (`spec`).

Add here: pipelines that ship with the platform, each with a plain-Python reference that the tests and the demo compare with.
Keep out: Dagster, the lake, the warehouse: everything about running a pipeline follows from its declaration.
"""
