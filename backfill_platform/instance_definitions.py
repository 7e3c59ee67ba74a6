"""What an installation needs once, however many code locations it has: the job that prunes Dagster's history.

`backfill_platform.definitions` has it, too. An installation whose pipelines are in code locations of their teams loads this
module beside them.
"""

import dagster as dg

from backfill_platform.orchestration.jobs.history import history_job, history_schedule
from backfill_platform.settings import Settings, load_settings


def instance_definitions(settings: Settings) -> dg.Definitions:
    """The jobs and schedules of the installation itself."""
    pruning = history_job(settings.history_days)
    return dg.Definitions(jobs=[pruning], schedules=[history_schedule(pruning)])


@dg.definitions
def defs() -> dg.Definitions:
    """Read by Dagster when it loads the code location, not when the module is imported."""
    return instance_definitions(load_settings())
