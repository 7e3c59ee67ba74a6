"""Where events come from and go to: files, and topics of Kafka that are landed, replayed and drained.

Add here: sources that turn an ingestion hour into raw lines, the same lines each time they are asked; what talks to brokers.
Keep out: parsing (the pipeline's), checks (`spark`), tables (`lake`), what is selected and counted (`repair`).
"""
