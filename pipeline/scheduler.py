"""Who does what next: events in, actions out. No clock, no Ray, no I/O, so that it can be simulated as well as run.

The unit of work is a piece: rows of one shard that end in one commit record. Pieces are pulled from an iterator as
workers come to need them, so that a job of any length costs the same memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice


@dataclass(frozen=True)
class Piece:
    """Rows of one shard that are done together.

    Attributes:
        shard: number of the shard.
        revision: 0 for the shard's first file, K for its file rK.
        rows: numbers of the rows, rising.
        retry: all of them failed before; if they fail again, nothing is recorded.
    """

    shard: int
    revision: int
    rows: range | tuple[int, ...]
    retry: bool = False


@dataclass(frozen=True)
class WorkerReady:
    """A worker that was started can take work."""

    worker: int


@dataclass(frozen=True)
class WorkerLate:
    """A worker has not become ready for long: it waits for a device, and work must not wait for it."""

    worker: int


@dataclass(frozen=True)
class WorkerDied:
    """`done`: pieces that it had recorded, and did not live to tell."""

    worker: int
    reason: str
    done: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class PieceDone:
    worker: int
    piece: Piece


@dataclass(frozen=True)
class PieceFailed:
    """A piece came to nothing, and its worker lives."""

    worker: int
    piece: Piece
    reason: str


@dataclass(frozen=True)
class PieceReturned:
    """A worker gave a piece back untouched, after it was told to stop."""

    worker: int
    piece: Piece


@dataclass(frozen=True)
class Stop:
    """No more work is to be begun."""


Event = WorkerReady | WorkerLate | WorkerDied | PieceDone | PieceFailed | PieceReturned | Stop


@dataclass(frozen=True)
class StartWorker:
    worker: int


@dataclass(frozen=True)
class StopWorker:
    """There is nothing left that this worker could do."""

    worker: int


@dataclass(frozen=True)
class Assign:
    worker: int
    piece: Piece
    attempt: int


@dataclass(frozen=True)
class GiveUp:
    """A piece has failed for good."""

    piece: Piece
    attempts: int
    reason: str


Action = StartWorker | StopWorker | Assign | GiveUp


@dataclass
class _Work:
    """A piece and its past.

    Attributes:
        rest: where the shard is halved, its other parts, to be done one after another once this one is: what a
            revision covers is decided only when those before it are recorded or given up.
    """

    piece: Piece
    attempts: int = 0
    rest: list[range | tuple[int, ...]] = field(default_factory=list)


@dataclass
class _Worker:
    ready: bool = False
    late: bool = False
    alone: bool = False  # has a suspect on its last attempt, and must get nothing beside it
    held: dict[Piece, _Work] = field(default_factory=dict)


_STARTS = 3  # times that each worker may fail to start, in a row, before no more are started


class Scheduler:
    """Keeps workers supplied until every piece is done or has failed for good.

    A worker has at most `ahead` pieces waiting behind the one it works on, and near a job's end no more than its share
    of what is left. A piece whose worker died is tried again, up to `max_attempts` times; its last attempt waits until
    there is nothing else to do and has a worker for itself, so that a piece that kills takes no other with it.
    """

    def __init__(self, pieces: Iterator[Piece], *, workers: int, max_attempts: int, ahead: int = 2) -> None:
        self._pieces = pieces
        self._count = workers
        self._max_attempts = max_attempts
        self._ahead = ahead
        self._fresh: deque[_Work] = deque()  # pulled from the iterator, not yet tried
        self._again: deque[_Work] = deque()
        self._suspects: deque[_Work] = deque()
        self._workers: dict[int, _Worker] = {}
        self._next_worker = 0
        self._starts_failed = 0  # in a row
        self._start_failure = ""
        self._stopped = False
        self.abandoned: str | None = None  # why no worker can be had, where that ended the job

    @property
    def finished(self) -> bool:
        """Nothing is being worked on, and nothing more will be."""
        if any(worker.held for worker in self._workers.values()):
            return False
        return self._stopped or self.abandoned is not None or not self._waiting()

    @property
    def in_flight(self) -> int:
        """Pieces that workers hold."""
        return sum(len(worker.held) for worker in self._workers.values())

    def start(self) -> list[Action]:
        """The first actions."""
        return self._next()

    def handle(self, event: Event) -> list[Action]:
        """What is to be done now. Events of a worker that is gone are ignored."""
        if isinstance(event, Stop):
            self._stopped = True
            return self._next()
        worker = self._workers.get(event.worker)
        if worker is None:
            return []
        actions: list[Action] = []
        match event:
            case WorkerReady():
                worker.ready, worker.late = True, False
                self._starts_failed = 0
            case WorkerLate():
                worker.late = not worker.ready
            case WorkerDied(reason=reason, done=done):
                del self._workers[event.worker]
                if not worker.ready:
                    self._starts_failed, self._start_failure = self._starts_failed + 1, reason
                for work in worker.held.values():
                    if work.piece in done:
                        self._go_on(work, work.piece.revision + 1)
                    else:
                        actions += self._failed(work, reason, suspect=True)
            case PieceDone(piece=piece) | PieceReturned(piece=piece) | PieceFailed(piece=piece):
                work_done = worker.held.pop(piece, None)
                worker.alone = worker.alone and bool(worker.held)
                if work_done is None:
                    return []
                if isinstance(event, PieceFailed):
                    actions += self._failed(work_done, event.reason, suspect=False)
                elif isinstance(event, PieceReturned):
                    work_done.attempts -= 1
                    self._again.append(work_done)
                else:
                    self._go_on(work_done, piece.revision + 1)
        return actions + self._next()

    def pieces_of(self, worker: int) -> list[Piece]:
        """What a worker holds."""
        return list(self._workers[worker].held) if worker in self._workers else []

    def _failed(self, work: _Work, reason: str, *, suspect: bool) -> list[Action]:
        piece, tried = work.piece, work.attempts
        if tried < self._max_attempts:
            last = tried == self._max_attempts - 1
            (self._suspects if suspect and last else self._again).append(work)
            return []
        half = len(piece.rows) // 2
        if suspect and half:
            work.rest += [piece.rows[half:], piece.rows[:half]]
            self._go_on(work, piece.revision)
            return []
        self._go_on(work, piece.revision)
        return [GiveUp(piece, tried, reason)]

    def _go_on(self, work: _Work, revision: int) -> None:
        """Takes up the next part of a shard that was halved, which has the last attempt left."""
        if work.rest:
            piece = replace(work.piece, revision=revision, rows=work.rest.pop())
            self._suspects.appendleft(_Work(piece, self._max_attempts - 1, work.rest))

    def _waiting(self) -> int:
        """Pieces that no worker holds; of those not yet pulled, as many as could be handed out at once."""
        wanted = self._count * (self._ahead + 1) - len(self._fresh)
        self._fresh.extend(_Work(piece) for piece in islice(self._pieces, max(wanted, 0)))
        return len(self._fresh) + len(self._again) + len(self._suspects)

    def _next(self) -> list[Action]:
        if self._stopped or self.abandoned is not None:
            return []
        actions = self._assign()
        return actions + (self._start_workers() if self._waiting() else self._stop_workers())

    def _assign(self) -> list[Action]:
        actions: list[Action] = []
        while waiting := self._waiting():
            present = sum(not worker.late for worker in self._workers.values())
            share = -(-(waiting + self.in_flight) // max(present, 1))
            limit = min(self._ahead + 1, share)
            free = [
                number
                for number, worker in self._workers.items()
                if worker.ready and not worker.alone and len(worker.held) < limit
            ]
            if not free:
                return actions
            number = min(free, key=lambda number: len(self._workers[number].held))
            worker = self._workers[number]
            if self._again or self._fresh:
                work = (self._again or self._fresh).popleft()
            elif not worker.held:
                work = self._suspects.popleft()
                worker.alone = True
            else:
                return actions
            work.attempts += 1
            worker.held[work.piece] = work
            actions.append(Assign(number, work.piece, work.attempts))
        return actions

    def _start_workers(self) -> list[Action]:
        if self._starts_failed >= _STARTS * self._count:
            if not self._workers:
                self.abandoned = self._start_failure
            return []
        busy = sum(bool(worker.held) for worker in self._workers.values())
        actions: list[Action] = []
        while len(self._workers) < min(self._count, busy + self._waiting()):
            self._workers[self._next_worker] = _Worker()
            actions.append(StartWorker(self._next_worker))
            self._next_worker += 1
        return actions

    def _stop_workers(self) -> list[Action]:
        idle = [number for number, worker in self._workers.items() if not worker.held]
        for number in idle:
            del self._workers[number]
        return [StopWorker(number) for number in idle]
