"""The actor that owns one device: rows in, committed files out.

Three threads share the work. The caller's reads the rows of a new piece; the sampling thread keeps the lanes full,
taking the next piece's rows while the last rows of the one before are still in progress; the background thread decodes
latents, encodes images and publishes finished pieces, so that sampling never waits for them. What is held is bounded by
the pieces submitted.
"""

from __future__ import annotations

import platform
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import ray
import torch
from numpy.typing import NDArray

import specdiff
from pipeline.commits import CommitRecord, FailedRow
from pipeline.encoding import encode, pixel_sha256
from pipeline.errors import PipelineError
from pipeline.lease import check_not_superseded
from pipeline.manifest import read_rows, to_requests
from pipeline.publish import Publication, Taken, publish
from pipeline.rowchecks import ERROR
from pipeline.scheduler import Piece
from pipeline.scratch import scratch_file
from pipeline.shard import StoredImage
from pipeline.software import software
from pipeline.spec import Job
from pipeline.stopwatch import Stopwatch, process_age
from pipeline.storage import Storage
from pipeline.work import Work, peak_device_memory, peak_memory
from specdiff import Request, Run, Sample, Stats
from specdiff.clock import clocked

SAMPLING = ("network", "coupling", "idle")  # seconds of the sampling thread, by the names of `Work`
BESIDE = ("decoding", "encoding", "upload")  # and of the background thread
SECONDS = (*SAMPLING, *BESIDE, "start")
_LISTS = tuple(f.name for f in fields(Stats) if f.name.endswith(("_by_position", "_by_part")))


@dataclass(frozen=True)
class Place:
    """A node of the cluster, by Ray's name for it, and its host."""

    node: str
    host: str


@dataclass(frozen=True)
class Outcome:
    """What became of a piece.

    Attributes:
        kind: `committed`; `unchanged`, where rows that had failed failed again; `failed`; or `returned` untouched.
        record: of a committed piece.
        reason: of a failed one.
        lost: images of a failed one that were finished.
    """

    piece: Piece
    kind: Literal["committed", "unchanged", "failed", "returned"]
    record: CommitRecord | None = None
    reason: str = ""
    lost: int = 0


@dataclass(frozen=True)
class Report:
    """What happened since the last report, and how far the worker is.

    Attributes:
        outcomes: pieces that ended.
        unpublished: rows that are finished, in pieces that have not ended.
        rounds: rounds of the lanes since the worker began, a sign of life.
        fault: why sampling has ended; the worker is of no more use.
        totals: counts and seconds since the worker began, for the driver's meters (`meters.COUNTERS`).
    """

    outcomes: tuple[Outcome, ...]
    unpublished: int
    rounds: int
    fault: str | None
    totals: dict[str, float] = field(default_factory=dict)


@dataclass
class _Open:
    """A piece in progress.

    Attributes:
        slots: a result for each row, in order: None until there is one, and for bad rows.
        waiting: rows that no lane has had yet, by slot.
        missing: good rows without a result.
        began: when its first row was begun, in seconds of UNIX time.
        spent: seconds of the sampling thread, up to the piece's end, since the worker began.
    """

    piece: Piece
    attempt: int
    rows: pa.Table
    slots: list[Future[StoredImage | FailedRow] | FailedRow | None]
    waiting: deque[tuple[int, Request]]
    missing: int
    skipped: int
    began: float
    stats: Stats = field(default_factory=Stats)
    spent: dict[str, float] = field(default_factory=dict)

    def number(self, slot: int) -> int:
        """The row's number in the manifest."""
        return self.piece.rows[slot]


