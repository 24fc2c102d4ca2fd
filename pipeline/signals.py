"""SIGINT and SIGTERM, as a fact to look at where work can be ended in order, and as an exception elsewhere."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """The process was told to end, and how to go on is said in the text."""

    def __init__(self, number: int, text: str = "interrupted; the same command goes on where it stopped") -> None:
        super().__init__(text)
        self.number = number

    @property
    def exit_code(self) -> int:
        """130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


class Signals:
    """While it is entered, a signal raises `Interrupted`; within `held` it is only noted.

    Attributes:
        received: the first signal that was noted.
        urgent: whether there was a second one.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.urgent = False
        self._held = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.install()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Takes the signals over, again if somebody else (Ray, as it starts) took them in the meantime."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets only the main thread handle signals
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.signal(number, self._handle)
            if handler != self._handle:
                self._before.setdefault(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """For code that must not be left in the middle, such as Ray's: an exception there is not passed on as it is.

        As Ray starts, it takes SIGTERM over and exits with its number; that is turned back into `Interrupted`.
        """
        self._held = True
        try:
            yield
        except SystemExit as error:
            if error.code != signal.SIGTERM:
                raise
            raise Interrupted(signal.SIGTERM) from None
        finally:
            self._held = False

    def check(self) -> None:
        """Raises Interrupted where a signal was noted."""
        if self.received is not None:
            raise Interrupted(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            raise Interrupted(number)
        self.urgent = self.received is not None
        self.received = self.received or number
