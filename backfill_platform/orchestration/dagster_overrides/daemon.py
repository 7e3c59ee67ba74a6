"""Dagster's daemon with a quick backfill tick: `python -m backfill_platform.orchestration.dagster_overrides.daemon run`.

Dagster looks at backfills every 30 seconds and has no setting for it: a backfill of one hour would spend its time waiting.
"""

import dagster._daemon.controller
from dagster._daemon.cli import main

BACKFILL_SECONDS = 1

if __name__ == "__main__":
    dagster._daemon.controller.DEFAULT_DAEMON_INTERVAL_SECONDS = BACKFILL_SECONDS
    main()
