"""Names and texts inside a statement."""

from collections.abc import Iterable


def identifier(name: str) -> str:
    """A quoted name."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def qualified(database: str, name: str) -> str:
    """A quoted database and table."""
    return f"{identifier(database)}.{identifier(name)}"


def literal(text: str) -> str:
    """A quoted string, for places of a statement that take no bound parameter."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def names(columns: Iterable[str]) -> str:
    """Quoted names with commas between them."""
    return ", ".join(identifier(name) for name in columns)
