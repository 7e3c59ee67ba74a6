"""What Dagster's pages get to see of an outcome."""

from dagster import MarkdownMetadataValue

from backfill_platform.orchestration.presentation.metadata import check_metadata
from backfill_platform.repair.outcomes import CheckResult, Rows


def test_a_check_shows_its_counts_and_the_rows_that_failed_it() -> None:
    rows = Rows("samples of what failed", ("check", "row"), (("status: missing", '{"a": "x|y"}\n<b>'),))
    shown = check_metadata(CheckResult("rows_valid", False, False, facts={"quarantined": 7}, tables=(rows,)))
    assert shown["quarantined"].value == 7
    text = shown["samples of what failed"]
    assert isinstance(text, MarkdownMetadataValue)
    assert str(text.value).splitlines()[2] == '| status: missing | {"a": "x&#124;y"} &lt;b&gt; |'
