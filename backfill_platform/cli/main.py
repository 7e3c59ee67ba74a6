"""The `backfill` command. Exit codes: 0 done, 1 differences found or hours failed, 2 wrong use."""

from typing import Any

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.adopt import adopt
from backfill_platform.cli.check import check
from backfill_platform.cli.doctor import doctor
from backfill_platform.cli.init import init
from backfill_platform.cli.inspect import gaps, ledger, verify
from backfill_platform.cli.live import live
from backfill_platform.cli.maintain import maintain
from backfill_platform.cli.migrate import migrate
from backfill_platform.cli.quarantine import quarantine, requeue
from backfill_platform.cli.recipients import recipients
from backfill_platform.cli.repair import dry_run, plan, run
from backfill_platform.cli.topics import drain, handover, replay, replay_limits
from backfill_platform.cli.undo import undo
from backfill_platform.cli.up import demo, up
from backfill_platform.errors import BackfillError, UsageError

# Dagster, Spark and pandera take seconds to import; `backfill --help` and wrong use must not wait for them.


class _Group(click.Group):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BackfillError as error:
            terminal.show_error(error)
            ctx.exit(2 if isinstance(error, UsageError) else 1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="backfill-platform")
def main() -> None:
    """Find, rebuild, prove and publish damaged hours of event pipelines.

    Ranges are half-open hours in UTC: --from 1998-04-30T22 --to 1998-05-01T00 is two hours.
    """


for command in (
    init,
    adopt,
    doctor,
    up,
    demo,
    plan,
    dry_run,
    run,
    undo,
    gaps,
    verify,
    ledger,
    quarantine,
    requeue,
    check,
    live,
    replay,
    replay_limits,
    drain,
    handover,
    maintain,
    migrate,
    recipients,
):
    main.add_command(command)
