"""Walking a plan: land, build, write, audit, promote, stage, compare, prove, publish, verify, undo; and the audit log of it.

Add here: the order of steps, and what a failure means for an hour.
Keep out: choosing hours (`planning`), SQL and catalog calls (`adapters`), Dagster, terminals, texts for messages.
"""
