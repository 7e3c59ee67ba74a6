"""The version of the code that computes a table, so that hours built by other code can be found as stale.

A digest of the function and of what it uses from its own package: functions, classes and plain values. Comments, docstrings and
formatting do not count. What it cannot see, such as another library's behaviour, is declared by `version` of the table.
"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import CodeType, FunctionType
from typing import Any

_PLAIN = (str, bytes, int, float, bool, tuple, frozenset, timedelta, type(None))
_LETTERS = 12


def code_digest(*parts: Callable[..., Any] | object) -> str:
    """A short digest of functions and of values that have a meaningful `repr`, with all that the functions use."""
    seen: dict[str, str] = {}
    for number, part in enumerate(parts):
        if isinstance(part, FunctionType):
            _follow(part, part.__module__.partition(".")[0], seen)
        else:
            seen[f"part {number}"] = repr(part)
    text = "\n".join(f"{name}: {seen[name]}" for name in sorted(seen))
    return hashlib.sha256(text.encode()).hexdigest()[:_LETTERS]


def _follow(function: FunctionType, package: str, seen: dict[str, str]) -> None:
    name = f"{function.__module__}.{function.__qualname__}"
    if name in seen:
        return
    seen[name] = _source(function)
    for used in _names(function.__code__):
        value = function.__globals__.get(used)
        if isinstance(value, FunctionType) and value.__module__.partition(".")[0] == package:
            _follow(value, package, seen)
        elif isinstance(value, _PLAIN) and used in function.__globals__:
            seen[f"{name}: {used}"] = repr(value)


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a function and the functions within it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(function: FunctionType) -> str:
    """The function as its syntax tree has it, without docstrings; its bytecode where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # made by `exec`, or a lambda in the middle of an expression
        plain = [constant for constant in function.__code__.co_consts if not isinstance(constant, CodeType)]
        return f"{function.__code__.co_code.hex()} {function.__code__.co_names} {plain}"
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:]  # type: ignore[attr-defined]
    return ast.dump(tree)
