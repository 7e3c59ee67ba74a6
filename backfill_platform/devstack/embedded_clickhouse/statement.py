"""One SQL statement, read just far enough to serve it: its kind, its FORMAT clause, and the rows that follow an INSERT.

Contains what finds these without parsing SQL, and the error that a statement may end with. Keep out: running statements.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_ERROR = re.compile(r"Code: (\d+)\..*", re.DOTALL)
_BEFORE_DATA = re.compile(rb"[ \t\f]*;?[ \t\f]*\r?\n?")
_TOKEN = re.compile(
    rb"(?P<skip>\s+|--[^\n]*|//[^\n]*|\#[ !][^\n]*|/\*.*?\*/)"
    rb"|(?P<quoted>'(?:[^'\\]++|\\.|'')*+'|\"(?:[^\"\\]++|\\.|\"\")*+\"|`(?:[^`\\]++|\\.|``)*+`"
    rb"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)"
    rb"|(?P<word>\w+)|(?P<sign>.)",
    re.DOTALL,
)


_READING = {(word,) for word in ("SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "(")}


class StatementError(Exception):
    """What ClickHouse answers instead of a result; `code` is ClickHouse's own number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def own(cls, code: int, name: str, text: str) -> "StatementError":
        """An error of this server, in the form of ClickHouse's own."""
        return cls(code, f"Code: {code}. DB::Exception: {text}. ({name})")

    @classmethod
    def from_engine(cls, error: Exception) -> "StatementError":
        """The error inside what chDB raised, which wraps some messages in its own words."""
        match = _ERROR.search(str(error))
        return cls(int(match[1]), match[0]) if match else cls.own(1001, "STD_EXCEPTION", str(error))


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement, read just far enough to serve it; the engine does the real parsing.

    `format` is the FORMAT clause of a statement that returns rows. `insert_format` is set, and `data` holds the rows, when
    the rows follow the statement: `INSERT INTO t SETTINGS a = 1 FORMAT X`; `sql` then ends before SETTINGS and FORMAT, and
    `insert_settings` is the clause between.
    """

    sql: bytes
    words: tuple[str, ...]
    format: str | None = None
    insert_format: str | None = None
    data: bytes = b""
    insert_settings: bytes = b""

    @classmethod
    def read(cls, query: bytes, body: bytes) -> "Statement":
        """Read a statement from the address (`query`), the body, or both.

        Raises:
            StatementError: there is more than one statement.
        """
        statement = cls._parse(query or body)
        if not (query and body):
            return statement
        if statement.insert_format is None:
            return cls._parse(query + b"\n" + body)
        return replace(statement, data=statement.data + body)

    @classmethod
    def _parse(cls, text: bytes) -> "Statement":
        scan, depth, ended = _Scan(), 0, False
        for token, value in _tokens(text):
            if ended:
                raise StatementError.own(62, "SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)")
            if depth == 0 and value == ";":
                ended = True
            elif value in (")", "]", "}"):
                depth -= 1
            else:
                if depth == 0:
                    names_format = scan.add(token, value)
                    if scan.may_carry_rows and value == "VALUES":
                        break
                    if scan.may_carry_rows and names_format:
                        return cls._with_data(text, scan, token.end())
                depth += value in ("(", "[", "{")
        return cls(text, tuple(scan.words[:5]), None if scan.words[:1] == ["INSERT"] else scan.format)

    @classmethod
    def _with_data(cls, text: bytes, scan: "_Scan", format_end: int) -> "Statement":
        """An INSERT whose rows follow its FORMAT clause, which ends at `format_end`."""
        start = _BEFORE_DATA.match(text, format_end)
        data = text[start.end() :] if start else b""
        end = scan.settings_at or scan.format_at
        return cls(text[:end], tuple(scan.words[:5]), None, scan.format, data, text[end : scan.format_at])

    @property
    def only_reads(self) -> bool:
        """Whether the statement asks for rows, and names no file: what `readonly` of the engine lets through."""
        if self.words[:1] not in _READING:
            return False
        before: tuple[str | None, str] = (None, "")
        for token, value in _tokens(self.sql):
            # Quoted names may be spelled in many ways, and no function needs them.
            if value == "OUTFILE" or (value == "(" and (before[0] == "quoted" or before[1] == "FILE")):
                return False
            before = (token.lastgroup, value)
        return True

    @property
    def sets_session(self) -> bool:
        """Whether the statement only changes settings or the database of its session."""
        return self.words[:1] in (("SET",), ("USE",))

    @property
    def changes_session(self) -> bool:
        """Whether the statement leaves something behind in its session."""
        creates = self.words[:2] == ("CREATE", "TEMPORARY") or self.words[:4] == ("CREATE", "OR", "REPLACE", "TEMPORARY")
        return creates or self.sets_session


@dataclass(slots=True)
class _Scan:
    """The words of a statement outside brackets and quotes, as far as it was read; and its FORMAT and SETTINGS clauses."""

    words: list[str] = field(default_factory=list)
    format: str | None = None  # the name after the last FORMAT, if no other clause but SETTINGS follows it
    format_at: int = 0
    settings_at: int = 0
    in_settings: bool = False

    def add(self, token: re.Match[bytes], value: str) -> bool:
        """Read a token outside brackets. Returns whether it is the name of a format."""
        names_format = self.words[-1:] == ["FORMAT"] and (token.lastgroup == "word" or value in ("`", '"'))
        self.words.append(value)
        if names_format:
            self.format, self.in_settings = token.group().decode().strip('`"'), False
        elif self.format is not None:
            self.in_settings = self.in_settings or value == "SETTINGS"
            self.format = self.format if self.in_settings else None
        if value == "FORMAT":
            self.format_at = token.start()
        elif value == "SETTINGS":
            self.settings_at = token.start()
        return names_format

    @property
    def may_carry_rows(self) -> bool:
        """Whether the statement is an INSERT that may be followed by its rows."""
        return self.words[:1] == ["INSERT"] and "SELECT" not in self.words and len(self.words) > 3


def _tokens(text: bytes) -> Iterator[tuple[re.Match[bytes], str]]:
    """The tokens of a statement; each with its word in upper case, or with its first character if it is not a word."""
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "word":
            yield token, token.group().decode().upper()
        elif token.lastgroup != "skip":
            yield token, token.group()[:1].decode("latin-1")
