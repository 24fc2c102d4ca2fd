"""What the readers of manifest files share: a source of rows, and its rows as they are in the file.

Columns keep what the file says of their type. Those that the project reads itself (INPUT_COLUMNS) come as text from
every format, so that a wrong value can be shown as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BATCH_ROWS = 8192
# What the project reads itself, with the type of its normal form.
INPUT_COLUMNS = {
    "key": pa.string(),
    "seed": pa.int64(),
    "label": pa.int64(),
    "prompt": pa.string(),
    "negative_prompt": pa.string(),
    "guidance_scale": pa.float64(),
}
TEXT_ONLY = ("prompt", "negative_prompt")  # the other columns may be numbers in the file


@dataclass
class RawBatch:
    """Consecutive rows of one file.

    Attributes:
        columns: one array of `rows` values for each column of the schema asked for.
        lines: int64 [rows], where each row begins: line of a text file from 1, row of a Parquet file or range from 0.
        broken: offset → why a row could not be read; its values are null.
    """

    columns: dict[str, Any]
    lines: NDArray[np.int64]
    broken: dict[int, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.lines)


class Source(Protocol):
    """One file of a manifest, or a range."""

    name: str  # as errors call it
    optional_columns: bool  # whether a column that other files have may be absent

    @property
    def local(self) -> str | None:
        """The local file that is read; None for a range."""
        ...

    def schema(self) -> Any:
        """The columns (pa.Schema); a type of null means that nothing is known. Raises UsageError."""
        ...

    def batches(self, schema: Any) -> Iterator[RawBatch]:
        """The rows, with the columns and types of `schema`, which agrees with this source's own. Raises UsageError."""
        ...


def text_array(values: list[str | None], broken: dict[int, str]) -> Any:
    """A string array; rows whose text cannot be written as UTF-8 become broken and null."""
    try:
        return pa.array(values, pa.string())
    except (UnicodeEncodeError, pa.ArrowException):
        for offset, value in enumerate(values):
            if value is not None and not is_text(value):
                broken.setdefault(offset, "is not UTF-8 text")
        return pa.array([each if each is None or is_text(each) else None for each in values], pa.string())


def is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
