"""Pure values and rules: hours, windows, tables, plans, impact, change limits, gaps, fingerprints.

Add here: rules that can be stated as functions of values.
Keep out: I/O, the clock, randomness (the caller passes them in), and every import of ours except `errors`.
"""
