"""The verdicts of `backfill check` as JUnit XML, which CI servers show."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.visible_text import visible

if TYPE_CHECKING:
    from backfill_platform.detection.validation import Checked, Verdict


def write_junit(path: Path, pipeline: str, found: "Sequence[Checked]", bad: "Collection[Verdict]", seconds: float) -> None:
    """One suite for each asset and one case for each check and hour. Texts are made visible: XML has no control characters."""
    from backfill_platform.detection.validation import Verdict

    report = JUnitXml(f"backfill check {pipeline}")
    suites: dict[str, TestSuite] = {}
    for one in found:
        name = visible("/".join(one.asset))
        suite = suites.setdefault(name, TestSuite(name))
        for hour, (verdict, said) in one.hours.items():
            text = visible(said)
            case = TestCase(f"{visible(one.check)} {format_hour(hour)}", name)
            if verdict in bad:
                case.result = [Failure(text)]
            elif verdict is Verdict.SKIPPED:
                case.result = [Skipped(text)]
            elif verdict is Verdict.WARNED:
                case.system_out = f"warning: {text}"
            suite.add_testcase(case)
    for suite in suites.values():
        report.add_testsuite(suite)
    report.time = seconds
    report.write(str(path), pretty=True)
