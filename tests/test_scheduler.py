"""The scheduler against simulated workers that die, fail, hang at the start and come late."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

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

SIZE, NODES = 4, 3


def pieces(count: int) -> list[Piece]:
    return [Piece(shard, 0, range(shard * SIZE, (shard + 1) * SIZE)) for shard in range(count)]


def shards(actions: list[Action]) -> list[int]:
    """Shards that were handed out."""
    return [action.piece.shard for action in actions if isinstance(action, Assign)]


@dataclass
class World:
    """Workers that do what chance says; rows that are `poison` kill the worker that begins them, `refused` shards fail.

    Some die of chance right after they recorded a piece, before they could tell. On a node that is `broken`, nothing
    succeeds; there are 3 nodes with room for any number of workers.
    """

    scheduler: Scheduler
    chance: random.Random
    death: float
    poison: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    now: float = 0.0
    starting: dict[int, int] = field(default_factory=dict)  # worker → its node
    nodes: dict[int, int] = field(default_factory=dict)
    left_alone: dict[int, float] = field(default_factory=dict)  # node → until when
    queues: dict[int, list[Piece]] = field(default_factory=dict)
    assigned: Counter[Piece] = field(default_factory=Counter)
    done: Counter[Piece] = field(default_factory=Counter)
    given_up: Counter[Piece] = field(default_factory=Counter)
    most_in_flight: int = 0
    politeness: float = 0.0  # how often a broken node only fails, and does not kill

    def run(self) -> None:
        self.apply(self.scheduler.start(self.now))
        for _ in range(100_000):
            if self.scheduler.finished:
                return
            if self.chance.random() < 0.3:
                self.now += self.chance.expovariate(1 / 10)
                self.apply(self.scheduler.handle(TimePassed(self.now)))
                continue
            self.apply(self.scheduler.handle(self.event()))
        raise AssertionError("the job does not end")

    def event(self) -> Event:
        worker = self.chance.choice(sorted(self.starting.keys() | self.queues.keys()))
        if worker in self.starting:
            kind = self.chance.random()
            if kind < 0.2:
                return WorkerLate(worker)
            node = self.starting.pop(worker)
            self.apply(self.scheduler.handle(WorkerPlaced(worker, str(node))))
            if kind < 0.2 + self.death:
                return WorkerDied(worker, "did not start")
            self.queues[worker] = []
            self.nodes[worker] = node
            return WorkerReady(worker)
        queue = self.queues[worker]
        if queue and (self.nodes[worker] in self.broken or self.poison.intersection(queue[0].rows)):
            if self.nodes[worker] in self.broken and self.chance.random() < self.politeness:
                return PieceFailed(worker, queue.pop(0), "broken")
            del self.queues[worker]
            return WorkerDied(worker, "killed")
        if self.chance.random() < self.death:
            del self.queues[worker]
            recorded = tuple(
                piece for piece in queue[:1] if piece.shard not in self.refused and self.chance.random() < 0.5
            )
            self.done.update(recorded)
            return WorkerDied(worker, "killed", recorded)
        if not queue:
            return WorkerLate(worker)  # means nothing for a worker that is ready
        piece = queue.pop(0)
        if piece.shard in self.refused:
            return PieceFailed(worker, piece, "refused")
        self.done[piece] += 1
        self.left_alone.pop(self.nodes[worker], None)  # something succeeds there
        return PieceDone(worker, piece)

    def apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartWorker(worker=worker, avoid=avoid):
                    node = self.chance.randrange(NODES)
                    while str(node) in avoid and len(avoid) < NODES:
                        node = self.chance.randrange(NODES)
                    self.starting[worker] = node
                case LeaveAlone(node=name, seconds=seconds):
                    self.left_alone[int(name)] = self.now + seconds
                case StopWorker(worker=worker):
                    assert not self.queues.pop(worker, []), "a worker with work was stopped"
                    self.starting.pop(worker, None)
                case Assign(worker=worker, piece=piece):
                    shards = [each.shard for queue in self.queues.values() for each in queue]
                    assert piece.shard not in shards, "one shard in two places"
                    ended = [each for each in (self.done + self.given_up) if each.shard == piece.shard]
                    assert not {row for each in ended for row in each.rows} & set(piece.rows)
                    assert piece.revision == sum(each.shard == piece.shard for each in self.done), "no name twice"
                    self.assigned[piece] += 1
                    assert action.attempt == (self.assigned[piece] if len(piece.rows) == SIZE else 3)
                    assert self.now >= self.left_alone.get(self.nodes[worker], 0)
                    self.queues[worker].append(piece)
                case GiveUp(piece=piece):
                    self.given_up[piece] += 1
        self.most_in_flight = max(self.most_in_flight, sum(map(len, self.queues.values())))


def world(work: list[Piece], workers: int = 2, seed: int = 0, death: float = 0.0, **faults: Any) -> World:
    return World(Scheduler(iter(work), workers=workers, max_attempts=3), random.Random(seed), death, **faults)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    count=st.integers(0, 40),
    workers=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    death=st.sampled_from([0.0, 0.05, 0.3]),
    poison=st.sets(st.integers(0, 40 * SIZE - 1), max_size=6),
    refused=st.sets(st.integers(0, 39), max_size=4),
)
def test_every_row_ends_once(
    count: int, workers: int, seed: int, death: float, poison: set[int], refused: set[int]
) -> None:
    work = pieces(count)
    simulated = world(work, workers, seed, death, poison=poison, refused=refused)
    simulated.run()
    done, given_up = rows_of(simulated.done), rows_of(simulated.given_up)
    if simulated.scheduler.abandoned is None:
        assert sorted(done + given_up) == list(range(count * SIZE))
    assert all(times <= 3 for times in simulated.assigned.values())
    assert not set(done) & set(given_up)
    assert simulated.most_in_flight <= workers * 3
    if not death:
        bad = {row for row in range(count * SIZE) if row in poison or row // SIZE in refused}
        assert set(given_up) == bad, "a row that harms nobody is done, whatever it was beside"


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    workers=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    politeness=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_node_on_which_nothing_succeeds_costs_no_row(workers: int, seed: int, politeness: float) -> None:
    simulated = world(pieces(60), workers, seed, broken={1}, politeness=politeness)
    simulated.run()
    assert simulated.scheduler.abandoned is None
    assert not simulated.given_up
    assert sorted(rows_of(simulated.done)) == list(range(60 * SIZE))


class Alone:
    """A scheduler with one worker at a time, on one node, whose every piece fails unless told otherwise."""

    def __init__(self, count: int, max_attempts: int) -> None:
        self.scheduler = Scheduler(iter(pieces(count)), workers=1, max_attempts=max_attempts, ahead=0)
        self.now = 0.0
        self.rests: list[float] = []
        self.actions = self.scheduler.start(self.now)

    def run(self, failures: int) -> Iterator[Assign]:
        """The pieces handed out; the first so many fail. Time goes on by a second where nothing happens."""
        while not self.scheduler.finished:
            if not self.actions:
                self.now += 1
                self.actions += self.scheduler.handle(TimePassed(self.now))
                continue
            match self.actions.pop(0):
                case StartWorker(worker=worker):
                    self.actions += self.scheduler.handle(WorkerPlaced(worker, "node"))
                    self.actions += self.scheduler.handle(WorkerReady(worker))
                case LeaveAlone(node="node", seconds=seconds):
                    self.rests.append(seconds)
                case Assign() as assign:
                    yield assign
                    failures -= 1
                    failed = PieceFailed(assign.worker, assign.piece, "no space")
                    ended = failed if failures >= 0 else PieceDone(assign.worker, assign.piece)
                    self.actions += self.scheduler.handle(ended)


def test_a_piece_that_fails_is_tried_again_after_longer_and_longer() -> None:
    alone = Alone(count=1, max_attempts=5)
    begun = [alone.now for _ in alone.run(failures=5)]
    assert [late - early for early, late in pairwise(begun)] == [5, 20, 80, 300]


def test_a_node_that_keeps_failing_is_left_alone_for_longer_and_longer() -> None:
    """It is the only one, so that new workers come to it again; they get nothing before the rest is over."""
    alone = Alone(count=12, max_attempts=2)
    begun = [alone.now for _ in alone.run(failures=5)]
    assert alone.rests == [30, 60, 120], "and the success that follows ends it"
    waits = [late - early for early, late in pairwise(begun)]
    assert waits == [0, 0, 30, 60, 120, *[0] * (len(waits) - 5)]


def test_a_job_of_which_nothing_succeeds_is_abandoned() -> None:
    alone = Alone(count=10**6, max_attempts=2)
    assert len(list(alone.run(failures=10**6))) == 7
    assert alone.scheduler.abandoned == "nothing succeeds any more: no space"


def test_workers_are_replaced_away_from_a_node_that_keeps_failing() -> None:
    scheduler = Scheduler(iter(pieces(100)), workers=3, max_attempts=3, ahead=0)
    scheduler.start()
    for worker, node in enumerate(("bad", "bad", "good")):
        scheduler.handle(WorkerPlaced(worker, node))
    scheduler.handle(WorkerReady(0))
    scheduler.handle(WorkerReady(2))
    actions: list[Action] = []
    for _ in range(3):
        (piece,) = scheduler.pieces_of(0)
        actions = scheduler.handle(PieceFailed(0, piece, "no space"))
    assert actions[:3] == [LeaveAlone("bad", 30), StopWorker(0), StopWorker(1)]
    assert actions[3:] == [StartWorker(3, ("bad",)), StartWorker(4, ("bad",))]


def rows_of(ended: Counter[Piece]) -> list[int]:
    return [row for piece in ended.elements() for row in piece.rows]


def test_a_row_that_kills_is_found_by_halving() -> None:
    work = [Piece(0, 2, (3, 5, 8, 9, 11), retry=True)]
    scheduler = Scheduler(iter(work), workers=1, max_attempts=1)
    actions, worker = scheduler.start(), 0
    done, given_up = [], []
    while not scheduler.finished:
        match actions.pop(0):
            case StartWorker(worker=worker):
                actions += scheduler.handle(WorkerReady(worker))
            case Assign(piece=piece):
                if 8 in piece.rows:
                    actions += scheduler.handle(WorkerDied(worker, "killed"))
                else:
                    done.append(piece)
                    actions += scheduler.handle(PieceDone(worker, piece))
            case GiveUp(piece=piece):
                given_up.append(piece)
    given_up += [action.piece for action in actions if isinstance(action, GiveUp)]
    assert done == [Piece(0, 2, (3, 5), retry=True), Piece(0, 3, (9, 11), retry=True)]
    assert given_up == [Piece(0, 3, (8,), retry=True)]


def test_case_9_a_shard_that_kills_its_worker_once() -> None:
    work = pieces(6)
    simulated = world(work, workers=2, poison={2 * SIZE})
    event = simulated.event

    def once() -> Event:
        happened = event()
        if isinstance(happened, WorkerDied):
            simulated.poison.clear()
        return happened

    simulated.event = once  # type: ignore[method-assign]
    simulated.run()
    assert simulated.done == Counter(work)
    assert simulated.assigned[work[2]] == 2


def test_workers_are_kept_two_pieces_ahead_and_work_is_shared_at_the_end() -> None:
    scheduler = Scheduler(iter(pieces(20)), workers=2, max_attempts=3)
    assert scheduler.start() == [StartWorker(0), StartWorker(1)]
    assert shards(scheduler.handle(WorkerReady(0))) == [0, 1, 2]

    scheduler = Scheduler(iter(pieces(4)), workers=2, max_attempts=3)
    scheduler.start()
    assert shards(scheduler.handle(WorkerReady(0))) == [0, 1], "two are kept for worker 1"
    assert shards(scheduler.handle(WorkerLate(1))) == [2], "but not when it is late"


def test_a_worker_that_has_nothing_to_do_is_released() -> None:
    scheduler = Scheduler(iter(pieces(1)), workers=3, max_attempts=3)
    assert scheduler.start() == [StartWorker(0)], "one piece needs one worker"
    piece = pieces(1)[0]
    assert scheduler.handle(WorkerReady(0)) == [Assign(0, piece, 1)]
    assert scheduler.handle(PieceDone(0, piece)) == [StopWorker(0)]
    assert scheduler.finished


def test_workers_that_never_start_end_the_job() -> None:
    scheduler = Scheduler(iter(pieces(9)), workers=2, max_attempts=3)
    waiting = scheduler.start()
    starts = 0
    while waiting:
        action = waiting.pop(0)
        assert isinstance(action, StartWorker)
        starts += 1
        waiting += scheduler.handle(WorkerDied(action.worker, "no weights"))
    assert scheduler.finished
    assert scheduler.abandoned == "no worker can be started: no weights"
    assert starts <= 13


def test_stop_begins_nothing_more_and_waits_for_what_is_begun() -> None:
    scheduler = Scheduler(iter(pieces(20)), workers=1, max_attempts=3)
    scheduler.start()
    scheduler.handle(WorkerReady(0))
    held = pieces(3)
    assert scheduler.handle(Stop()) == []
    assert scheduler.handle(PieceReturned(0, held[2])) == []
    assert scheduler.handle(PieceReturned(0, held[1])) == []
    assert not scheduler.finished
    assert scheduler.handle(PieceDone(0, held[0])) == []
    assert scheduler.finished


def test_pieces_are_pulled_as_they_are_needed() -> None:
    pulled = 0

    def endless() -> Iterator[Piece]:
        nonlocal pulled
        while True:
            pulled += 1
            yield Piece(pulled, 0, range(1))

    scheduler = Scheduler(endless(), workers=3, max_attempts=3)
    scheduler.start()
    scheduler.handle(WorkerReady(0))
    assert pulled <= 3 * 3 + 3


def test_events_of_workers_that_are_gone_change_nothing() -> None:
    scheduler = Scheduler(iter(pieces(3)), workers=1, max_attempts=3)
    scheduler.start()
    scheduler.handle(WorkerReady(0))
    scheduler.handle(WorkerDied(0, "killed"))
    assert scheduler.handle(PieceDone(0, pieces(1)[0])) == []
    assert scheduler.in_flight == 0
    assert not any(isinstance(action, GiveUp) for action in scheduler.handle(WorkerReady(1)))
