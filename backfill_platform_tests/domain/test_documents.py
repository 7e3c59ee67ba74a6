import time

import pytest

from backfill_platform.domain.documents import read_json
from backfill_platform.errors import UsageError


def test_an_ordinary_document_is_read_as_json_reads_it() -> None:
    assert read_json('{"a": [1, {"b": null}], "c": 0.5}', "it") == {"a": [1, {"b": None}], "c": 0.5}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it is no JSON"),
        ('{"a": 1, "a": 2}', "it is no JSON: a is given twice"),
        ('[{"x": {"b": 1, "c": 2, "b": 3}}]', "b is given twice"),
        ('{"a": NaN}', "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[" * 50 + "]" * 50, "it is nested too deeply"),
        ("[" * 90_000, "it is nested too deeply"),
        ("[" * 200_000, "it has 200,000 characters"),
    ],
)
def test_what_is_ambiguous_or_hostile_is_refused_with_one_short_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"^{says}|{says}$") as error:
        read_json(text, "it")
    assert len(str(error.value)) < 200


def test_thousands_of_names_that_are_there_twice_are_one_short_sentence_at_once() -> None:
    text = "{" + ",".join(f'"{number % 6_000:x}{"k" * 70 * (number % 6_000 < 5)}":1' for number in range(12_000)) + "}"
    began = time.monotonic()
    with pytest.raises(UsageError, match="is given twice") as error:
        read_json(text, "it")
    assert len(str(error.value)) < 300
    assert time.monotonic() - began < 1