class Worker:
    """Samples, encodes and commits the pieces it is given. Its methods may be called from several threads."""

    def __init__(self, job: Job, uri: str, lease: int, batch_rows: int, device: str, run: float, asked: float) -> None:
        """Uses no device yet. Nothing is ever written once there is a lease beyond number `lease`.

        Args:
            run, asked: when the run began, and when it asked for this worker, in seconds of UNIX time.
        """
        self._job = job
        self._storage = Storage(uri)
        self._lease = lease
        self._batch_rows = batch_rows
        self._device = device
        self._asked = asked
        self._name = uuid.uuid4().hex
        self._run_began = run
        self._recorded = dict.fromkeys(SECONDS, 0.0)  # seconds that commit records tell of; of the background thread

        self._changed = threading.Condition()  # guards all that follows
        self._queue: deque[_Open] = deque()  # pieces with waiting rows
        self._lanes: dict[str, tuple[_Open, int]] = {}  # key → piece and slot
        self._outcomes: list[Outcome] = []
        self._unpublished = self._rounds = 0
        self._totals: defaultdict[str, float] = defaultdict(float)  # counts and seconds since the worker began
        self._ending = False
        self._fault: str | None = None

        # Of the sampling thread alone: finished samples, each with its row's number and what is to hold its image.
        self._undecoded: list[tuple[Sample, int, Future[StoredImage | FailedRow]]] = []
        # Threads for the decoder, too: their number belongs to the thread that calls the network.
        self._background = ThreadPoolExecutor(
            1, "publish", initializer=torch.set_num_threads, initargs=(job.workers.threads,)
        )

    def place(self) -> Place:
        """Where the worker is."""
        return Place(ray.get_runtime_context().get_node_id(), platform.node())

    def prepare(self) -> None:
        """Builds target and sampler on the device, and begins to wait for pieces.

        Raises:
            ValueError: the sampler refuses the job's settings.
        """
        self._sampler = sampler_of(self._job, self._batch_rows, self._device)
        self._clocked = clocked(self._sampler.target)
        self._sampler.target = self._clocked
        self._kind = device_kind(self._device)
        self._software = software()
        # A worker may have waited long for a device, and its process for a worker.
        self._start_s = max(0.0, min(time.time() - self._asked, process_age()))
        threading.Thread(target=self._run, name="sample", daemon=True).start()

    def submit(self, piece: Piece, attempt: int) -> None:
        """Adds a piece to the queue. Whatever goes wrong becomes the piece's outcome."""
        try:
            opened = self._open(piece, attempt)
        except Exception as error:
            self._end(Outcome(piece, "failed", reason=reason_of(error)))
            return
        if not opened.missing:
            self._background.submit(self._publish, opened)
            return
        with self._changed:
            if self._ending:
                self._outcomes.append(Outcome(piece, "returned"))
            else:
                self._queue.append(opened)
            self._changed.notify_all()

    def poll(self, timeout: float) -> Report:
        """What is new; waits up to `timeout` seconds for an outcome."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcomes or self._fault, timeout)
            outcomes, self._outcomes = tuple(self._outcomes), []
            return Report(outcomes, self._unpublished, self._rounds, self._fault, dict(self._totals))

    def finish_begun(self) -> None:
        """Returns every piece of which no row was begun, and those that are still to come; goes on with the others."""
        with self._changed:
            self._ending = True
            untouched = [opened for opened in self._queue if len(opened.waiting) == len(opened.slots) - opened.skipped]
            for opened in untouched:
                self._queue.remove(opened)
                self._outcomes.append(Outcome(opened.piece, "returned"))
            self._changed.notify_all()

    def _open(self, piece: Piece, attempt: int) -> _Open:
        first, last = piece.rows[0], piece.rows[-1]
        rows = read_rows(self._storage, first, last - first + 1)
        if len(piece.rows) < len(rows):
            rows = rows.take([row - first for row in piece.rows])
        requests = deque(to_requests(rows))
        return _Open(
            piece,
            attempt,
            rows,
            slots=[None] * len(rows),
            waiting=requests,
            missing=len(requests),
            skipped=len(rows) - len(requests),
            began=time.time(),
        )

    def _run(self) -> None:
        """The sampling thread."""
        try:
            # Here and not in __init__, as for the background thread.
            torch.set_num_threads(self._job.workers.threads)
            run = self._sampler.start()
            recorded = run.stats + Stats()
            stopwatch = Stopwatch(self._clocked)
            while True:
                with stopwatch.waiting():
                    taken = self._take(run.free, wait=not run.busy)
                settled = self._begin(run, taken) + [self._finish(sample) for sample in run.round()]
                ended = [opened for opened in settled if opened is not None]
                if ended or stopwatch.due:
                    stopwatch.read()
                    self._tell(run.stats, stopwatch)
                for opened in ended:
                    self._decode_finished()
                    opened.stats += _lane_counters(run.stats, recorded)
                    opened.spent = _seconds(stopwatch)
                    recorded = run.stats + Stats()
                    self._background.submit(self._publish, opened)
                with self._changed:
                    self._rounds += 1
        except Exception as error:
            with self._changed:
                self._fault = reason_of(error)
                self._changed.notify_all()

    def _tell(self, stats: Stats, stopwatch: Stopwatch) -> None:
        """Brings what the next report tells up to date."""
        counted = {
            "images": stats.samples,
            "steps": stats.steps,
            "sequential_calls": stats.calls,
            "rounds": stats.rounds,
            "network_calls": stats.batched_calls,
            "network_evaluations": stats.evaluations,
            "padded_rows": stats.padded_rows,
        }
        with self._changed:
            self._totals.update(counted | _seconds(stopwatch))

    def _take(self, free: int, wait: bool) -> list[tuple[_Open, int, Request]]:
        """Up to `free` rows for empty lanes; waits until there is one if told to."""
        taken: list[tuple[_Open, int, Request]] = []
        with self._changed:
            self._changed.wait_for(lambda: self._queue or not wait)
            while self._queue and len(taken) < free:
                opened = self._queue[0]
                if len(opened.waiting) == len(opened.slots) - opened.skipped:
                    opened.began = time.time()
                taken.append((opened, *opened.waiting.popleft()))
                if not opened.waiting:
                    self._queue.popleft()
        return taken

    def _begin(self, run: Run, taken: Sequence[tuple[_Open, int, Request]]) -> list[_Open | None]:
        """Puts rows into lanes; those that the target cannot serve fail. Returns pieces that this made whole."""
        try:
            run.submit([request for _, _, request in taken])
        except ValueError as error:
            if len(taken) > 1:  # find out which
                return [opened for each in taken for opened in self._begin(run, [each])]
            opened, slot, request = taken[0]
            return [self._settle(opened, slot, FailedRow(opened.number(slot), request.key, request.seed, str(error)))]
        self._lanes |= {request.key: (opened, slot) for opened, slot, request in taken}
        return []

    def _finish(self, sample: Sample) -> _Open | None:
        """Takes a sample out of its lane. Returns its piece if this made it whole."""
        opened, slot = self._lanes.pop(sample.key)
        if sample.latent is None:
            return self._settle(opened, slot, failed_row(sample, opened.number(slot)))
        stored: Future[StoredImage | FailedRow] = Future()
        self._undecoded.append((sample, opened.number(slot), stored))
        if len(self._undecoded) == self._sampler.decode_rows:
            self._decode_finished()
        return self._settle(opened, slot, stored)

    def _decode_finished(self) -> None:
        """Hands the samples that wait for their images to the background thread."""
        if self._undecoded:
            self._background.submit(self._store, self._undecoded)
            self._undecoded = []

    def _store(self, finished: Sequence[tuple[Sample, int, Future[StoredImage | FailedRow]]]) -> None:
        """In the background: decodes and encodes samples."""
        try:
            with self._timed("decoding"):
                decoded = self._sampler.decode([sample for sample, _, _ in finished])
            with self._timed("encoding"):
                for sample, (_, number, stored) in zip(decoded, finished, strict=True):
                    if sample.image is None:
                        self._add("image_failures", 1)
                        stored.set_result(failed_row(sample, number))
                        continue
                    stored.set_result(stored_image(sample.image, sample, self._job.output.image_format))
        except Exception as error:  # becomes that of their pieces
            for _, _, stored in finished:
                if not stored.done():
                    stored.set_exception(error)

    def _settle(self, opened: _Open, slot: int, result: Future[StoredImage | FailedRow] | FailedRow) -> _Open | None:
        opened.slots[slot] = result
        opened.missing -= 1
        with self._changed:
            self._unpublished += 1
            self._totals["image_failures"] += isinstance(result, FailedRow)
        return None if opened.missing else opened

    def _publish(self, opened: _Open) -> None:
        """In the background: commits a piece all of whose rows have a result."""
        try:
            outcome = self._commit(opened)
        except Exception as error:
            lost = sum(isinstance(each, Future) for each in opened.slots)
            outcome = Outcome(opened.piece, "failed", reason=reason_of(error), lost=lost)
        with self._changed:
            self._unpublished -= len(opened.slots) - opened.skipped
        self._end(outcome)

    def _commit(self, opened: _Open) -> Outcome:
        piece = opened.piece
        results = [each.result() if isinstance(each, Future) else each for each in opened.slots]
        images = {slot: each for slot, each in enumerate(results) if isinstance(each, StoredImage)}
        failed = tuple(each for each in results if isinstance(each, FailedRow))
        if piece.retry and not images:
            return Outcome(piece, "unchanged")
        record = CommitRecord(
            shard=piece.shard,
            revision=piece.revision,
            first_row=piece.rows[0],
            rows=len(piece.rows) if isinstance(piece.rows, range) else piece.rows,
            written=len(images),
            failed=failed,
            skipped=opened.skipped,
            file="",
            file_sha256="",
            bytes=0,
            attempt=opened.attempt,
            device=self._kind,
            software=self._software,
            counters=(opened.stats + self._counters(list(images.values()), len(failed))).to_dict(),
        )
        rows = opened.rows.drop_columns([ERROR]).take(pa.array(list(images), pa.int64()))
        began = time.perf_counter()
        try:
            check_not_superseded(self._storage, self._lease)
            work = self._work(opened)
            with scratch_file() as path:
                record = publish(Publication(self._storage, record, rows, list(images.values()), path, work, began))
            for name in SECONDS:
                self._recorded[name] += record.counters["work"][name]
            self._add("uploaded_bytes", record.bytes)
        except Taken:
            # Another driver was quicker. If it did the same rows, they are done.
            there = CommitRecord.from_json(self._storage.read(record.path).decode())
            if list(there.row_numbers) != list(record.row_numbers):
                raise
            record = there
        finally:
            self._add("upload_seconds", time.perf_counter() - began)
        return Outcome(piece, "committed", record)

    def _work(self, opened: _Open) -> Work:
        """What the worker has spent and no record tells of yet. In the background, before the piece is uploaded."""
        with self._changed:
            now = {name: self._totals[f"{name}_seconds"] for name in BESIDE}
        now |= {name: opened.spent.get(f"{name}_seconds", self._recorded[name]) for name in SAMPLING}
        now["start"] = self._start_s
        return Work(
            worker=self._name,
            run=self._run_began,
            began=opened.began,
            peak_memory=peak_memory(),
            peak_device_memory=peak_device_memory(self._device),
            **{name: now[name] - self._recorded[name] for name in SECONDS},
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._add(f"{name}_seconds", time.perf_counter() - began)

    def _add(self, total: str, amount: float) -> None:
        with self._changed:
            self._totals[total] += amount

    def _counters(self, images: Sequence[StoredImage], failed: int) -> Stats:
        """What single images add to the counters of their piece."""
        steps = len(self._sampler.target.transitions)
        rows = [Stats(1, 0, steps, each.rounds, each.calls, each.evaluations) for each in images]
        return sum(rows, Stats(failed=failed))

    def _end(self, outcome: Outcome) -> None:
        with self._changed:
            self._outcomes.append(outcome)
            self._changed.notify_all()


def sampler_of(job: Job, batch_rows: int, device: str) -> specdiff.Sampler:
    """The job's sampler. Raises ValueError where its settings are refused."""
    torch.backends.cudnn.deterministic = True
    target = specdiff.load_target(job.target.name, device=device, **job.target.settings())
    return specdiff.Sampler(target, **job.sampler.settings() | {"batch_rows": batch_rows})


