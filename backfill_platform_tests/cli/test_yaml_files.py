import io

import pytest

from backfill_platform.cli.yaml_files import read_yaml
from backfill_platform.errors import UsageError


def read(text: str) -> object:
    file = io.StringIO(text)
    file.name = "limits.yaml"
    return read_yaml(file)


def test_hours_stay_texts() -> None:
    given = "hours: {from: 2026-01-01T03, to: 2026-01-02}\nmax_changed_share: 0.5\ncolumns: [bytes]\n"
    assert read(given) == {
        "hours": {"from": "2026-01-01T03", "to": "2026-01-02"},
        "max_changed_share": 0.5,
        "columns": ["bytes"],
    }
    assert read("") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("columns: [a]\ncolumns: [b]", "limits.yaml is no YAML that can be used: columns is given twice"),
        ("a: &x [lol, lol]\nb: [*x, *x]", "it refers to another place"),
        ("a: [", "limits.yaml is no YAML that can be used, line 1"),
        ("!!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("[" * 5_000, "limits.yaml is nested too deeply"),
        ("a" * 100_001, "more than 100,000 characters"),
    ],
)
def test_what_is_ambiguous_or_hostile_is_refused_with_one_short_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        read(text)
    assert says in str(error.value)
    assert len(str(error.value)) < 300
