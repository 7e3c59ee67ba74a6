"""Tables of Markdown; cells cannot break out of them."""

from backfill_platform.repair.outcomes import Fact, Rows


def markdown(table: Rows) -> str:
    """A Markdown table."""
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return "\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines)


def cell(value: Fact | None) -> str:
    """A value on one line, in which nothing ends the cell or begins a tag."""
    return str("" if value is None else value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
