"""ClickHouse's own engine (chDB) behind ClickHouse's HTTP interface, in a process of its own.

Add here: what a real server answers and this one does not yet. Keep out: the platform's tables: a real server takes its place
by its URL alone.
"""
