"""ClickHouse's own engine (chDB) behind ClickHouse's HTTP interface, in a process of its own.

Add here: answers of a real server that this one lacks. Keep out: the platform's tables: a real server replaces this one by its
URL alone.
"""
