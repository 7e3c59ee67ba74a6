"""One package per engine; they do not import each other. `connections` opens what the settings name.

Add here: a package for a new engine, or an implementation of a port. Keep out: decisions about hours, Dagster.
"""
