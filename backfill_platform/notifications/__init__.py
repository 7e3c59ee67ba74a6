"""Telling people what a repair did: the text of a message and who receives it.

Add here: what a message says. Keep out: how it is delivered (`adapters.delivery`), Dagster.
"""
