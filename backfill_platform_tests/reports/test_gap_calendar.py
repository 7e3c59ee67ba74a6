"""The page of gaps: every hour by its kind, and nothing of the data becomes markup."""

import base64
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree

from backfill_platform.detection.survey import Survey
from backfill_platform.domain.gaps import Gap, GapKind, Place, RowCounts
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.reports.gap_calendar import COLOURS, calendar_picture, gap_calendar

T0 = datetime(2026, 3, 2, 22, tzinfo=UTC)
HOURS = HourRange(T0, T0 + 4 * HOUR)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>&lt;b&gt;{{ 7 * 7 }}\x1b[31m\u202e'
TABLE = "warehouse/sessions"
KINDS = (GapKind.MISSING, GapKind.DRIFTED)


def survey_with(evidence: str) -> Survey:
    gaps = tuple(Gap(TABLE, T0 + n * HOUR, Place.WAREHOUSE, kind, evidence) for n, kind in enumerate(KINDS, 1))
    rows = {(TABLE, at): RowCounts(1000 + n, 100 * n) for n, at in enumerate(HOURS)}
    return Survey("clickstream", HOURS, (), gaps, rows)


class Elements(HTMLParser):
    """The elements of a page, and the text of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.hours: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on") or name in ("src", "href")]
        if given.get("class") == "hour":
            self.hours.append((str(given["style"]).removeprefix("background: "), str(given["title"])))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_each_hour_has_the_colour_of_its_kind_and_its_rows() -> None:
    page = Elements(gap_calendar(survey_with("lost"), ["backfill run clickstream --from a --to b"]))
    inside = [(colour, title) for colour, title in page.hours if title]
    assert len(page.hours) == 2 * 24
    assert [colour for colour, _ in inside[1:3]] == [COLOURS[kind][0] for kind in KINDS]
    assert [title for _, title in inside] == [
        "22:00: 0 rows found, 1,000 expected",
        "23:00: 100 rows found, 1,001 expected; missing: lost",
        "00:00: 200 rows found, 1,002 expected; drifted: lost",
        "01:00: 300 rows found, 1,003 expected",
    ]
    for text in ("2 of 4 hours are damaged", "2,001", "backfill run clickstream --from a --to b", *map(str, GapKind)):
        assert text in page.text


def test_nothing_of_the_data_becomes_markup() -> None:
    html = gap_calendar(survey_with(HOSTILE), [HOSTILE])
    page = Elements(html)
    assert page.tags.isdisjoint({"script", "img", "b"})
    assert "<script>alert(1)</script>" in page.text, "people still see what it is"
    assert "49" not in page.text.replace("1,003", "")
    assert not {"\x1b", "\u202e"} & set(html)
    assert not re.search(r"https?://", html), "the page loads nothing"


def test_the_picture_for_dagster_shows_the_same_hours_and_no_text_of_the_data() -> None:
    text = calendar_picture(survey_with(HOSTILE), TABLE)
    found = re.fullmatch(r"!\[hours\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", text)
    assert found is not None
    svg = ElementTree.fromstring(base64.b64decode(found[1]))
    fills = [one.get("fill") for one in svg.iter("{http://www.w3.org/2000/svg}rect")]
    assert fills.count(COLOURS[GapKind.MISSING][0]) == 2, "an hour and the legend"
    assert fills.count(COLOURS[GapKind.SHORT][0]) == 1, "the legend alone"
    assert "script" not in base64.b64decode(found[1]).decode()
