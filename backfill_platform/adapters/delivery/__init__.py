"""Delivering messages by Apprise: to chats, e-mail, web hooks.

Messages are sent in the background, tried again for a while, and never fail a repair.
Add here: how deliveries are tried again. A new service is a plug-in of Apprise. Keep out: what a message says
(`notifications`), who is told (settings), Dagster. The addresses are secrets: no error, log or repr of this package shows one.
"""
