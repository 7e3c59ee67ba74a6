"""What a person or a sensor asks of a repair besides hours and assets: one set of run tags, read and written here alone.

The same tags come from a backfill launched in the web page, from the command line and from the GraphQL API.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backfill_platform.core.contract import Contract
from backfill_platform.errors import UsageError
from backfill_platform.repair.engine import Landing

REASON_TAG = "backfill/reason"
REQUESTER_TAG = "backfill/requester"
CONTRACT_TAG = "backfill/contract"
LANDING_TAG = "backfill/landing"
HEAL_TAG = "backfill/heal"
UNSEALED_TAG = "backfill/unsealed"
TENANTS_TAG = "backfill/tenants"
# Written by us, never by people: the process of a command line's run, and the name of the repair that a run is at work on.
PROCESS_TAG = "backfill/process"
REPAIR_TAG = "backfill/repair"
_TAGS = (REASON_TAG, REQUESTER_TAG, CONTRACT_TAG, LANDING_TAG, HEAL_TAG, UNSEALED_TAG, TENANTS_TAG)
_OURS = (PROCESS_TAG, REPAIR_TAG)
_SENSOR = "dagster/sensor_name"


@dataclass(frozen=True)
class Request:
    """Why and for whom, what may change (as `Contract.parse` takes it), what is allowed by name, whose rows are repaired."""

    reason: str = ""
    requester: str = "dagster"
    contract: Any = None
    landing: Landing = Landing.SAFE
    heal: bool = False
    unsealed: bool = False
    tenants: tuple[str, ...] = ()

    @classmethod
    def from_tags(cls, tags: Mapping[str, str]) -> "Request":
        """Read the tags of a run. Raises UsageError naming the tag and what it can be; also for a tag that nobody knows."""
        unknown = sorted(
            name for name in tags if name.startswith("backfill/") and name not in (*_TAGS, PROCESS_TAG, REPAIR_TAG)
        )
        if unknown:
            raise UsageError(f"there is no tag {', '.join(unknown)}; there are {', '.join(_TAGS)}")
        try:
            contract = json.loads(tags[CONTRACT_TAG]) if CONTRACT_TAG in tags else None
        except ValueError as error:
            raise UsageError(f"the tag {CONTRACT_TAG} is no JSON: {error}") from error
        try:
            landing = Landing(tags.get(LANDING_TAG, Landing.SAFE))
        except ValueError:
            raise UsageError(f"the tag {LANDING_TAG} is one of {', '.join(Landing)}, not '{tags[LANDING_TAG]}'") from None
        request = cls(
            tags.get(REASON_TAG, ""),
            tags.get(REQUESTER_TAG, tags.get(_SENSOR, "dagster")),
            contract,
            landing,
            _flag(tags, HEAL_TAG),
            _flag(tags, UNSEALED_TAG),
            _tenants(tags),
        )
        request.limits()
        return request

    def to_tags(self) -> dict[str, str]:
        """The tags that `from_tags` reads as this request."""
        tags = {REASON_TAG: self.reason, REQUESTER_TAG: self.requester, LANDING_TAG: str(self.landing)}
        if self.contract is not None:
            tags[CONTRACT_TAG] = json.dumps(self.contract)
        if self.tenants:
            tags[TENANTS_TAG] = json.dumps(self.tenants)
        return tags | {name: "true" for name, asked in ((HEAL_TAG, self.heal), (UNSEALED_TAG, self.unsealed)) if asked}

    def limits(self) -> Contract:
        """The contract. Raises UsageError naming what cannot be used."""
        return Contract.parse({} if self.contract is None else self.contract)


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
