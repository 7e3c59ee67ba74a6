"""Three complete pipelines with real events as package data, to run, to copy from and to test with.

Add here: pipelines that show something the others do not, with their data below `data/`.
Keep out: anything the platform needs to work. `clickstream_reference` recomputes one of them without Spark, for the demo's
proof.
"""
