"""Rows of a range that the job file gives in place of a manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.raw_rows import BATCH_ROWS, RawBatch
from pipeline.spec import RangeSpec


class RangeRows:
    """Rows counted up: seeds from `spec.seed`, labels in turn."""

    name = "manifest.range"
    local = None
    optional_columns = False

    def __init__(self, spec: RangeSpec, num_classes: int | None) -> None:
        """Raises UsageError for labels that the target does not have, or needs."""
        self._spec = spec
        self._fixed = {} if spec.guidance_scale is None else {"guidance_scale": repr(spec.guidance_scale)}
        self._labels = spec.labels
        if spec.labels is None and num_classes is not None:
            raise UsageError(
                "manifest.range: the target needs labels; set manifest.range.labels, for example to `cycle`"
            )
        if spec.labels is not None and num_classes is None:
            raise UsageError("manifest.range.labels: the target has no classes; leave the labels out")
        if spec.labels == "cycle":
            self._labels = list(range(num_classes or 0))
        elif spec.labels is not None and max(spec.labels) >= (num_classes or 0):
            raise UsageError(
                f"manifest.range.labels: {max(spec.labels)} is not a class; they are 0 … {(num_classes or 0) - 1}"
            )

    def schema(self) -> Any:
        names = ("seed", *(["label"] if self._labels else []), *self._fixed)
        return pa.schema([(name, pa.string()) for name in names])

    def batches(self, schema: Any) -> Iterator[RawBatch]:
        for first in range(0, self._spec.count, BATCH_ROWS):
            rows = np.arange(first, min(first + BATCH_ROWS, self._spec.count), dtype=np.int64)
            columns = {"seed": pa.array(rows + self._spec.seed).cast(pa.string())}
            if self._labels:
                columns["label"] = pa.array(np.array(self._labels)[rows % len(self._labels)]).cast(pa.string())
            columns |= {name: pa.array([value] * len(rows)) for name, value in self._fixed.items()}
            yield RawBatch(columns, rows)
