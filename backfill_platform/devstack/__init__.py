"""What a fresh machine runs instead of production's services: the embedded ClickHouse, and the processes of `backfill up`.

Add here: what `backfill up` starts. Keep out: anything that production uses.
"""
