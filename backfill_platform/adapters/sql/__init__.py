"""Databases as sources: the rows that a query gives for an hour.

Add here: what talks to databases through SQLAlchemy. Keep out: the lake's catalog (`adapters.iceberg`), the warehouse.
"""
