"""Sensors: finding gaps and asking for their repair; the hours that are in work.

Add here: what Dagster's daemon evaluates. Keep out: what may be done (`domain.gap_policy`).
"""
