"""What sources connect to is a secret setting, by the names that pipelines use."""

import json

import pytest

from backfill_platform.adapters.connections import Connections
from backfill_platform.errors import SettingsError
from backfill_platform.settings import load_settings

SHOP = {"url": "postgresql://me:hush@host/shop"}


def test_connections_are_read_and_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_CONNECTIONS", json.dumps({"shop": SHOP}))
    settings = load_settings()
    assert Connections(settings).named("shop") == SHOP
    assert "hush" not in repr(settings) + str(settings)
    with pytest.raises(SettingsError, match="no connection is named store: set BACKFILL_CONNECTIONS, such as"):
        Connections(settings).named("store")


@pytest.mark.parametrize("value", ["hush", '{"shop": "hush"}', '{"shop": {"url": ["hush"]}}'])
def test_what_is_no_object_of_texts_is_told_without_what_it_is(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BACKFILL_CONNECTIONS", value)
    with pytest.raises(SettingsError, match="BACKFILL_CONNECTIONS") as told:
        load_settings()
    assert "hush" not in str(told.value)
