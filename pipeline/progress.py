"""How far a run is: a bar in a terminal, a plain line now and then in a log file."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm import tqdm

LINE_EVERY_S = 10.0


class Progress:
    """Images done, their rate, failures, workers, and the time left."""

    def __init__(self, total: int, done: int, stream: TextIO | None = None) -> None:
        """`total` rows to do in all, of which `done` were done before this run."""
        self._stream = stream or sys.stderr
        self._total, self._before, self._done = total, done, done
        self._failed = self._workers = 0
        self._began = time.monotonic()
        self._next_line = self._began + LINE_EVERY_S
        self._bar: tqdm[None] | None = None
        if self._stream.isatty():
            self._bar = tqdm(
                total=total, initial=done, unit="img", file=self._stream, dynamic_ncols=True, smoothing=0.05
            )

    def update(self, images: int, failed: int, workers: int) -> None:
        """Images and failed rows of this run so far, and workers that are at work now."""
        done = self._before + images + failed
        if self._bar is not None:
            self._bar.set_postfix_str(f"failed {failed}, workers {workers}", refresh=False)
            self._bar.update(done - self._done)
        self._done, self._failed, self._workers = done, failed, workers
        now = time.monotonic()
        if self._bar is None and now >= self._next_line:
            self._next_line = now + LINE_EVERY_S
            self._stream.write(self._line(now) + "\n")
            self._stream.flush()

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

    def _line(self, now: float) -> str:
        rate = (self._done - self._before) / (now - self._began)
        left = tqdm.format_interval((self._total - self._done) / rate) if rate else "?"
        return (
            f"{self._done}/{self._total} images, {rate:.2f} images/s, {self._failed} failed, "
            f"{self._workers} workers, {left} left"
        )
