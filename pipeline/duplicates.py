"""Keys that a manifest holds twice, found in bounded memory: hashes go to files that are small enough to sort."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PARTITIONS = 64
_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8"), ("line", "<i8")])


@dataclass(frozen=True)
class Repeat:
    """A row whose key an earlier row has, and the first such row."""

    row: int
    line: int
    first_row: int
    first_line: int


@dataclass(frozen=True)
class Repeats:
    """All rows whose key an earlier row has.

    Attributes:
        count: their number.
        marks: int64 [rows], in a file: 1 + the first row with the same key, 0 where there is none; None if all are 0.
        shown: the first few.
    """

    count: int
    marks: NDArray[np.int64] | None
    shown: list[Repeat]


class KeyLog:
    """Records the key of every row on local disk, 32 bytes each.

    Two keys are held to be the same when 128 bits of their BLAKE2b hashes are: over 10⁸ keys, a false alarm has a
    probability of 10⁻²³.
    """

    def __init__(self, folder: str) -> None:
        self._paths = [os.path.join(folder, f"keys-{each:02d}") for each in range(_PARTITIONS)]
        self._files = [open(path, "wb") for path in self._paths]  # noqa: SIM115 (closed by `repeats`)
        self._rows = 0

    def add(self, keys: list[str | None], first_row: int, lines: NDArray[np.int64]) -> None:
        """Adds consecutive rows; a row without a key (None) repeats none."""
        self._rows = first_row + len(keys)
        present = np.array([each is not None for each in keys], bool)
        digests = [hashlib.blake2b(each.encode(), digest_size=16).digest() for each in keys if each is not None]
        hashes = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        records = np.empty(len(hashes), _RECORD)
        records["high"], records["low"] = hashes[:, 0], hashes[:, 1]
        records["row"] = first_row + np.flatnonzero(present)
        records["line"] = lines[present]
        partitions = records["high"] % _PARTITIONS
        records = records[np.argsort(partitions, kind="stable")]
        ends = np.cumsum(np.bincount(partitions.astype(np.int64), minlength=_PARTITIONS))
        for file, part in zip(self._files, np.split(records, ends[:-1]), strict=True):
            file.write(part.tobytes())

    def repeats(self, path: str, show: int) -> Repeats:
        """Ends the log and finds the repeats, of which the first `show` are listed; marks go to a file at `path`."""
        for file in self._files:
            file.close()
        marks: Any = None
        count = 0
        shown: list[Repeat] = []
        for partition in self._paths:
            again, first = _repeats(np.fromfile(partition, _RECORD))
            if not len(again):
                continue
            if marks is None:  # a sparse file: disk is used where there are repeats
                marks = np.memmap(path, np.int64, "w+", shape=(self._rows,))
            marks[again["row"]] = first["row"] + 1
            count += len(again)
            for at in np.argsort(again["row"])[:show]:
                numbers = (again["row"][at], again["line"][at], first["row"][at], first["line"][at])
                shown.append(Repeat(*map(int, numbers)))
        return Repeats(count, marks, sorted(shown, key=lambda each: each.row)[:show])


def _repeats(records: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(records whose hash an earlier row has, the record of the first row with that hash)."""
    records = records[np.lexsort((records["row"], records["low"], records["high"]))]
    begins = np.ones(len(records), bool)
    begins[1:] = (records["high"][1:] != records["high"][:-1]) | (records["low"][1:] != records["low"][:-1])
    firsts = np.maximum.accumulate(np.where(begins, np.arange(len(records)), 0))
    return records[~begins], records[firsts[~begins]]
