"""The page of a repair and the messages about it, with text that events and people chose to do harm."""

import html
import re

from apprise.conversion import convert_between

from backfill_platform.domain.gaps import Gap, GapKind, Place
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import AssetPath, make_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.examples import clickstream
from backfill_platform.notifications.messages import gaps_found, run_ended, run_started
from backfill_platform.repair.outcomes import CheckResult, HourOutcome
from backfill_platform.reports.render import last_lines, page
from backfill_platform.reports.repair_report import RepairReport, RunSubject
from backfill_platform_tests.reports.test_markdown import ATTACKS, AUTOLINKS, tokens

HOSTILE = " ".join(ATTACKS) + " \x1b[2J\u202e <!channel> <http://evil.example|click>"
FIRST = clickstream.HOURS.start
SESSIONS: AssetPath = ("warehouse", "sessions")


def hostile_report() -> RepairReport:
    hours = HourRange(FIRST, FIRST + HOUR)
    request = RepairRequest(reason=HOSTILE, requester=HOSTILE, tenants=(HOSTILE, "17505"))
    subject = RunSubject(clickstream.pipeline, hours, (SESSIONS,), repair_id="r7", request=request)
    plan = make_plan(clickstream.pipeline.name, clickstream.pipeline.nodes, hours, [SESSIONS])
    report = RepairReport(subject, plan=plan, error=HOSTILE)
    report.add(HourOutcome(SESSIONS, FIRST, HOSTILE, checks=(CheckResult(HOSTILE, False, True, HOSTILE),)))
    return report


def test_the_page_of_a_repair_has_no_markup_of_others() -> None:
    found = list(tokens(page(hostile_report(), ["- [this run](/runs/1)"])))
    assert [str(token.attrs["href"]) for token in found if token.type == "link_open"] == ["/runs/1"]
    assert not {token.type for token in found} & {"image", "html_inline", "html_block", "fence", "code_block", "hr", "em_open"}
    headings = [found[at + 1].content for at, token in enumerate(found) if token.type == "heading_open"]
    assert headings[1:] == ["Plan", "Hours", "Checks", "Hours that were not done", "Look again, or take it back"]
    text = "".join(token.content for token in found if token.type == "text")
    assert not AUTOLINKS.search(text)
    assert not {"\x1b", "\u202e"} & set(text)
    assert text.count("launchPartitionBackfill") == 5, "the reader still sees what the text is"


def test_messages_have_no_markup_of_others() -> None:
    report = hostile_report()
    gap = Gap("transformed/sessions", FIRST, Place.WAREHOUSE, GapKind.SHORT, HOSTILE, tenants=(HOSTILE,))
    said = [run_started(report), run_ended(report), gaps_found(clickstream.pipeline, [gap], {}, ())]
    for text in [last_lines(report), *(one.text for one in said), *(one.subject for one in said)]:
        assert not {"\x1b", "\u202e"} & set(text)
        assert not AUTOLINKS.search(text)
        assert not {"link_open", "image", "html_inline"} & {token.type for token in tokens(text)}
        assert "<!" not in text
        assert "<http" not in text
    assert all("launchPartitionBackfill" in one.text for one in said)


def test_messages_that_a_service_makes_html_of_have_no_tags_of_others() -> None:
    """As e-mail does; what the page of a mail reader shows is the text again."""
    for text in (run_ended(hostile_report()).text, run_started(hostile_report()).text):
        made = str(convert_between("text", "html", text))  # type: ignore[no-untyped-call]
        assert set(re.findall(r"<\s*/?\s*([a-zA-Z!]+)", made)) <= {"br"}
        assert not AUTOLINKS.search(html.unescape(made))
        assert "launchPartitionBackfill" in made
