"""Dagster's web server behind a gate; run as a module, with the options of `dagster-webserver`.

Dagster's own takes mutations by GET and answers pages of other servers, so an image on any web page could launch a backfill.
"""

from typing import Any

import dagster_webserver.cli

from backfill_platform.orchestration.dagster_overrides.partition_pages import page_back_from_the_end
from backfill_platform.orchestration.dagster_overrides.web_gate import WebGate
from backfill_platform.settings import load_settings


def main() -> None:
    """Run Dagster's command with the gate around its application, and pages of partitions that begin at their end."""
    command: Any = dagster_webserver.cli
    ungated = command.create_app_from_workspace_process_context

    def gated(*arguments: Any, **options: Any) -> WebGate:
        return WebGate(ungated(*arguments, **options), load_settings().web_url)

    command.create_app_from_workspace_process_context = gated
    page_back_from_the_end()
    command.main()


if __name__ == "__main__":
    main()
