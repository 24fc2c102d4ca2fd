"""A scheduled job's turn: the runs that are due are made, sets that are surplus go, and somebody is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial

from pipeline.dated_job import name_of, parse_run, resolved, run_of
from pipeline.dated_sets import find, remove
from pipeline.errors import PipelineError, UsageError
from pipeline.lease import Held
from pipeline.notify import notify
from pipeline.run import Say, run
from pipeline.schedule import State, due, latest, surplus, upcoming
from pipeline.signals import Signals
from pipeline.spec import Job, ScheduleSpec

_GRAVITY = (0, 1, 3, 2)  # exit statuses, the worst last: what needs somebody outweighs what only needs time


UPCOMING = 3  # runs that `check` tells of


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def newest(job: Job, schedule: ScheduleSpec) -> Job:
    """The job of the newest run that is due."""
    return resolved(job, run_of(job, latest(schedule, utc_now())))


def outlook(job: Job, schedule: ScheduleSpec) -> list[str]:
    """What comes next, in lines for the screen."""
    kept = "all sets are kept" if schedule.keep is None else f"the newest {schedule.keep} finished sets are kept"
    lines = [f"{schedule.cron} (UTC); missed runs: {schedule.missed}; unfinished: {schedule.unfinished}; {kept}"]
    for time in upcoming(schedule, utc_now(), UPCOMING):
        lines.append(f"next {time:%a %Y-%m-%d %H:%M} to {resolved(job, run_of(job, time)).output.uri}")
    return lines


def run_job(job: Job, date: str | None, *, limit: int | None, retry_failed: bool, signals: Signals, say: Say) -> int:
    """The job's run, or of a job with a schedule the runs that are due, or that of a date. Returns the exit status.

    Raises as `run` and `Turn` do; UsageError for the date of a job without a schedule.
    """
    if job.schedule is None:
        refuse_date(date)
        return run(job, limit=limit, retry_failed=retry_failed, signals=signals, say=say)
    turn = Turn(job, job.schedule, limit=limit, retry_failed=retry_failed, signals=signals, say=say)
    if date is None:
        turn.make_due()
    else:
        turn.make_dated(date)
    return turn.exit_status


def refuse_date(date: str | None) -> None:
    """Raises UsageError for the date of a job that has none."""
    if date is not None:
        raise UsageError(f"--date {date}: the job has no `schedule`, and so no dates")


class Turn:
    """One look at a scheduled job.

    Attributes:
        exit_status: the worst of the runs' so far.
    """

    def __init__(
        self, job: Job, schedule: ScheduleSpec, *, limit: int | None, retry_failed: bool, signals: Signals, say: Say
    ) -> None:
        self._job, self._schedule = job, schedule
        self._run = partial(run, limit=limit, retry_failed=retry_failed, signals=signals)
        self._signals = signals
        self._say = say
        self.exit_status = 0

    def make_due(self, now: Callable[[], datetime] = utc_now) -> None:
        """Makes the runs that are due, and those that become due meanwhile; then removes what is surplus.

        A run that fails keeps none of the others from being made. One that another driver is at work on is left to it.

        Raises:
            Unavailable: the storage above the outputs is out of reach.
            Interrupted: a signal ended it; the same command goes on.
        """
        tried: set[datetime] = set()
        while True:
            past = find(self._job)
            runs = due(self._schedule, now(), past, partial(run_of, self._job))
            first = not tried
            if tried >= set(runs):
                break
            for each in runs:
                if each not in tried:
                    self._make(each, past.get(each), awaited=first and each == runs[-1])
                    tried.add(each)
        self._remove_surplus()

    def make_dated(self, text: str) -> None:
        """Makes the run of one date, whether it is due or not, and removes nothing.

        Raises:
            UsageError: there is no such run.
            Unavailable, Interrupted: as `make_due`.
        """
        chosen = parse_run(self._job, self._schedule.cron, text, utc_now())
        self._make(chosen, find(self._job).get(chosen), awaited=True)

    def _make(self, chosen: datetime, state: State | None, *, awaited: bool) -> None:
        """`awaited`: whether the run is what the command is for, and not by the way."""
        self._signals.check()
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            self._say(line)

        job = resolved(self._job, chosen)
        self._say(f"run of {name_of(self._job, chosen)}")
        try:
            status = self._run(job, say=say)
        except Held as error:
            self._say(str(error))
            if awaited:
                self._count(error.exit_code)
            return
        except PipelineError as error:
            say(f"error: {error}")
            status = error.exit_code
        self._count(status)
        if self._schedule.notify is not None and state != "finished":
            message = {
                "job": job.name,
                "run": chosen.isoformat(),
                "output": job.output.uri,
                "outcome": "failure" if status else "success",
                "exit_status": status,
                "text": "\n".join([f"{job.name}, run of {name_of(self._job, chosen)}: exit status {status}", *lines]),
            }
            for line in notify(self._schedule.notify, message):
                self._say(f"warning: {line}")

    def _remove_surplus(self) -> None:
        try:
            for output in remove(self._job, surplus(self._schedule.keep, find(self._job))):
                self._say(f"removed {output}: schedule.keep is {self._schedule.keep}")
        except PipelineError as error:
            self._say(f"error: a set that schedule.keep has no room for was not removed: {error}")
            self._count(error.exit_code)

    def _count(self, status: int) -> None:
        self.exit_status = max(self.exit_status, status, key=_GRAVITY.index)
