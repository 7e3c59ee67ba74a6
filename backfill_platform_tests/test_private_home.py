"""The folder of all embedded state is its owner's alone, and no setting holds a token that a page shows."""

import os
import stat
from pathlib import Path

import pytest

from backfill_platform.errors import SettingsError
from backfill_platform.orchestration.in_process import prepare_instance
from backfill_platform.settings import load_settings


def test_a_home_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "home"
    prepare_instance(load_settings(home=home))
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    home.chmod(0o755)  # as earlier versions made it
    load_settings(home=home).make_home()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_home_of_somebody_else_that_is_open_to_everybody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(SettingsError, match="open to everybody"):
        load_settings(home=tmp_path).make_home()
    tmp_path.chmod(0o770)  # of a group, as volumes of containers are
    load_settings(home=tmp_path).make_home()


def test_a_home_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"BACKFILL_HOME: .* cannot be used"):
        load_settings(home=tmp_path / "file" / "home").make_home()


@pytest.mark.parametrize("remote", ["sc://host:15002/;token=hunter2", "sc://host/;use_ssl=true;TOKEN=hunter2"])
def test_a_token_of_spark_is_not_part_of_an_address(remote: str) -> None:
    with pytest.raises(
        SettingsError, match="BACKFILL_SPARK_REMOTE: its token is set as SPARK_CONNECT_AUTHENTICATE_TOKEN"
    ) as refused:
        load_settings(spark_remote=remote)
    assert "hunter2" not in str(refused.value)
