"""What a person, a sensor or the command line asks of a repair, besides assets and hours.

Frozen: nothing changes it on the way.
"""

from pydantic import BaseModel, ConfigDict

from backfill_platform.domain.change_limits import NO_LIMITS, ChangeLimits


class RepairRequest(BaseModel):
    """Why and for whom, what may change, what is allowed by name, whose rows are repaired.

    `rewrite_inconsistent` lets partitions be written anew in which net state and FINAL disagree, `allow_open_hours` publishes
    to hours that live writers may still write. With `tenants`, tables whose rows belong to tenants keep the rows of all others
    as they are, in the lake and in the warehouse. Of a `routine` run, people hear only when it fails or waits for them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str = ""
    requester: str = "dagster"
    change_limits: ChangeLimits = NO_LIMITS
    rewrite_inconsistent: bool = False
    allow_open_hours: bool = False
    tenants: tuple[str, ...] = ()
    routine: bool = False


PLAIN_REQUEST = RepairRequest()
