"""Pure decisions: hours, windows, sessions, tables, plans, fingerprints, gaps.

Add here: rules that can be stated as functions of values. Standard library only.
Keep out: I/O, the clock, randomness (passed in by the caller), and every import of ours except `errors`.
"""
