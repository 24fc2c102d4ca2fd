"""How far a run is: a bar in a terminal, a plain line now and then in a log file."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TextIO

from tqdm import tqdm

from pipeline.words import counted

FIRST_LINE_S, LINE_EVERY_S = 10.0, 30.0
RECENT_S = 60.0  # over which the rate is told: that of the whole run would hide a change, and start-up


@dataclass(frozen=True)
class Standing:
    """A run at a moment.

    Attributes:
        images, failed: rows of this run that have an image, committed or not, and that were tried in vain.
        running, pending: workers at work; workers that are starting or wait for a device.
        speedup: sequential speed-up of this run's images, None before the first.
    """

    images: int = 0
    failed: int = 0
    running: int = 0
    pending: int = 0
    speedup: float | None = None

    def __str__(self) -> str:
        said = [] if self.speedup is None else [f"speed-up {self.speedup:.2f}"]
        workers = counted(self.running, "worker") + (f" (+{self.pending} pending)" if self.pending else "")
        return ", ".join([*said, f"{self.failed} failed", workers])


class Progress:
    """Images done, their rate, speed-up, failures, workers, and the time left.

    Attributes:
        total, done: rows to do in all, and done by this run or before it.
    """

    def __init__(self, total: int, done: int, stream: TextIO | None = None) -> None:
        """`total` rows to do in all, of which `done` were done before this run."""
        self._stream = stream or sys.stderr
        self.total, self.done = total, done
        self._before = done
        self._began = time.monotonic()
        self._next_line = self._began + FIRST_LINE_S
        self._marks = [(self._began, done)]  # of the last minute: when, and rows done
        self._bar: tqdm[None] | None = None
        if self._stream.isatty():
            self._bar = tqdm(
                total=total,
                initial=done,
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} images{postfix}",
            )

    def update(self, standing: Standing) -> None:
        """Shows where this run stands; in a log file only every so often."""
        now = time.monotonic()
        done = self._before + standing.images + standing.failed
        if now - self._marks[-1][0] >= 1:
            self._marks.append((now, done))
        while now - self._marks[0][0] > RECENT_S and len(self._marks) > 2:
            self._marks.pop(0)
        told = f"{self._pace(now, done)}, {standing}"
        if self._bar is not None:
            self._bar.set_postfix_str(told, refresh=False)
            self._bar.update(done - self.done)
        elif now >= self._next_line:
            self._next_line = now + LINE_EVERY_S
            self.say(f"{done}/{self.total} images, {told}")
        self.done = done

    def say(self, text: str) -> None:
        """Prints a line without breaking the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _pace(self, now: float, done: int) -> str:
        since, before = self._marks[0]
        rate = max(done - before, 0) / (now - since) if now > since else 0.0
        left = tqdm.format_interval((self.total - done) / rate) if rate else "?"
        return f"{rate:.2f} images/s, {left} left"
