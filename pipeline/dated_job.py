"""One run of a scheduled job, as a job of its own: its dates filled in, its seeds moved on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pipeline import cron
from pipeline.dates import KNOWN, fill, is_known, placeholders, tells_the_day, tells_the_hour, told
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.spec import Job

_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def run_of(job: Job, when: datetime) -> datetime:
    """The run that a time of the schedule belongs to: as much of it as the name of its output tells."""
    return told(job.output.uri, when)


def name_of(job: Job, run: datetime) -> str:
    """A run, as its output's name tells it."""
    return f"{run:%Y-%m-%dT%H:%MZ}" if tells_the_hour(job.output.uri) else f"{run:%Y-%m-%d}"


def parse_run(job: Job, expression: str, text: str, now: datetime) -> datetime:
    """The run of a date, or of a date and time (UTC).

    Raises:
        UsageError: there is no such run, more than one, or it is still to come.
    """
    start, length = _span(text)
    times = list(takewhile(lambda time: time < start + length, cron.after(expression, start - _MINUTE)))
    runs = sorted({run_of(job, time) for time in times})
    if not runs:
        raise UsageError(f"--date {text}: schedule.cron, {expression!r}, has no run then")
    if len(runs) > 1:
        raise UsageError(
            f"--date {text}: there are {len(runs)} runs then; say the time too, as in {runs[0]:%Y-%m-%dT%H:%M}"
        )
    if times[0] > now:
        raise UsageError(f"--date {text}: that run is still to come, at {times[0]:%Y-%m-%dT%H:%MZ}")
    return runs[0]


def _span(text: str) -> tuple[datetime, timedelta]:
    """Start and length of a day or a minute (UTC). Raises UsageError for what is neither."""
    for form, length in (("%Y-%m-%d", timedelta(days=1)), ("%Y-%m-%dT%H:%M", _MINUTE), ("%Y-%m-%dT%H%M", _MINUTE)):
        with suppress(ValueError):
            return datetime.strptime(text.removesuffix("Z"), form).replace(tzinfo=timezone.utc), length
    raise UsageError(f"--date {text}: expected a date, or a date and time, as in 2026-03-01T02:00 (UTC)")


def resolved(job: Job, run: datetime) -> Job:
    """The job of one run.

    With `advance_seeds` the run at minute m since 1970 takes seeds from m·2^k on, 2^k being the least power of two
    that holds its rows. So no two runs share a seed, in whatever order they are made, whatever becomes of earlier
    sets, and however often and by whatever times the schedule runs. Nor do they where the number of rows is changed
    in between: a larger 2^k lifts all later runs over all earlier ones, and a smaller one would meet them again only
    when m has doubled.

    Raises:
        UsageError: seeds would be beyond the largest one.
    """
    output = job.output.model_copy(update={"uri": fill(job.output.uri, run)})
    manifest = job.manifest
    if manifest.path is not None:
        manifest = manifest.model_copy(update={"path": fill(manifest.path, run)})
    elif manifest.range is not None and job.schedule is not None and job.schedule.advance_seeds:
        rows = manifest.range
        stride = 1 << (rows.count - 1).bit_length()
        seed = rows.seed + (run - _EPOCH) // _MINUTE * stride
        try:
            advanced = type(rows).model_validate({**rows.model_dump(), "seed": seed})
        except ValidationError as error:
            raise UsageError(
                f"schedule.advance_seeds: the run of {run:%Y-%m-%d} would take seeds beyond the largest one; "
                "use fewer rows or a smaller manifest.range.seed"
            ) from error
        manifest = manifest.model_copy(update={"range": advanced})
    return job.model_copy(update={"output": output, "manifest": manifest})


def problems(job: Job) -> Iterator[tuple[str, str]]:
    """(setting, what is wrong) of a job with a schedule, and of one without whose paths hold run dates."""
    paths = {"output.uri": job.output.uri, "manifest.path": job.manifest.path or ""}
    dated = {setting: path for setting, path in paths.items() if placeholders(path)}
    if job.schedule is None:
        for setting, path in dated.items():
            if all(map(is_known, placeholders(path))):
                yield setting, "holds a run date, which only a `schedule` fills in; add one, or write a date"
        return
    unknown = [(setting, name) for setting, path in dated.items() for name in placeholders(path) if not is_known(name)]
    for setting, name in unknown:
        yield setting, f"{{{name}}} is not known; what is: {KNOWN}"
    if not unknown:
        yield from _ambiguities(job, job.schedule.cron)
    if job.output.overwrite:
        yield "output.overwrite", "would remove a run's set whenever the schedule is looked at; leave it out"
    if job.schedule.advance_seeds and job.manifest.range is None:
        yield (
            "schedule.advance_seeds",
            "needs manifest.range; the seeds of a file are its own, so write one a run and put {date} into its path",
        )


def _ambiguities(job: Job, expression: str) -> Iterator[tuple[str, str]]:
    uri, path = job.output.uri, job.manifest.path or ""
    if not tells_the_day(uri):
        yield "output.uri", f"must tell the run's date, as in …/{{date}}, since each run has a set of its own; {KNOWN}"
        return
    if uri.startswith("s3://") and placeholders(uri.split("/")[2]):
        yield "output.uri", "the bucket's name cannot hold a run date"
    first = next(cron.after(expression, _EPOCH - _MINUTE))
    # A cron expression has the same times on each of its days.
    day = [first, *takewhile(lambda time: time.date() == first.date(), cron.after(expression, first))]
    for one, other in pairwise(day):
        if fill(uri, one) == fill(uri, other):
            yield (
                "output.uri",
                f"the runs of {one:%H:%M} and {other:%H:%M} would write to one output; put {{datetime}} into it",
            )
            return
    if any(fill(path, run_of(job, time)) != fill(path, time) for time in day):
        yield "manifest.path", "tells more of the run's time than output.uri does; put the same into both"
