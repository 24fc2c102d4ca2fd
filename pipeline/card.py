"""The data set's card: what it is, what made it, and under which licence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipeline.commits import CommitRecord
from pipeline.output import read_document
from pipeline.storage import Storage


def card(storage: Storage, records: Sequence[CommitRecord]) -> dict[str, Any]:
    """What `job.json` and the records say of the set; of `job.json` nothing where there is none.

    Returns:
        ``rows``, ``bad_rows`` and ``manifest_digest``; ``created``; ``licence``, ``weights_sha256`` and ``shape`` of
        the target; ``identity``, the settings that decide the bytes; ``files``, ``bytes``; ``devices``, images by kind;
        ``made_by``, the different software that the records name.
    """
    document = read_document(storage) or {}
    manifest, target = document.get("manifest", {}), document.get("target", {})
    devices: Counter[str] = Counter()
    made_by: list[dict[str, str]] = []
    for record in records:
        devices[record.device] += record.written
        if record.software and record.software not in made_by:
            made_by.append(record.software)
    return {
        "rows": manifest.get("rows"),
        "bad_rows": manifest.get("bad"),
        "manifest_digest": manifest.get("digest"),
        "created": document.get("created"),
        "licence": target.get("licence"),
        "weights_sha256": target.get("weights_sha256"),
        "shape": target.get("shape"),
        "identity": document.get("identity", {}),
        "files": sum(bool(record.written) for record in records),
        "bytes": sum(record.bytes for record in records),
        "devices": dict(devices),
        "made_by": made_by,
    }
