"""What the platform keeps in ClickHouse beside the tables: the ledger of repairs, and receipts of drained messages.

Add here: append-only records. Keep out: the tables of pipelines.
"""
