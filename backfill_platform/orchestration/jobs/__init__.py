"""Jobs beside the assets: undo, replay, drain.

Add here: use cases that are launched from the launchpad. Keep out: what they do (`repair`, `topics`).
"""
