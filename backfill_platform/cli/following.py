"""What follows a repair in other pipelines: shown, and with `--downstream` repaired."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backfill_platform.cli import terminal
from backfill_platform.domain.hours import format_hour, merge_hours
from backfill_platform.domain.plan import Plan
from backfill_platform.domain.request import RepairRequest

if TYPE_CHECKING:
    from backfill_platform.cli.platform import Platform, RunResult
    from backfill_platform.pipelines.spec import Pipeline
    from backfill_platform.planning.downstream import Following


@dataclass(frozen=True)
class Walk:
    """A repair that has been walked: of which pipeline, for which request, and when it began. `say` is told what is done."""

    platform: "Platform"
    pipeline: "Pipeline"
    request: RepairRequest
    started: datetime
    say: Callable[[str], None]

    def follow(self, plans: Sequence[Plan], results: "list[RunResult]", *, go_on: bool) -> "tuple[Following, ...]":
        """What has become stale by the plans; with `go_on` it is repaired, pipeline by pipeline, and what is left returned.

        Runs are added to `results`. A run that fails ends it: what comes after is computed from what failed.
        """
        from backfill_platform.adapters.clickhouse.state.ledger import Ledger
        from backfill_platform.planning.downstream import follow, planned_hours, readers_of, rewritten_hours, stale_after
        from backfill_platform.planning.repair_plans import Scope, plan_repair

        pipelines, lake = self.platform.pipelines.values(), self.platform.lake
        ledger = Ledger(self.platform.warehouse)
        walked = list(plans)
        for one in (self.pipeline, *readers_of(self.pipeline, pipelines)) if go_on else ():
            changed = rewritten_hours(walked, ledger, self.started)
            following = follow(one, changed, planned_hours(walked), lake, datetime.now(UTC))
            for span in following.ranges if following else ():
                self.say(f"following in {one.name}: {span}")
                # Change limits name tables of the pipeline that they were written for.
                request = RepairRequest(reason=self._reason, requester=self.request.requester)
                for plan in plan_repair(one, lake, Scope(span), datetime.now(UTC)).plans:
                    results.append(self.platform.run(one, plan, request))
                    walked.append(plan)
                if not results[-1].success:
                    break
        return stale_after(self.pipeline, pipelines, walked, lake, lambda: ledger, self.started)

    @property
    def _reason(self) -> str:
        after = f"after a repair of {self.pipeline.name}"
        return f"{self.request.reason}; {after}" if self.request.reason else after


def following_facts(following: "Following") -> dict[str, Any]:
    """One pipeline of what follows, for machines."""
    hours = [
        {"table": str(one.node.table), "hour": format_hour(hour), "why": why}
        for one in following.tables
        for hour, why in sorted(one.why.items())
    ]
    return {"pipeline": following.pipeline, "hours": hours, "commands": list(following.commands)}


def show_following(following: "Iterable[Following]", title: str) -> None:
    """What follows, by table and range, with the commands that repair it; nothing where nothing follows."""
    found = list(following)
    rows = [
        (one.pipeline, str(table.node.table), str(hours), len(hours), table.why[hours.start])
        for one in found
        for table in one.tables
        for hours in merge_hours(table.hours)
    ]
    if not rows:
        return
    terminal.show_table(title, ("pipeline", "table", "hours (UTC)", "hours", "why the first"), rows)
    terminal.out.print("afterwards, in this order:")
    for one in found:
        for command in one.commands:
            terminal.out.print(f"    {command}", soft_wrap=True)
