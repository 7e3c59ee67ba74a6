"""What pydantic found wrong, as one sentence for people."""

from pydantic import ValidationError


def sentence(error: ValidationError) -> str:
    """Each problem with its place; what was given is not repeated, because it may be long, or a secret."""
    return "; ".join(f"{_place(problem['loc'])}: {_words(problem['msg'])}" for problem in error.errors(include_url=False))


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "the whole"


def _words(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
