"""Telling the recipients of a pipeline what its runs do: that one starts, and how it ended, however it ends; and of gaps.

A notification never fails a repair, and delays it by no more than the patience of the dispatcher, once, at its end.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import dagster as dg

from backfill_platform.adapters.delivery.dispatcher import Dispatcher
from backfill_platform.detection.remediation import Remedy
from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.domain.plan import AssetPath, Plan
from backfill_platform.errors import TransientError
from backfill_platform.notifications.messages import gaps_found, run_ended, run_started
from backfill_platform.notifications.recipients import NOBODY, Audience, audience_of, unknown_recipients, web_address
from backfill_platform.orchestration.run_request import NOTIFIED_TAG
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairJob
from backfill_platform.reports.repair_report import RepairReport, RunSubject
from backfill_platform.reports.words import error_in_words
from backfill_platform.settings import Settings

logger = logging.getLogger(__name__)

_INTERRUPTED_SECONDS = 5.0  # whoever interrupts a run kills it soon
_TICK_SECONDS = 10.0  # Dagster gives a tick a minute, and most of it is for looking
_BUG = "the recipients are not told, because of a bug: {}"

HoursByAsset = Mapping[AssetPath, Collection[object]]
RunContext = dg.OpExecutionContext | dg.AssetExecutionContext


@dataclass(frozen=True)
class Notifier:
    """Who is told of the runs of a pipeline, and where their pages are."""

    audience: Audience = NOBODY
    web_url: Callable[[], str] = lambda: ""

    @classmethod
    def of(cls, pipeline: Pipeline, settings: Settings) -> "Notifier":
        """The one of the settings. Recipients that they lack are named in one warning for each process."""
        if problem := unknown_recipients(pipeline, settings):
            _warn_once(problem)
        return cls(audience_of(pipeline, settings), lambda: web_address(settings))

    def run_url(self, run_id: str) -> str:
        """The page of a run, empty where nobody knows its address."""
        page = self.web_url()
        return f"{page}/runs/{run_id}" if page else ""


SILENT = Notifier()


@dataclass
class RunNotifications:
    """What is told of one run; nothing it does raises."""

    context: RunContext
    report: RepairReport
    dispatcher: Dispatcher
    retries: int = 0  # of failures that may pass; only the last of them is told

    def begin(self, job: RepairJob, plan: Plan | None = None) -> RepairReport:
        """The run knows what it works on; that is told unless this is a further try. The report collects what becomes of it."""
        subject = replace(self.report.subject, repair_id=job.repair_id, request=job.request)
        if plan is not None:
            subject = replace(subject, assets=plan.assets, hours=plan.hours)
        self.report.subject, self.report.plan = subject, plan
        if not self.context.retry_number:
            self._post(lambda: run_started(self.report))
        return self.report

    def end(self, error: BaseException | None) -> None:
        """Tell how it ended, and wait until everything is told or the patience is over."""
        interrupted = error is not None and not isinstance(error, Exception)
        if not (isinstance(error, TransientError) and self.context.retry_number < self.retries):
            self.report.error = "" if error is None else error_in_words(error)
            self._post(lambda: run_ended(self.report))
            if self.dispatcher.reaches_anybody:
                self._note_that_it_is_told()
        _close(self.dispatcher, self.context.log, _INTERRUPTED_SECONDS if interrupted else None)

    def _note_that_it_is_told(self) -> None:
        """The sensor of dead runs tells of those without this tag. The run's own name: retries inherit the tags of a run."""
        run_id = self.context.run.run_id
        try:
            self.context.instance.add_run_tags(run_id, {NOTIFIED_TAG: run_id})
        except Exception as error:  # noqa: BLE001  # the repair is done, whatever becomes of its tags
            self.context.log.warning(f"the run cannot be marked as told ({type(error).__name__}); it may be told twice")

    def _post(self, make: Callable[[], Notification]) -> None:
        try:
            notification = make()
            routine = self.report.subject.request.routine
            if not (routine and set(notification.kinds) <= {NotificationKind.STARTED, NotificationKind.FINISHED}):
                self.dispatcher.post(notification)
        except Exception as error:  # noqa: BLE001  # no repair may fail because it cannot be told of
            self.context.log.warning(_BUG.format(type(error).__name__))


@contextmanager
def notifying(context: RunContext, notifier: Notifier, subject: RunSubject, retries: int = 0) -> Iterator[RunNotifications]:
    """Tell the recipients of the run in this block: what it raises is told, and raised on."""
    if missing := notifier.audience.missing:
        context.log.info(f"nobody is told as {', '.join(missing)}: BACKFILL_RECIPIENTS does not have them")
    report = RepairReport(replace(subject, run_url=notifier.run_url(context.run.run_id)))
    notifications = RunNotifications(context, report, notifier.audience.dispatcher(), retries)
    try:
        yield notifications
    except BaseException as error:
        notifications.end(error)
        raise
    notifications.end(None)


def tell_of_gaps(
    log: logging.Logger,
    notifier: Notifier,
    pipeline: Pipeline,
    gaps: Sequence[Gap],
    find: Callable[[], tuple[HoursByAsset, Sequence[Remedy]]],
) -> None:
    """Tell the recipients of gaps that nothing repairs by itself; `find` has the hours and the commands that would.

    Raises nothing. What is not delivered while the tick waits is tried for as long as the patience lasts.
    """
    if not (gaps and notifier.audience.recipients):
        return
    dispatcher = notifier.audience.dispatcher()
    try:
        dispatcher.post(gaps_found(pipeline, gaps, *find(), notifier.web_url()))
    except Exception as error:  # noqa: BLE001  # no gap may stay unseen because it cannot be told of
        log.warning(_BUG.format(type(error).__name__))
    _close(dispatcher, log, _TICK_SECONDS)


def tell_of_dead_run(log: logging.Logger, notifier: Notifier, subject: RunSubject, why: str) -> None:
    """Tell the recipients of a run that ended without telling them: its process was killed. Raises nothing."""
    if not notifier.audience.recipients:
        return
    dispatcher = notifier.audience.dispatcher()
    try:
        dispatcher.post(run_ended(RepairReport(subject, error=why)))
    except Exception as error:  # noqa: BLE001  # a tick that fails tells the other runs nothing, either
        log.warning(_BUG.format(type(error).__name__))
    _close(dispatcher, log, _TICK_SECONDS)


def _close(dispatcher: Dispatcher, log: logging.Logger, seconds: float | None) -> None:
    for delivery in dispatcher.close(seconds):
        log.log(logging.WARNING if delivery.problem else logging.INFO, str(delivery))


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)
