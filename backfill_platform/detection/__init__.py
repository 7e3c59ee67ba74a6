"""Finding damage: surveying lake and warehouse, judging hours, what would repair them, and evaluating checks for CI.

Add here: evidence that an hour is not what it should be.
Keep out: repairing (`repair`), deciding what may be done without asking (`domain.gap_policy`), Dagster.
"""
