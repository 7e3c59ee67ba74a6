"""How recipients are reached is a secret setting: what is wrong with it is said without saying what it is."""

import json
import traceback
from pathlib import Path

import pytest

from backfill_platform.domain.notification import NotificationKind
from backfill_platform.errors import SettingsError
from backfill_platform.settings import Settings, load_settings

HOOK = "https://hooks.slack.com/services/T0/B0/verysecret"
MAIL = "mailtos://me:verysecret@mail.example.org?to=a@example.org"


def load(monkeypatch: pytest.MonkeyPatch, value: object) -> Settings:
    monkeypatch.setenv("BACKFILL_RECIPIENTS", value if isinstance(value, str) else json.dumps(value))
    return load_settings()


def test_recipients_are_read_and_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, {"web-team": {"urls": [HOOK, MAIL], "events": ["started"]}, "pager": {"urls": [MAIL]}})
    web, pager = settings.recipients["web-team"], settings.recipients["pager"]
    assert [url.get_secret_value() for url in web.urls] == [HOOK, MAIL]
    assert web.events == (NotificationKind.STARTED,)
    assert set(pager.events) == {NotificationKind.WAITING, NotificationKind.FAILED, NotificationKind.FINISHED}
    assert "verysecret" not in repr(settings) + str(settings)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"web-team": {"urls": [HOOK], "events": ["verysecret"]}}, "BACKFILL_RECIPIENTS web-team.events.0: .*'started'"),
        ({"web-team": {"urls": [HOOK], "events": []}}, "BACKFILL_RECIPIENTS web-team.events: "),
        ({"web-team": {"events": ["failed"]}}, "BACKFILL_RECIPIENTS web-team.urls: Field required"),
        ({"web-team": {"urls": []}}, "web-team.urls: "),
        ({"web-team": {"urls": ["verysecret"]}}, "web-team.urls: an address has a scheme, such as https"),
        ({"web-team": HOOK}, "BACKFILL_RECIPIENTS web-team: "),
        ({"web-team": {"urls": [HOOK], "even": ["failed"]}}, "web-team.even: Extra inputs are not permitted"),
        ('{"web-team": {"urls": ["verysecret"', "BACKFILL_RECIPIENTS is a JSON object, such as"),
    ],
)
def test_what_is_wrong_names_the_variable_and_keeps_the_secret(
    monkeypatch: pytest.MonkeyPatch, value: object, said: str
) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        load(monkeypatch, value)
    assert "verysecret" not in "".join(traceback.format_exception(caught.value))


def test_the_example_of_the_documentation_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "notifications.md").read_text()
    example = page.partition("BACKFILL_RECIPIENTS='")[2].partition("'\n")[0]
    recipients = load(monkeypatch, example).recipients
    assert list(recipients) == ["web-team", "on-call"]
    assert len(recipients["on-call"].urls) == 2


def test_other_settings_that_are_no_json_are_still_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_PIPELINES", "clickstream")
    with pytest.raises(SettingsError, match="BACKFILL_PIPELINES is a JSON list"):
        load_settings()
