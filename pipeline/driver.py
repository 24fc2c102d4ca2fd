"""The scheduler's hands: starts Ray actors, hands them work, and turns what they report into events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import ray
from ray.exceptions import RayError

from pipeline.cluster import check_machine, connected, death, elsewhere, gpus_per_worker
from pipeline.commits import CommitRecord, read_record
from pipeline.errors import Unavailable
from pipeline.inventory import Inventory
from pipeline.lease import LeasedStorage
from pipeline.meters import Meters
from pipeline.progress import Progress, Standing
from pipeline.scheduler import (
    Action,
    Assign,
    Event,
    GiveUp,
    LeaveAlone,
    Piece,
    PieceDone,
    PieceFailed,
    PieceReturned,
    Scheduler,
    StartWorker,
    Stop,
    StopWorker,
    TimePassed,
    WorkerDied,
    WorkerLate,
    WorkerPlaced,
    WorkerReady,
)
from pipeline.signals import Signals
from pipeline.spec import Job
from pipeline.words import counted
from pipeline.worker import Outcome, Place, Worker

POLL_S = 1.0  # a worker answers at once when a piece has ended, and after this time in any case
LATE_S = 20.0  # after which work no longer waits for a worker that is not ready
NO_WORKER_S = 900.0  # without as many workers as the job needs, after which the cluster counts as out of reach
STALL_S = 600.0  # without progress on work it has, after which a worker is killed; storage may need minutes to give up
GRACE_S = 20.0  # after a signal, for pieces that are begun; schedulers of clusters kill after 30 s


@dataclass
class Generated:
    """What a run made.

    Attributes:
        images, failed: rows that were committed with and without an image.
        seconds: from the first piece handed out to the last one committed.
        workers: most workers at work at a time.
        given_up: pieces that failed for good, with the reason.
        lost: images that were finished and never committed, by this driver's workers and those of earlier ones.
        out_of_time: `workers.max_hours` were over before everything was done.
    """

    images: int = 0
    failed: int = 0
    seconds: float = 0.0
    workers: int = 0
    given_up: list[tuple[Piece, str]] = field(default_factory=list)
    lost: int = 0
    out_of_time: bool = False

    def progress(self, unpublished: int) -> dict[str, Any]:
        """For the lease: how far this run is, and what would be lost with it."""
        rate = self.images / self.seconds if self.seconds else 0.0
        told = {"images": self.images, "images_per_s": rate, "seconds": self.seconds, "workers": self.workers}
        return {**told, "lost_images": self.lost, "unpublished": unpublished}


@dataclass
class _Member:
    """A worker as the driver sees it."""

    actor: Any
    started: float
    ready: bool = False
    late: bool = False
    unpublished: int = 0
    rounds: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    quiet_s: float = 0.0  # since it last made progress on work that it has


def generate(
    job: Job,
    storage: LeasedStorage,
    inventory: Inventory,
    batch_rows: int,
    limit: int,
    retry_failed: bool,
    signals: Signals,
) -> Generated:
    """Makes what the first `limit` rows lack, and adds it to the inventory.

    Raises:
        UsageError: this machine is the whole cluster and cannot hold a worker.
        Unavailable: the cluster is out of reach, no worker can be started, or another driver has taken over.
        Interrupted: a signal came before anything was begun.
    """
    set_out = time.time()
    with signals.held(), connected() as started:
        signals.install()
        signals.check()
        gpus = gpus_per_worker(job.workers.gpus)
        if started:
            check_machine(job.workers.threads, gpus)
        done = min(inventory.rows - inventory.missing, limit)
        with closing(Progress(limit, done)) as progress:
            pieces = inventory.pieces(limit, retry_failed)
            return Driver(job, storage, inventory, pieces, batch_rows, gpus, progress, set_out).generate(signals)


class Driver:
    """Makes the pieces of one run. Holds nothing that grows with them but their failures."""

    def __init__(
        self,
        job: Job,
        storage: LeasedStorage,
        inventory: Inventory,
        pieces: Iterator[Piece],
        batch_rows: int,
        gpus: float,
        progress: Progress,
        set_out: float,
    ) -> None:
        """`set_out`: when the run began, in seconds of UNIX time; the rest as for `generate`."""
        self._storage = storage
        self._inventory = inventory
        self._progress = progress
        self._minimum = job.workers.min or 1
        self._scheduler = Scheduler(
            pieces,
            workers=job.workers.max or job.workers.count,
            max_attempts=job.workers.max_attempts,
            # Two pieces ahead, and enough of them to fill the lanes where pieces are small.
            ahead=2 + job.sampler.lanes // job.output.shard_size,
        )
        self._actor: Any = ray.remote(Worker)
        self._needs = {"num_cpus": job.workers.threads, "num_gpus": gpus, "max_concurrency": 4}
        self._lease = storage.lease()
        self._arguments = (job, storage.uri, self._lease.number, batch_rows, "cuda:0" if gpus else "cpu", set_out)
        self._meters = Meters(job.name)
        self._steps = self._calls = 0.0  # of this run's images
        self._members: dict[int, _Member] = {}
        self._pending: dict[Any, int] = {}  # answers that are awaited → worker
        self._hosts: dict[str, str] = {}  # of the nodes that workers were on
        self._began: float | None = None
        self._last_ready = self._looked = time.monotonic()
        hours = job.workers.max_hours
        self._time_is_up = math.inf if hours is None else self._looked + 3600 * hours
        self._result = Generated(lost=self._lease.progress["lost_images"])

    def generate(self, signals: Signals) -> Generated:
        """Works until every piece is done or given up, or a signal has come and its grace is over.

        Raises:
            Unavailable: no worker can be started, none gets a device for long, or another driver has taken over.
        """
        scheduler = self._scheduler
        deadline: float | None = None
        try:
            self._perform(scheduler.start(time.monotonic()))
            while not scheduler.finished and (deadline is None or time.monotonic() < deadline):
                self._storage.lease().progress = self._result.progress(self._unpublished)
                now = TimePassed(time.monotonic())
                for event in chain([now], self._answers(), self._late(), self._stalled()):
                    self._perform(scheduler.handle(event))
                if signals.received is not None and deadline is None:
                    deadline = time.monotonic() + GRACE_S
                    self._begin_nothing_more("a second signal ends at once")
                if time.monotonic() > self._time_is_up and not self._result.out_of_time:
                    self._result.out_of_time = True
                    self._begin_nothing_more("workers.max_hours are over")
                if signals.urgent:
                    break
                self._show()
                self._check_enough_workers()
        finally:
            self._result.lost += self._unpublished
            for number in list(self._members):
                self._remove(number)
            self._lease.progress = self._result.progress(0)
            self._meters.show(workers_running=0, workers_pending=0)
        if scheduler.abandoned is not None:
            raise Unavailable(scheduler.abandoned)
        return self._result

    @property
    def _unpublished(self) -> int:
        """Rows that workers have finished, in pieces that are not committed."""
        return sum(member.unpublished for member in self._members.values())

    def _begin_nothing_more(self, why: str) -> None:
        self._progress.say(f"stopping, no more shards are begun: {why}")
        self._perform(self._scheduler.handle(Stop()))
        for member in self._members.values():
            member.actor.finish_begun.remote()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartWorker(worker=number, avoid=nodes):
                    options = {**self._needs, "scheduling_strategy": elsewhere(nodes)}
                    actor = self._actor.options(**options).remote(*self._arguments, time.time())
                    self._members[number] = _Member(actor, time.monotonic())
                    self._pending[actor.place.remote()] = number
                case StopWorker(worker=number):
                    self._remove(number)
                case Assign(worker=number, piece=piece, attempt=attempt):
                    self._began = self._began or time.monotonic()
                    self._members[number].actor.submit.remote(piece, attempt)
                case GiveUp(piece=piece, attempts=attempts, reason=reason):
                    self._result.given_up.append((piece, reason))
                    tried = counted(attempts, "attempt")
                    self._progress.say(f"shard {piece.shard} failed for good after {tried}: {reason}")
                case LeaveAlone(node=node, seconds=seconds):
                    host = self._hosts.get(node, node)
                    self._progress.say(f"{host} keeps failing and gets no work for {seconds:.0f} s")

    def _answers(self) -> Iterator[Event]:
        """Events from an answer that has come; waits for one, but not for long.

        Each event must be acted upon before the next is asked for.
        """
        arrived, _ = ray.wait(list(self._pending), timeout=POLL_S)
        for answer in arrived:
            number = self._pending.pop(answer, None)
            if number is None:  # an event before this one had the worker removed
                continue
            member = self._members[number]
            try:
                report = ray.get(answer)
            except RayError as error:
                yield self._died(number, death(error))
                continue
            if isinstance(report, Place):
                self._hosts[report.node] = report.host
                self._pending[member.actor.prepare.remote()] = number
                yield WorkerPlaced(number, report.node)
                continue
            if report is None:
                member.ready = True
                yield WorkerReady(number)
            else:
                if report.outcomes or report.rounds != member.rounds:
                    member.quiet_s = 0.0
                member.unpublished, member.rounds = report.unpublished, report.rounds
                self._advance(number, member, report.totals)
                for outcome in report.outcomes:
                    yield self._ended(number, outcome)
                if report.fault is not None and number in self._members:
                    yield self._died(number, report.fault)
            if number in self._members:
                self._pending[member.actor.poll.remote(POLL_S)] = number

    def _ended(self, number: int, outcome: Outcome) -> Event:
        piece = outcome.piece
        if outcome.kind == "returned":
            return PieceReturned(number, piece)
        if outcome.kind == "failed":
            self._progress.say(f"shard {piece.shard} failed: {outcome.reason}")
            self._meters.happened("shard_failures")
            self._lose(outcome.lost)
            return PieceFailed(number, piece, outcome.reason)
        if outcome.record is not None:
            self._count(outcome.record)
        return PieceDone(number, piece)

    def _count(self, record: CommitRecord) -> None:
        self._inventory.add(record)
        self._result.images += record.written
        self._result.failed += len(record.failed)
        self._result.seconds = time.monotonic() - (self._began or 0.0)
        self._meters.happened("shards")

    def _advance(self, number: int, member: _Member, totals: dict[str, float]) -> None:
        """A worker has told its totals anew."""
        self._meters.advance(number, member.totals, totals)
        self._steps += totals.get("steps", 0) - member.totals.get("steps", 0)
        self._calls += totals.get("sequential_calls", 0) - member.totals.get("sequential_calls", 0)
        member.totals = totals

    def _lose(self, images: int) -> None:
        self._result.lost += images
        self._meters.happened("images_lost", images)

    def _died(self, number: int, reason: str) -> Event:
        self._meters.happened("worker_deaths")
        done = tuple(filter(self._was_recorded, self._scheduler.pieces_of(number)))
        self._lose(max(self._members[number].unpublished - sum(len(piece.rows) for piece in done), 0))
        self._remove(number)
        self._progress.say(f"worker {number} died: {reason}")
        return WorkerDied(number, reason, done)

    def _was_recorded(self, piece: Piece) -> bool:
        """Whether a worker had done a piece when it died; if so, it counts as done."""
        try:
            record = read_record(self._storage, piece.shard, piece.revision)
        except Unavailable:  # then it is done once more, and that is found out
            return False
        if record is None or list(record.row_numbers) != list(piece.rows):
            return False
        self._count(record)
        return True

    def _remove(self, number: int) -> None:
        member = self._members.pop(number)
        ray.kill(member.actor)
        self._pending = {answer: other for answer, other in self._pending.items() if other != number}

    def _late(self) -> Iterator[Event]:
        for number, member in list(self._members.items()):
            if not (member.ready or member.late) and time.monotonic() - member.started > LATE_S:
                member.late = True
                self._progress.say(f"worker {number} has no device yet; going on with those that have one")
                yield WorkerLate(number)

    def _stalled(self) -> Iterator[Event]:
        now = time.monotonic()
        # A driver that was itself stopped knows nothing of the time in between.
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        for number, member in list(self._members.items()):
            if self._scheduler.pieces_of(number):
                member.quiet_s += passed
            if member.quiet_s > STALL_S:
                yield self._died(number, f"no progress for {STALL_S:.0f} s")

    def _check_enough_workers(self) -> None:
        """Of the workers that there is work for, as many as the job needs must be ready, or become so in time."""
        now = time.monotonic()
        ready = sum(member.ready for member in self._members.values())
        if ready >= min(self._minimum, len(self._members)):
            self._last_ready = now
        elif now - self._last_ready > NO_WORKER_S:
            raise Unavailable(
                f"{counted(ready, 'worker')} ready, of at least {self._minimum} that the job needs, for "
                f"{NO_WORKER_S / 60:.0f} minutes: the cluster has no free devices"
            )

    def _show(self) -> None:
        running = sum(member.ready for member in self._members.values())
        self._result.workers = max(self._result.workers, running)
        standing = Standing(
            self._result.images + self._unpublished,
            self._result.failed,
            running,
            len(self._members) - running,
            self._steps / self._calls if self._calls else None,
        )
        self._progress.update(standing)
        self._meters.show(
            workers_running=running,
            workers_pending=standing.pending,
            images_planned=self._progress.total,
            images_done=self._progress.done,
        )
