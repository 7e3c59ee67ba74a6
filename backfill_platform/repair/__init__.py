"""The use cases: plan -> land -> read -> transform -> check -> stage -> diff -> prove -> publish -> verify, and finding gaps.

Each walks a plan or a range of hours over the adapters and yields what happened, hour by hour, as plain values.
Add here: the order of things and what a failure means for an hour. Keep out: Dagster, terminals, SQL, catalog calls.
"""
