"""Asset checks: gaps, pending approvals, delivery counts.

Add here: a check that Dagster shows by hour. Keep out: how the verdict is found (`detection`, `topics`).
"""
