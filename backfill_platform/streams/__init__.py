"""Where events come from. Today: files; Kafka topics come beside them.

Add here: sources that turn an ingestion hour into raw lines, the same lines each time it is asked.
Keep out: parsing (the pipeline's), checks (`spark`), tables (`lake`).
"""
