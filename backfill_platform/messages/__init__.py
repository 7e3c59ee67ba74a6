"""Telling people: one message to a Slack-compatible webhook, by e-mail, or to a command.

Holds what a channel is (`channel`), the three of them, and how a message gets out of the house (`outbox`): in the background,
tried again for a while, and never at the cost of the repair.
Add here: other ways to reach somebody. Keep out: what a message says (`repair/summary.py`), who is told (settings), Dagster.
The addresses are secrets: no error, log or repr of this package shows one.
"""
