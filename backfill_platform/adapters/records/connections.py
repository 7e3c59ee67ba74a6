"""How a source gets what it needs to connect: by the name of a connection in the settings, which may hold secrets."""

from collections.abc import Callable, Mapping

from backfill_platform.errors import SettingsError

Connect = Callable[[str], Mapping[str, str]]  # the properties of a named connection


def no_connections(name: str) -> Mapping[str, str]:
    """Stands for the connections of a deployment without any. Raises SettingsError."""
    raise SettingsError(f'no connection is named {name}: set BACKFILL_CONNECTIONS, such as \'{{"{name}": {{"url": "..."}}}}\'')
