"""The `backfill` command: arguments in, tables or JSON out.

Add here: a module per group of commands. Keep out: decisions, and imports that make `backfill --help` slow.
"""
