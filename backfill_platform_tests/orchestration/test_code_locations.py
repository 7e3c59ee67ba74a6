"""Teams with folders and code locations of their own, in one Dagster."""

from collections import Counter
from pathlib import Path

import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget

from backfill_platform.examples import clickstream, payments
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT

WORKSPACE = """
load_from:
  - python_module: {module_name: backfill_platform.instance_definitions, location_name: instance}
  - python_module: {module_name: web_team.location, location_name: web_team}
  - python_module: {module_name: shop_team.location, location_name: shop_team}
"""

LOCATION = """
import dagster as dg

from backfill_platform.definitions import team_definitions


@dg.definitions
def defs():
    return team_definitions("%s")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a workspace of its own and the folders of two teams."""
    (tmp_path / "workspace.yaml").write_text(WORKSPACE)
    for team, module in (("web_team", clickstream.__name__), ("shop_team", payments.__name__)):
        (tmp_path / team).mkdir()
        (tmp_path / team / "__init__.py").touch()
        (tmp_path / team / "location.py").write_text(LOCATION % module)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    return tmp_path


@pytest.mark.whole
def test_each_location_has_its_own_pipelines_and_nothing_is_there_twice(project: Path) -> None:
    settings = Settings(home=project / "state", project=project)
    with dagster_instance(settings) as instance:
        target = WorkspaceFileTarget([str(settings.project_file("workspace.yaml"))])
        with WorkspaceProcessContext(instance, target) as process:
            workspace = process.create_request_context()
            found = {location: _names(workspace.get_code_location(location)) for location in workspace.code_location_names}
            groups = {node.key.to_user_string() for node in workspace.asset_graph.asset_nodes}
    assert {"raw/clickstream", "warehouse/sessions", "raw/payments", "warehouse/velocity"} <= groups
    twice = [name for name, times in Counter(name for names in found.values() for name in names).items() if times > 1]
    assert not twice
    assert found["instance"] == {"job history_pruning", "schedule history_pruning"}
    assert {"job clickstream_repair", "job clickstream_undo", "sensor clickstream_gaps"} <= found["web_team"]
    assert not any("payments" in name for name in found["web_team"])
    assert {"job payments_repair", "schedule payments_maintenance"} <= found["shop_team"]


def _names(location: object) -> set[str]:
    """What Dagster knows by name in a code location, but for the job of its own that materializes assets."""
    (repository,) = location.get_repositories().values()  # type: ignore[attr-defined]
    jobs = {f"job {job.name}" for job in repository.get_all_jobs() if not job.name.startswith("__")}
    sensors = {f"sensor {sensor.name}" for sensor in repository.get_sensors()}
    return jobs | sensors | {f"schedule {schedule.name}" for schedule in repository.get_schedules()}
