"""The protocol of a repair: lease, stage, compare, prepare, prove, publish, verify; and patches, by which it can be undone.

Read the docstrings of `staging`, `diff` and `publish` before changing any of them: a wrong order of two rows loses data
silently. Add here: steps of the protocol. Keep out: what a repair may change, which hours it takes.
"""
