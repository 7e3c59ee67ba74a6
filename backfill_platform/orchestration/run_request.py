"""What a person or a sensor asks of a repair besides hours and assets: one set of run tags, read and written here alone.

The same tags come from a backfill launched in the web page, from the command line and from the GraphQL API. The launchpad's
configuration is turned into the same tags, so that there is one parser.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field

from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.plan import DRY_RUN, AssetPath
from backfill_platform.domain.tables import Layer
from backfill_platform.errors import UsageError
from backfill_platform.orchestration.process_identity import PROCESS_TAG
from backfill_platform.repair.runner import Landing

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
REPAIR_TAG = "backfill/repair"  # written by us: the name of the repair that a run is at work on
_TAGS = (
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
_OURS = (PROCESS_TAG, REPAIR_TAG)
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
class Request:
    """Why and for whom, what may change (as `ChangeLimits.parse` takes it), what is allowed by name, whose rows are repaired.

    A `routine` run is told to recipients only when it fails or waits for a person.
    """

    reason: str = ""
    requester: str = "dagster"
    change_limits: Any = None
    landing: Landing = Landing.SAFE
    rewrite_inconsistent: bool = False
    allow_open_hours: bool = False
    tenants: tuple[str, ...] = ()
    mode: Mode = Mode.PUBLISH
    margins: Margins = Margins.LAND
    routine: bool = False

    @classmethod
    def from_tags(cls, tags: Mapping[str, str]) -> "Request":
        """Read the tags of a run. Raises UsageError naming the tag and what it can be; also for a tag that nobody knows."""
        unknown = sorted(
            name for name in tags if name.startswith("backfill/") and name not in (*_TAGS, PROCESS_TAG, REPAIR_TAG)
        )
        if unknown:
            raise UsageError(f"there is no tag {', '.join(unknown)}; there are {', '.join(_TAGS)}")
        try:
            change_limits = json.loads(tags[CHANGE_LIMITS_TAG]) if CHANGE_LIMITS_TAG in tags else None
        except ValueError as error:
            raise UsageError(f"the tag {CHANGE_LIMITS_TAG} is no JSON: {error}") from error
        request = cls(
            tags.get(REASON_TAG, ""),
            tags.get(REQUESTER_TAG, tags.get(_SENSOR, "dagster")),
            change_limits,
            _choice(tags, LANDING_TAG, Landing.SAFE),
            _flag(tags, REWRITE_INCONSISTENT_TAG),
            _flag(tags, ALLOW_OPEN_HOURS_TAG),
            _tenants(tags),
            _choice(tags, MODE_TAG, Mode.PUBLISH),
            _choice(tags, MARGINS_TAG, Margins.LAND),
            _flag(tags, ROUTINE_TAG),
        )
        request.limits()
        return request

    def to_tags(self) -> dict[str, str]:
        """The tags that `from_tags` reads as this request."""
        tags = {REASON_TAG: self.reason, REQUESTER_TAG: self.requester, LANDING_TAG: str(self.landing)}
        tags |= {MODE_TAG: str(self.mode), MARGINS_TAG: str(self.margins)}
        if self.change_limits is not None:
            tags[CHANGE_LIMITS_TAG] = json.dumps(self.change_limits)
        if self.tenants:
            tags[TENANTS_TAG] = json.dumps(self.tenants)
        flags = {
            REWRITE_INCONSISTENT_TAG: self.rewrite_inconsistent,
            ALLOW_OPEN_HOURS_TAG: self.allow_open_hours,
            ROUTINE_TAG: self.routine,
        }
        return tags | {name: "true" for name, asked in flags.items() if asked}

    def assets(self, chosen: Collection[AssetPath], tags: Mapping[str, str]) -> tuple[AssetPath, ...]:
        """What is materialized for the assets that a run with these tags was launched for: in a dry run, the dry runs of them.

        Raises UsageError when none of them is shown by a dry run, as raw tables are not; and in a backfill of others than dry
        runs: it counts as failed, whatever became of it, when the assets that it was launched for are not materialized.
        """
        if self.mode is Mode.PUBLISH:
            return tuple(chosen)
        if _BACKFILL in tags and (others := [f"{prefix}/{name}" for prefix, name in chosen if prefix != DRY_RUN]):
            raise UsageError(
                f"this backfill was launched for {', '.join(others)} with the tag {MODE_TAG}={self.mode}, which would leave "
                f"them as they are: launch the backfill for the assets {DRY_RUN}/* instead, or without the tag"
            )
        found = tuple(dict.fromkeys((DRY_RUN, name) for prefix, name in chosen if prefix != Layer.RAW))
        if not found:
            raise UsageError(
                "a dry run shows what would change in the warehouse; choose a table that is published, not a raw one"
            )
        return found

    def limits(self) -> ChangeLimits:
        """The change limits. Raises UsageError naming what cannot be used."""
        return ChangeLimits.parse({} if self.change_limits is None else self.change_limits)


class RepairConfig(dg.Config):
    """What can be said in the launchpad; each field is the run tag of the same name, and may be left out."""

    mode: str | None = Field(None, description="publish (default), or dry-run: show what it would change, publish nothing")
    reason: str | None = Field(None, description="why; kept in the ledger and sent to the recipients")
    change_limits: dict[str, Any] | None = Field(
        None, description="what may change: hours, tables, columns, tenants, max_changed_share, max_metric_change"
    )
    tenants: list[str] | None = Field(None, description="repair only rows of these tenants")
    margins: str | None = Field(
        None, description="land (default): also land the raw hours around the range that it needs and lacks; none: do not"
    )
    landing: str | None = Field(None, description="raw hours that have landed: safe (default), missing or replace")
    rewrite_inconsistent: bool | None = Field(None, description="also repair hours whose states and cancels do not match")
    allow_open_hours: bool | None = Field(None, description="also publish to hours that live writers may still write")

    def with_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """The tags of the run and those that the configuration stands for.

        Raises UsageError where both say something else about the same.
        """
        found = dict(tags)
        for name, value in self.model_dump(exclude_none=True).items():
            tag = f"backfill/{name}"
            text = value if isinstance(value, str) else json.dumps(value)
            if tag in tags and tags[tag] != text:
                raise UsageError(f"{name} is '{text}' in the configuration of the run and '{tags[tag]}' in its tag {tag}")
            found[tag] = text
        return found


def _choice(tags: Mapping[str, str], name: str, default: Choice) -> Choice:
    try:
        return type(default)(tags.get(name, default))
    except ValueError:
        raise UsageError(f"the tag {name} is one of {', '.join(type(default))}, not '{tags[name]}'") from None


def _tenants(tags: Mapping[str, str]) -> tuple[str, ...]:
    text = tags.get(TENANTS_TAG)
    if text is None:
        return ()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise UsageError(f'the tag {TENANTS_TAG} is a list of texts in JSON, such as ["17505"], not {text}')
    return tuple(found)


def _flag(tags: Mapping[str, str], name: str) -> bool:
    text = tags.get(name, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"the tag {name} is true or false, not '{tags[name]}'")
    return text == "true"
