"""What a run is asked to do besides its assets and hours: run tags and configuration, read and written here alone.

The same tags come from a backfill launched in the web page, from the command line and from the GraphQL API; the launchpad's
configuration is turned into the same tags, so that there is one parser. A run that was planned before it was launched (by the
command line or a sensor) has its plan in the configuration.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field

from backfill_platform.domain.change_limits import NO_LIMITS, ChangeLimits
from backfill_platform.domain.documents import read_json
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import DRY_RUN, AssetPath, Landing, Plan, plan_from_document
from backfill_platform.domain.request import PLAIN_REQUEST, RepairRequest
from backfill_platform.domain.tables import Layer
from backfill_platform.errors import UsageError
from backfill_platform.orchestration.dagster_overrides.damaged_hours import DAMAGE_TAG
from backfill_platform.orchestration.dagster_overrides.run_queue import (
    AT_ONCE_TAG,
    PIPELINE_TAG,
    PRIORITY_TAG,
    UNDECLARED,
    limit_tag,
)
from backfill_platform.orchestration.process_identity import HOME_TAG, PROCESS_TAG
from backfill_platform.pipelines.spec import RUNS_AT_ONCE, Pipeline

REASON_TAG = "backfill/reason"
REQUESTER_TAG = "backfill/requester"
CHANGE_LIMITS_TAG = "backfill/change_limits"
LANDING_TAG = "backfill/landing"
REWRITE_INCONSISTENT_TAG = "backfill/rewrite_inconsistent"
ALLOW_OPEN_HOURS_TAG = "backfill/allow_open_hours"
TENANTS_TAG = "backfill/tenants"
MODE_TAG = "backfill/mode"
MARGINS_TAG = "backfill/margins"
ROUTINE_TAG = "backfill/routine"
# Written by the platform, never by people: the name of the repair that a run is at work on, and that its end was told.
REPAIR_TAG = "backfill/repair"
NOTIFIED_TAG = "backfill/notified"
TAGS = (
    MODE_TAG,
    REASON_TAG,
    REQUESTER_TAG,
    CHANGE_LIMITS_TAG,
    TENANTS_TAG,
    MARGINS_TAG,
    LANDING_TAG,
    REWRITE_INCONSISTENT_TAG,
    ALLOW_OPEN_HOURS_TAG,
    ROUTINE_TAG,
)
_OWN_TAGS = (
    *(PROCESS_TAG, HOME_TAG, REPAIR_TAG, NOTIFIED_TAG, DAMAGE_TAG),
    *(PIPELINE_TAG, PRIORITY_TAG, AT_ONCE_TAG, *(limit_tag(str(limit)) for limit in (UNDECLARED, *RUNS_AT_ONCE))),
)
_SENSOR = "dagster/sensor_name"
_BACKFILL = "dagster/backfill"

Choice = TypeVar("Choice", bound=StrEnum)


class Mode(StrEnum):
    """What a run does with the assets it was launched for."""

    PUBLISH = "publish"  # materializes them
    DRY_RUN = "dry-run"  # materializes the dry runs of their tables instead


class Margins(StrEnum):
    """What is done about raw hours around the range that its windows need and that have not landed."""

    LAND = "land"
    NONE = "none"  # nothing: hours that need them are named and left as they are


@dataclass(frozen=True)
class RunRequest:
    """The frozen request of a repair, and what a run that brings no plan needs to make one."""

    repair: RepairRequest = PLAIN_REQUEST
    mode: Mode = Mode.PUBLISH
    margins: Margins = Margins.LAND
    landing: Landing = Landing.SAFE

    @classmethod
    def from_tags(cls, tags: Mapping[str, str]) -> "RunRequest":
        """Read the tags of a run. Raises UsageError naming the tag and what it can be; also for a tag that nobody knows."""
        unknown = sorted(name for name in tags if name.startswith("backfill/") and name not in (*TAGS, *_OWN_TAGS))
        if unknown:
            raise UsageError(f"there is no tag {', '.join(unknown)}; there are {', '.join(TAGS)}")
        repair = RepairRequest(
            reason=tags.get(REASON_TAG, ""),
            requester=tags.get(REQUESTER_TAG, tags.get(_SENSOR, "dagster")),
            change_limits=_change_limits(tags),
            rewrite_inconsistent=_flag(tags, REWRITE_INCONSISTENT_TAG),
            allow_open_hours=_flag(tags, ALLOW_OPEN_HOURS_TAG),
            tenants=_tenants(tags),
            routine=_flag(tags, ROUTINE_TAG),
        )
        return cls(
            repair,
            _choice(tags, MODE_TAG, Mode.PUBLISH),
            _choice(tags, MARGINS_TAG, Margins.LAND),
            _choice(tags, LANDING_TAG, Landing.SAFE),
        )

    def to_tags(self) -> dict[str, str]:
        """The tags that `from_tags` reads back."""
        repair = self.repair
        said = {REASON_TAG: repair.reason, REQUESTER_TAG: repair.requester}
        texts = {
            CHANGE_LIMITS_TAG: json.dumps(limits) if (limits := repair.change_limits.to_document()) else "",
            TENANTS_TAG: json.dumps(list(repair.tenants)) if repair.tenants else "",
            MODE_TAG: "" if self.mode is Mode.PUBLISH else str(self.mode),
            MARGINS_TAG: "" if self.margins is Margins.LAND else str(self.margins),
            LANDING_TAG: "" if self.landing is Landing.SAFE else str(self.landing),
        }
        flags = {
            REWRITE_INCONSISTENT_TAG: repair.rewrite_inconsistent,
            ALLOW_OPEN_HOURS_TAG: repair.allow_open_hours,
            ROUTINE_TAG: repair.routine,
        }
        said |= {name: text for name, text in texts.items() if text}
        return said | {name: "true" for name, is_set in flags.items() if is_set}

    def assets(self, chosen: Collection[AssetPath], tags: Mapping[str, str] | None = None) -> tuple[AssetPath, ...]:
        """The assets to materialize: those that were chosen, or the dry runs of their tables.

        Raises UsageError where a dry run has nothing to show, and where a backfill of other assets carries the tag: Dagster
        calls a backfill failed when its assets are not materialized.
        """
        if self.mode is Mode.PUBLISH:
            return tuple(chosen)
        others = sorted("/".join(asset) for asset in chosen if asset[0] != DRY_RUN)
        if others and _BACKFILL in (tags or {}):
            raise UsageError(
                f"this backfill was launched for {', '.join(others)} with the tag {MODE_TAG}={self.mode}, which would leave "
                f"them as they are: launch the backfill for the assets {DRY_RUN}/* instead, or without the tag"
            )
        dry_runs = tuple(dict.fromkeys((DRY_RUN, name) for prefix, name in chosen if prefix != Layer.RAW))
        if not dry_runs:
            raise UsageError(
                "a dry run shows what would change in the warehouse; choose a table that is published, not a raw one"
            )
        return dry_runs


def _offered(choices: type[StrEnum]) -> Any:
    """The choices as the launchpad offers and checks them: it goes by the names of members, so these are the values."""
    return Enum(choices.__name__, {choice.value: choice.value for choice in choices}, type=str)


_Mode, _Margins, _Landing = _offered(Mode), _offered(Margins), _offered(Landing)


class RepairConfig(dg.Config):
    """What can be said in the launchpad; each field but the plan is the run tag of the same name, and may be left out."""

    plan: dict[str, Any] | None = Field(
        None, description="the plan to walk, as the command line and sensors hand it over; without, it is made for the range"
    )
    mode: _Mode | None = Field(  # type: ignore[valid-type]
        None, description="publish (default), or dry-run: show what it would change, publish nothing"
    )
    reason: str | None = Field(None, description="why; kept in the ledger and sent to the recipients")
    change_limits: dict[str, Any] | None = Field(
        None, description="what may change: hours, tables, columns, tenants, max_changed_share, max_metric_change"
    )
    tenants: list[str] | None = Field(None, description="repair only rows of these tenants")
    margins: _Margins | None = Field(  # type: ignore[valid-type]
        None, description="land (default): also land the raw hours around the range that it needs and lacks; none: do not"
    )
    landing: _Landing | None = Field(  # type: ignore[valid-type]
        None, description="raw hours that have landed: safe (default), missing or replace"
    )
    rewrite_inconsistent: bool | None = Field(None, description="also repair hours whose states and cancels do not match")
    allow_open_hours: bool | None = Field(None, description="also publish to hours that live writers may still write")

    def with_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """The tags of the run and those that the configuration stands for.

        Raises UsageError where both say something else about the same.
        """
        merged = dict(tags)
        for name, value in self.model_dump(mode="json", exclude_none=True, exclude={"plan"}).items():
            tag = f"backfill/{name}"
            text = value if isinstance(value, str) else json.dumps(value)
            if tag in tags and tags[tag] != text:
                raise UsageError(f"{name} is '{text}' in the configuration of the run and '{tags[tag]}' in its tag {tag}")
            merged[tag] = text
        return merged

    def given_plan(
        self, pipeline: Pipeline, request: RunRequest, hours: HourRange | None, selected: Collection[AssetPath]
    ) -> Plan | None:
        """The plan that the run was launched with, limited to the selected assets; None where the run has to make one.

        Raises UsageError for a plan of another pipeline, of other hours or assets, and for what only a new plan can regard.
        """
        if self.plan is None:
            return None
        plan = plan_from_document(self.plan, pipeline.name, pipeline.nodes)
        anew = "or leave `plan` out of the configuration, so that the run makes one"
        if request.landing is not Landing.SAFE or request.margins is not Margins.LAND:
            raise UsageError(f"the plan in the configuration says what is landed: ask for no other landing or margins, {anew}")
        if plan.hours != hours:
            raise UsageError(
                f"the plan in the configuration is of {plan.hours}, and the run of {hours}: choose its hours, {anew}"
            )
        if not set(selected) <= set(plan.assets):
            assets = ", ".join("/".join(asset) for asset in plan.assets)
            raise UsageError(f"the plan in the configuration materializes {assets}: select no other assets, {anew}")
        # Fewer are selected where somebody launches the failed assets of a run again.
        return plan.without(set(plan.assets) - set(selected))


def readable_request(tags: Mapping[str, str]) -> RepairRequest:
    """Who asks and why, however wrong the other tags are: for telling people of a run that cannot begin."""
    routine = tags.get(ROUTINE_TAG, "").lower() == "true"
    return RepairRequest(reason=tags.get(REASON_TAG, ""), requester=tags.get(REQUESTER_TAG, ""), routine=routine)


def plan_config(pipeline: Pipeline, plan: Plan) -> dict[str, Any]:
    """The run configuration that hands a plan to the op of the pipeline."""
    return {"ops": {pipeline.name: {"config": {"plan": plan.to_document()}}}}


def _change_limits(tags: Mapping[str, str]) -> ChangeLimits:
    if CHANGE_LIMITS_TAG not in tags:
        return NO_LIMITS
    return ChangeLimits.parse(read_json(tags[CHANGE_LIMITS_TAG], f"the tag {CHANGE_LIMITS_TAG}"))


def _choice(tags: Mapping[str, str], name: str, default: Choice) -> Choice:
    try:
        return type(default)(tags.get(name, default))
    except ValueError:
        raise UsageError(f"the tag {name} is one of {', '.join(type(default))}, not '{tags[name]}'") from None


def _tenants(tags: Mapping[str, str]) -> tuple[str, ...]:
    text = tags.get(TENANTS_TAG)
    if text is None:
        return ()
    tenants = read_json(text, f"the tag {TENANTS_TAG}")
    if not isinstance(tenants, list) or not tenants or not all(isinstance(tenant, str) and tenant for tenant in tenants):
        raise UsageError(f'the tag {TENANTS_TAG} is a list of texts in JSON, such as ["17505"], not {text[:200]}')
    return tuple(tenants)


def _flag(tags: Mapping[str, str], name: str) -> bool:
    text = tags.get(name, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"the tag {name} is true or false, not '{tags[name]}'")
    return text == "true"
