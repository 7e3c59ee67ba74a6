"""Which pipeline is repaired, on whose behalf, under which name: the values that every use case of a repair is given."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.domain.request import RepairRequest
from backfill_platform.pipelines.spec import Pipeline


@dataclass(frozen=True)
class RepairIdentity:
    """The name of a repair, by which its attempts, branches and staging tables are known, and the version of the code."""

    repair_id: str
    code_version: str


@dataclass(frozen=True)
class RepairJob:
    """A frozen request for a pipeline, with the identity of the repair that answers it and the clock it goes by."""

    pipeline: Pipeline
    request: RepairRequest
    identity: RepairIdentity
    clock: Callable[[], datetime]

    @property
    def repair_id(self) -> str:
        """The name of the repair."""
        return self.identity.repair_id
