"""How outcomes look in Dagster: metadata, events by hour, the summary of a run.

Add here: wording and layout for Dagster's pages. Keep out: decisions, other places where text is shown.
"""
