"""Who does what next: events in, actions out. No clock, no Ray, no I/O, so that it can be simulated as well as run.

The unit of work is a piece: rows of one shard that end in one commit record. Pieces are pulled from an iterator as
workers come to need them, so that a job of any length costs the same memory. Time is an event like the others.
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
class TimePassed:
    """What a clock shows that only goes forward, in seconds, 0 or more; every wait ends by such an event."""

    now: float


@dataclass(frozen=True)
class WorkerPlaced:
    """A worker that was started has its place, on a node of the cluster, and prepares itself there."""

    worker: int
    node: str


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


Event = (
    TimePassed | WorkerPlaced | WorkerReady | WorkerLate | WorkerDied | PieceDone | PieceFailed | PieceReturned | Stop
)


@dataclass(frozen=True)
class StartWorker:
    """`avoid`: nodes to use only where there is no room elsewhere."""

    worker: int
    avoid: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class LeaveAlone:
    """A node keeps failing, and gets no work for so long."""

    node: str
    seconds: float


Action = StartWorker | StopWorker | Assign | GiveUp | LeaveAlone


@dataclass
class _Work:
    """A piece and its past.

    Attributes:
        due: when it may be tried (again).
        rest: where the shard is halved, its other parts, to be done one after another once this one is: what a
            revision covers is decided only when those before it are recorded or given up.
    """

    piece: Piece
    attempts: int = 0
    due: float = 0.0
    rest: list[range | tuple[int, ...]] = field(default_factory=list)


@dataclass
class _Node:
    """A node that failed, and has done nothing well since.

    Attributes:
        failures: in a row.
        rests: how often it was left alone.
        rests_until: when it may be given work again.
    """

    failures: int = 0
    rests: int = 0
    rests_until: float = 0.0


@dataclass
class _Worker:
    node: str = ""  # unknown yet
    ready: bool = False
    late: bool = False
    alone: bool = False  # has a suspect on its last attempt, and must get nothing beside it
    held: dict[Piece, _Work] = field(default_factory=dict)


# Failures in a row after which a node is left alone. A piece that kills has as many attempts at most before it is
# suspected; it must not cost a good node its work.
_FAILURES = 3
_STARTS = 2 * _FAILURES  # times that each worker may fail to start, in a row, before no more are started

# Seconds of the first wait, factor from each to the next, longest wait.
_PIECE_WAITS = (5.0, 4.0, 300.0)
_NODE_RESTS = (30.0, 2.0, 3600.0)
_RESTS = 4  # of all nodes, in vain, after which the job is ended


class Scheduler:
    """Keeps workers supplied until every piece is done or has failed for good.

    A worker has at most `ahead` pieces waiting behind the one it works on, and near a job's end no more than its share
    of what is left. A piece that failed, or whose worker died, is tried again after a wait that grows, up to
    `max_attempts` times; its last attempt waits until there is nothing else to do and has a worker for itself, so that
    a piece that kills takes no other with it. A node where nothing but failures happened lately is left
    alone for a time that grows, and new workers go elsewhere if they can.
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
        self._nodes: dict[str, _Node] = {}
        self._now = 0.0
        self._next_worker = 0
        self._starts_failed = 0  # in a row
        self._start_failure = ""
        self._stopped = False
        self.abandoned: str | None = None  # why nothing can be done any more, where that ended the job

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

    def start(self, now: float = 0.0) -> list[Action]:
        """The first actions; `now` as in TimePassed."""
        self._now = now
        return self._next()

    def handle(self, event: Event) -> list[Action]:
        """What is to be done now. Events of a worker that is gone are ignored."""
        if isinstance(event, Stop):
            self._stopped = True
            return self._next()
        if isinstance(event, TimePassed):
            self._now = event.now
            return self._next()
        worker = self._workers.get(event.worker)
        if worker is None:
            return []
        actions: list[Action] = []
        match event:
            case WorkerPlaced(node=node):
                worker.node = node
            case WorkerReady():
                worker.ready, worker.late = True, False
                self._starts_failed = 0
            case WorkerLate():
                worker.late = not worker.ready
            case WorkerDied(reason=reason, done=done):
                del self._workers[event.worker]
                if not worker.ready:
                    self._starts_failed, self._start_failure = self._starts_failed + 1, reason
                actions += self._blame(worker, reason)
                for work in worker.held.values():
                    if work.piece in done:
                        self._go_on(work, work.piece.revision + 1)
                    else:
                        actions += self._failed(work, reason, suspect=True)
            case PieceDone(piece=piece) | PieceReturned(piece=piece) | PieceFailed(piece=piece):
                work_done = worker.held.pop(piece, None)
                if work_done is None:
                    return []
                if isinstance(event, PieceFailed):
                    actions += self._blame(worker, event.reason)
                    actions += self._failed(work_done, event.reason, suspect=False)
                elif isinstance(event, PieceReturned):
                    work_done.attempts -= 1
                    self._again.append(work_done)
                else:
                    self._nodes.pop(worker.node, None)
                    self._go_on(work_done, piece.revision + 1)
                worker.alone = worker.alone and bool(worker.held)
        return actions + self._next()

    def pieces_of(self, worker: int) -> list[Piece]:
        """What a worker holds."""
        return list(self._workers[worker].held) if worker in self._workers else []

    def _failed(self, work: _Work, reason: str, *, suspect: bool) -> list[Action]:
        piece, tried = work.piece, work.attempts
        if tried < self._max_attempts:
            last = tried == self._max_attempts - 1
            work.due = self._now + _growing(_PIECE_WAITS, tried)
            (self._suspects if last else self._again).append(work)
            return []
        half = len(piece.rows) // 2
        if suspect and half:
            work.rest += [piece.rows[half:], piece.rows[:half]]
            self._go_on(work, piece.revision)
            return []
        self._go_on(work, piece.revision)
        return [GiveUp(piece, tried, reason)]

    def _blame(self, worker: _Worker, reason: str) -> list[Action]:
        """Counts a failure against a worker's node, unless the piece is suspected, or the node is left alone already.

        Workers there that have nothing to do are replaced. If it is so with every node again and again, the cause is
        none of theirs, and the job is abandoned.
        """
        if not worker.node or worker.alone:
            return []
        actions: list[Action] = []
        node = self._nodes.setdefault(worker.node, _Node())
        if self._now >= node.rests_until:
            node.failures += 1
            if node.failures < max(_FAILURES, self._max_attempts):
                return []
            node.rests += 1
            rests = [self._nodes.get(other.node, _Node()).rests for other in self._workers.values() if not other.late]
            if node.rests > _RESTS and all(each > _RESTS for each in rests):
                self.abandoned = f"nothing succeeds any more: {reason}"
                return []
            seconds = _growing(_NODE_RESTS, node.rests)
            node.rests_until = self._now + seconds
            actions.append(LeaveAlone(worker.node, seconds))
        there = [number for number, other in self._workers.items() if other.node == worker.node and not other.held]
        return actions + self._stop_workers(there)

    def _resting(self) -> tuple[str, ...]:
        return tuple(name for name, node in self._nodes.items() if self._now < node.rests_until)

    def _go_on(self, work: _Work, revision: int) -> None:
        """Takes up the next part of a shard that was halved, which has the last attempt left."""
        if work.rest:
            piece = replace(work.piece, revision=revision, rows=work.rest.pop())
            self._suspects.appendleft(_Work(piece, self._max_attempts - 1, rest=work.rest))

    def _waiting(self) -> int:
        """Pieces that no worker holds; of those not yet pulled, as many as could be handed out at once."""
        wanted = self._count * (self._ahead + 1) - len(self._fresh)
        self._fresh.extend(_Work(piece) for piece in islice(self._pieces, max(wanted, 0)))
        return len(self._fresh) + len(self._again) + len(self._suspects)

    def _next(self) -> list[Action]:
        if self._stopped or self.abandoned is not None:
            return []
        actions = self._assign()
        if self._waiting():
            return actions + self._start_workers()
        return actions + self._stop_workers([number for number, worker in self._workers.items() if not worker.held])

    def _assign(self) -> list[Action]:
        actions: list[Action] = []
        resting = self._resting()
        while waiting := self._waiting():
            present = {n: each for n, each in self._workers.items() if not each.late and each.node not in resting}
            share = -(-(waiting + self.in_flight) // max(len(present), 1))
            limit = min(self._ahead + 1, share)
            free = [n for n, each in present.items() if each.ready and not each.alone and len(each.held) < limit]
            if not free:
                return actions
            # Where nothing failed first: what is tried again is then rarely tried where it failed.
            number = min(free, key=lambda n: (self._workers[n].node in self._nodes, len(self._workers[n].held)))
            worker = self._workers[number]
            work = self._take(self._again) or self._take(self._fresh)
            if work is None and not worker.held:
                work = self._take(self._suspects)
                worker.alone = work is not None
            if work is None:
                return actions
            work.attempts += 1
            worker.held[work.piece] = work
            actions.append(Assign(number, work.piece, work.attempts))
        return actions

    def _take(self, queue: deque[_Work]) -> _Work | None:
        """The first that is due, out of a queue."""
        work = next((work for work in queue if work.due <= self._now), None)
        if work is not None:
            queue.remove(work)
        return work

    def _start_workers(self) -> list[Action]:
        if self._starts_failed >= _STARTS * self._count:
            if not self._workers:
                self.abandoned = f"no worker can be started: {self._start_failure}"
            return []
        busy = sum(bool(worker.held) for worker in self._workers.values())
        actions: list[Action] = []
        while len(self._workers) < min(self._count, busy + self._waiting()):
            self._workers[self._next_worker] = _Worker()
            actions.append(StartWorker(self._next_worker, self._resting()))
            self._next_worker += 1
        return actions

    def _stop_workers(self, numbers: list[int]) -> list[Action]:
        for number in numbers:
            del self._workers[number]
        return [StopWorker(number) for number in numbers]


def _growing(waits: tuple[float, float, float], time: int) -> float:
    """Seconds of the wait for the `time`-th time, from 1."""
    first, factor, longest = waits
    return min(first * factor ** min(time - 1, 32), longest)
