"""Event files as a source: the same lines for an ingestion hour each time they are read.

Add here: other layouts of files. Keep out: parsing (the pipeline's), checks (`adapters.spark`), tables (`adapters.iceberg`).
"""
