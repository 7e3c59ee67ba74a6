"""Telling the recipients of a pipeline what its runs do: that one starts, and how it ended, however it ends; and of gaps.

A message never fails a repair, and holds it up by no more than the patience of the outbox, once, at its end.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache

import dagster as dg

from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish
from backfill_platform.adapters.delivery.dispatcher import Dispatcher
from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.domain.plan import WAREHOUSE, AssetPath
from backfill_platform.errors import BackfillError, TransientError
from backfill_platform.notifications.recipients import NOBODY, Audience, audience_of, unknown_recipients, web_address
from backfill_platform.notifications.summary import Asked, ended, gaps_found, started
from backfill_platform.orchestration.run_request import REASON_TAG, REQUESTER_TAG, ROUTINE_TAG
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import Event, HourOutcome
from backfill_platform.repair.publish import CHANGED_COLUMNS, REFUSALS
from backfill_platform.repair.runner import Context
from backfill_platform.repair.undo import Undone
from backfill_platform.settings import Settings

logger = logging.getLogger(__name__)

_INTERRUPTED_SECONDS = 5.0  # whoever interrupts a run kills it soon
_TICK_SECONDS = 10.0  # Dagster gives a tick a minute, and most of it is for looking
_BUG = "the recipients are not told, because of a bug: {}"

Wanted = Mapping[AssetPath, Collection[datetime]]
RunContext = dg.OpExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True)
class Notices:
    """Who is told of the runs of a pipeline, and where their pages are."""

    watch: Audience = NOBODY
    web_url: Callable[[], str] = lambda: ""

    @classmethod
    def of(cls, pipeline: Pipeline, settings: Settings) -> "Notices":
        """Those of the settings. Recipients that they lack are told of in one warning for each process."""
        if problem := unknown_recipients(pipeline, settings):
            _warn_once(problem)
        return cls(audience_of(pipeline, settings), lambda: web_address(settings))


NOTHING = Notices()


@dataclass
class Notice:
    """What is told of one run. It is a listener of repairs; nothing it does raises."""

    context: RunContext
    asked: Asked
    dispatcher: Dispatcher
    retries: int = 0  # of failures that may pass; only the last of them is told
    outcomes: list[HourOutcome] = field(default_factory=list)
    conflicts: int = 0

    @property
    def routine(self) -> bool:
        """Whether recipients hear of the run only when something is wrong."""
        return self.context.run.tags.get(ROUTINE_TAG) == "true"

    def begin(self, repair: Context, assets: Sequence[AssetPath] = ()) -> None:
        """The run knows what it works on; that is told unless this is a further try."""
        self.asked = replace(
            self.asked,
            assets=tuple(assets),
            repair_id=repair.repair_id,
            reason=repair.reason,
            requester=repair.requester,
            tenants=repair.tenants,
        )
        if not self.context.retry_number:
            self._post(lambda: started(self.asked))

    def __call__(self, event: Event) -> None:
        """Keep in mind what became of an hour."""
        if isinstance(event, HourOutcome):
            # Without the samples, of which a year of hours has too many to keep.
            kept = tuple(rows for rows in event.tables if rows.title == CHANGED_COLUMNS)
            self.outcomes.append(replace(event, tables=kept))

    def undone(self, table: Undone) -> None:
        """Keep in mind what an undo took back of a table."""
        name = table.table.rpartition("/")[2]
        self.outcomes += [_outcome((WAREHOUSE, name), result) for result in table.results]
        self.conflicts += table.found.conflicts

    def end(self, error: BaseException | None) -> None:
        """Tell how it ended, and wait until everything is told or the patience is over."""
        interrupted = error is not None and not isinstance(error, Exception)
        if not (isinstance(error, TransientError) and self.context.retry_number < self.retries):
            self._post(lambda: ended(self.asked, self.outcomes, error=_words(error), conflicts=self.conflicts))
        _close(self.dispatcher, self.context.log, _INTERRUPTED_SECONDS if interrupted else None)

    def _post(self, message: Callable[[], Notification]) -> None:
        try:
            made = message()
            if not (self.routine and set(made.kinds) <= {NotificationKind.STARTED, NotificationKind.FINISHED}):
                self.dispatcher.post(made)
        except Exception as error:  # noqa: BLE001  # no repair may fail because it cannot be told of
            self.context.log.warning(_BUG.format(type(error).__name__))


@contextmanager
def telling(
    context: RunContext,
    notices: Notices,
    pipeline: Pipeline,
    hours: HourRange | None,
    assets: Sequence[AssetPath] = (),
    undoes: str = "",
    retries: int = 0,
) -> Iterator[Notice]:
    """Tell the recipients of the run in this block: what it raises is told, and raised on."""
    tags = context.run.tags
    page = notices.web_url()
    asked = Asked(
        pipeline,
        hours,
        tuple(assets),
        reason=tags.get(REASON_TAG, ""),
        requester=tags.get(REQUESTER_TAG, ""),
        undoes=undoes,
        run_url=f"{page}/runs/{context.run.run_id}" if page else "",
    )
    if notices.watch.missing:
        context.log.info(f"nobody is told as {', '.join(notices.watch.missing)}: BACKFILL_RECIPIENTS does not have them")
    notice = Notice(context, asked, notices.watch.dispatcher(), retries)
    try:
        yield notice
    except BaseException as error:
        notice.end(error)
        raise
    notice.end(None)


def tell_of_gaps(
    log: logging.Logger, notices: Notices, pipeline: Pipeline, gaps: Sequence[Gap], wanted: Callable[[], Wanted]
) -> None:
    """Tell the recipients of gaps that nothing repairs by itself; `wanted` finds the hours that would mend them.

    Raises nothing. What is not delivered while the tick waits is tried for as long as the patience lasts.
    """
    if not (gaps and notices.watch.recipients):
        return
    dispatcher = notices.watch.dispatcher()
    try:
        dispatcher.post(gaps_found(pipeline, gaps, wanted(), notices.web_url()))
    except Exception as error:  # noqa: BLE001  # no gap may stay unseen because it cannot be told of
        log.warning(_BUG.format(type(error).__name__))
    _close(dispatcher, log, _TICK_SECONDS)


def _close(dispatcher: Dispatcher, log: logging.Logger, seconds: float | None) -> None:
    for delivery in dispatcher.close(seconds):
        log.log(logging.WARNING if delivery.problem else logging.INFO, str(delivery))


def _words(error: BaseException | None) -> str:
    if error is None:
        return ""
    if not isinstance(error, Exception):
        return "the run was interrupted"
    text = str(error).strip()
    return text if isinstance(error, BackfillError) and text else f"{type(error).__name__}: {text.partition(chr(10))[0]}"


def _outcome(asset: AssetPath, result: HourPublish) -> HourOutcome:
    facts = {"cancels": result.cancels, "states": result.states, "untouched": result.untouched}
    return HourOutcome(asset, result.hour, result.reason, facts, asks=isinstance(result.error, REFUSALS))


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)