def failed_row(sample: Sample, number: int) -> FailedRow:
    """A row without an image, and why."""
    return FailedRow(number, sample.key, sample.seed, sample.error or "there is no image")


def stored_image(pixels: NDArray[np.uint8], sample: Sample, image_format: str) -> StoredImage:
    """A sample as a data file holds it."""
    height, width, _ = pixels.shape
    data = encode(pixels, image_format)
    return StoredImage(data, width, height, sample.rounds, sample.calls, sample.evaluations, pixel_sha256(pixels))


def device_kind(device: str) -> str:
    """What the bytes of an image may depend on: the GPU's name, or the CPU's architecture and vector instructions."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def reason_of(error: BaseException) -> str:
    """One line for records and reports."""
    line = " ".join(str(error).split())
    if isinstance(error, PipelineError):
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _seconds(stopwatch: Stopwatch) -> dict[str, float]:
    return {f"{name}_seconds": getattr(stopwatch, name) for name in SAMPLING}


def _lane_counters(now: Stats, before: Stats) -> Stats:
    """What the lanes counted in common since `before`; counters of single images are zero.

    Pieces share rounds, so this says what was spent between two pieces' ends, not on one piece; its sum is exact.
    """

    def grown(name: str) -> list[Any]:
        return [a - b for a, b in zip(getattr(now, name), getattr(before, name), strict=True)]

    lists: dict[str, Any] = {name: grown(name) for name in _LISTS}
    return Stats(
        batched_calls=now.batched_calls - before.batched_calls,
        padded_rows=now.padded_rows - before.padded_rows,
        guidance_rows=now.guidance_rows - before.guidance_rows,
        **lists,
    )
