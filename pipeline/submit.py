"""A job on a Ray cluster: attached to if it runs there, submitted again if it failed, left alone if it is done."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from pipeline.dated_job import name_of, parse_run, resolved, run_of
from pipeline.dated_sets import find
from pipeline.errors import Unavailable, UsageError
from pipeline.manifest import normalise
from pipeline.package import JOB_FILE, pack
from pipeline.ray_jobs import STOP_WAIT_S, Attempt, RayJobs
from pipeline.run import Settled, checked, settled
from pipeline.schedule import due, latest
from pipeline.scheduled import refuse_date, utc_now
from pipeline.scratch import scratch_folder
from pipeline.signals import Interrupted, Signals
from pipeline.spec import Job

Say = Callable[[str], None]


class Submission:
    """A job, and of a scheduled one a run, as a cluster knows it."""

    def __init__(self, job: Job, date: str | None, address: str) -> None:
        """Raises UsageError for a date that the job has no run of."""
        self._job, self._date = job, date
        self._run: datetime | None = None
        if job.schedule is None:
            refuse_date(date)
        elif date is not None:
            self._run = parse_run(job, job.schedule.cron, date, utc_now())
        else:
            self._run = run_of(job, latest(job.schedule, utc_now()))
        self._address = address
        self.name = submission_name(job, "" if self._run is None else name_of(job, self._run))

    def submit(self, *, limit: int | None, retry_failed: bool, wait: bool, say: Say, write: Say) -> int:
        """Sees to it that the job is done or being done on the cluster.

        Args:
            limit, retry_failed: of the run on the cluster.
            wait: whether to follow the attempt to its end.
            say: prints a line for the user.
            write: prints a part of the job's log.

        Returns:
            Exit status: 0, or that of the set that is done, or that of the attempt that was waited for.

        Raises:
            UsageError: the job or the cluster's address or token is wrong.
            Unavailable: the cluster does not answer.
            Interrupted: the waiting was ended; the job goes on.
        """
        with scratch_folder() as folder:
            pack(self._job, folder)
            done = self._done(limit, retry_failed, say)
            if done is not None:
                say("nothing to submit: the output is done")
                for line in done.lines:
                    say(line)
                return done.exit_status
            jobs = RayJobs(self._address)
            options = [f"--limit={limit}"] * (limit is not None) + ["--retry-failed"] * retry_failed
            options += [f"--date={self._date}"] * (self._date is not None)
            attempt = self._attempt(jobs, folder, shlex.join(["specdiff", "run", JOB_FILE, *options]), say)
        if not wait:
            say("--wait follows it, --logs shows what it has printed, --stop ends it")
            return 0
        try:
            attempt = jobs.follow(attempt, write)
        except Interrupted as error:
            raise Interrupted(
                error.number, f"no longer waiting for {attempt.name}, which goes on: the same command attaches to it"
            ) from None
        status, reason = outcome(attempt)
        if reason:
            say(f"{attempt.name} {reason}")
        return status

    def logs(self) -> str:
        """What the last attempt has printed. Raises UsageError where there is none, Unavailable."""
        jobs = RayJobs(self._address)
        attempts = jobs.attempts(self.name)
        if not attempts:
            raise UsageError(f"{jobs.address}: no attempt at {self.name} is known there")
        return jobs.logs(attempts[-1])

    def stop(self, say: Say) -> None:
        """Ends the attempt that runs, if one does. What it has committed stays. Raises Unavailable."""
        jobs = RayJobs(self._address)
        running = [attempt for attempt in jobs.attempts(self.name) if not attempt.ended]
        for attempt in running:
            jobs.stop(attempt)
            attempt = jobs.wait_until_ended(attempt, 2 * STOP_WAIT_S)
            if not attempt.ended:
                raise Unavailable(f"{attempt.name} was told to end, and has not yet")
            say(f"{attempt.name} is {attempt.status.lower()}; submit the job again, and it goes on")
        if not running:
            say(f"no attempt at {self.name} is running")

    def _done(self, limit: int | None, retry_failed: bool, say: Say) -> Settled | None:
        """What there is, where nothing is left to do; checks the job in any case, as far as that can be done here."""
        job = self._job if self._run is None else resolved(self._job, self._run)
        info, _ = checked(job)
        try:
            if not job.output.uri.startswith("s3://"):  # a folder of that name here need not be the cluster's
                normalise(job, info)
                return None
            if self._others_are_due():
                normalise(job, info)
                return None
            return settled(job, limit=limit, retry_failed=retry_failed, signals=Signals())
        except Unavailable as error:
            say(f"going on, though manifest and output cannot be looked at from here: {error}")
            return None

    def _others_are_due(self) -> bool:
        """Whether runs of the schedule are due besides the newest."""
        schedule = self._job.schedule
        if schedule is None or self._date is not None:
            return False
        return len(due(schedule, utc_now(), find(self._job), partial(run_of, self._job))) > 1

    def _attempt(self, jobs: RayJobs, folder: str, command: str, say: Say) -> Attempt:
        """The attempt that runs, or a new one."""
        package = _digest(folder, command)
        attempts = jobs.attempts(self.name)
        last = attempts[-1] if attempts else None
        if last is not None and not last.ended:
            say(f"{last.name} is at work already")
            if last.package != package:
                say("warning: it was submitted with other settings, which hold until it ends or is stopped (--stop)")
            return last
        metadata = {"job": self._job.name, "output": self._job.output.uri, "package": package}
        attempt = jobs.submit(self.name, last.number + 1 if last else 1, command, folder, metadata)
        say(f"submitted {attempt.name} to {jobs.address}" + (f"; the last attempt {_ending(last)}" if last else ""))
        return attempt


def submission_name(job: Job, run: str) -> str:
    """The submission id of a job's run ('' without a schedule), without the number of the attempt."""
    words = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:40]
    output = hashlib.sha256(job.output.uri.rstrip("/").encode()).hexdigest()[:8]
    return "-".join(filter(None, ["specdiff", words, output, run.replace(":", "")]))


def outcome(attempt: Attempt) -> tuple[int, str]:
    """Exit status of an attempt that has ended, and what there is to say that the driver did not say itself."""
    code = attempt.exit_code
    if attempt.status == "STOPPED":
        return 3, "was stopped; submit the job again, and it goes on"
    if code == 127:
        return 2, "did not start: `specdiff` is not installed on the cluster, or is not on the PATH of its machines"
    if code in (0, 1, 2, 3):
        return code, ""
    how = f"exit status {code}" if code is not None else attempt.message
    return 3, f"was ended from outside ({how}); submit the job again, and it goes on"


def _ending(attempt: Attempt) -> str:
    return f"({attempt.number}) {attempt.status.lower()}"


def _digest(folder: str, command: str) -> str:
    digest = hashlib.sha256(command.encode())
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
