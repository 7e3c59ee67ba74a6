"""What a repair would do, decided before it starts: the assets and hours it takes, their margins, and the impact of damage.

Add here: look-ups in the lake that a plan needs. The rules themselves are pure and live in `domain`.
Keep out: anything that writes, Spark, Dagster.
"""
