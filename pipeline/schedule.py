"""Which runs of a schedule are due and which past sets are to go: settings, time and what is there in, dates out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice, takewhile
from typing import Literal

from pipeline import cron
from pipeline.spec import ScheduleSpec

# `foreign`: a set is there that is not of this schedule. It is never gone on with, and never removed.
State = Literal["finished", "unfinished", "foreign"]


def due(
    schedule: ScheduleSpec, now: datetime, past: Mapping[datetime, State], told: Callable[[datetime], datetime]
) -> list[datetime]:
    """The runs to make now, or to go on with, the oldest first.

    The last is always the newest that is due, finished or not. Before it come earlier ones that are not finished
    (`unfinished: continue`), and those that were missed since the oldest of the schedule's sets that are there
    (`missed: catch_up`); of all these only such as `keep` would not remove at once.

    Args:
        past: the sets that are there, by run.
        told: what the name of a run's output tells of its time, by which runs are known.
    """
    newest = told(latest(schedule, now))
    ignored = {*surplus(schedule.keep, past), *(run for run, state in past.items() if state == "foreign")}
    earlier = {run: state for run, state in past.items() if run < newest and run not in ignored}
    runs = {newest}
    if schedule.unfinished == "continue":
        runs |= {run for run, state in earlier.items() if state == "unfinished"}
    if schedule.missed == "catch_up" and earlier:
        oldest = min(earlier)
        times = islice(cron.until(schedule.cron, now), schedule.keep)
        runs |= {run for run in takewhile(lambda run: run > oldest, map(told, times)) if run not in past}
    return sorted(runs)


def surplus(keep: int | None, past: Mapping[datetime, State]) -> list[datetime]:
    """The runs whose sets are to be removed: all of ours that are older than the newest `keep` finished ones."""
    finished = sorted((run for run, state in past.items() if state == "finished"), reverse=True)
    if keep is None or len(finished) < keep:
        return []
    return sorted(run for run, state in past.items() if run < finished[keep - 1] and state != "foreign")


def latest(schedule: ScheduleSpec, now: datetime) -> datetime:
    """The last time at which the schedule ran, or should have."""
    return next(cron.until(schedule.cron, now))


def upcoming(schedule: ScheduleSpec, now: datetime, count: int) -> list[datetime]:
    """The next times at which the schedule runs."""
    return list(islice(cron.after(schedule.cron, now), count))
