"""What a repair did, as one report that is shown in several places: facts of hours, the report, and its templates.

Add here: what people are told, in words. Keep out: where it is shown (Dagster, terminal, messages), decisions about hours.
"""
