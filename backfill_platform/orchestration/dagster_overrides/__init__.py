"""Everything that uses or replaces a private part of the pinned Dagster; docs/decisions/0013 says what each is for.

Add here: any import from a name with a leading underscore; import-linter refuses it elsewhere.
Keep out: anything that Dagster's public names can do.
"""
