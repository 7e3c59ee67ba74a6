"""Delivering messages: to a Slack-compatible webhook, by e-mail, or to a command.

Messages are sent in the background, tried again for a while, and never fail a repair.
Add here: other ways to reach somebody. Keep out: what a message says (`notifications`), who is told (settings), Dagster.
The addresses are secrets: no error, log or repr of this package shows one.
"""
