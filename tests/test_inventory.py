"""What is left to do, from any history of records."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commits import CommitRecord, FailedRow
from pipeline.inventory import Inventory
from pipeline.scheduler import Piece
from specdiff import Stats

RECORD = CommitRecord(
    shard=0,
    revision=0,
    first_row=0,
    rows=0,
    written=0,
    failed=(),
    skipped=0,
    file="data/x.parquet",
    file_sha256="",
    bytes=0,
    attempt=1,
    device="cpu",
)


def record(piece: Piece, failed: AbstractSet[int] = frozenset(), skipped: int = 0) -> CommitRecord:
    failures = tuple(FailedRow(row, str(row), row, "NaN") for row in piece.rows if row in failed)
    return replace(
        RECORD,
        shard=piece.shard,
        revision=piece.revision,
        first_row=piece.rows[0],
        rows=len(piece.rows) if isinstance(piece.rows, range) else piece.rows,
        written=len(piece.rows) - len(failures) - skipped,
        failed=failures,
        skipped=skipped,
        counters=Stats(samples=len(piece.rows)).to_dict(),
    )


def test_an_empty_set_lacks_every_shard() -> None:
    assert list(Inventory(10, 4).pieces(10, False)) == [
        Piece(0, 0, range(4)),
        Piece(1, 0, range(4, 8)),
        Piece(2, 0, range(8, 10)),
    ]


def test_the_rest_of_a_shard_cut_short_is_its_next_file() -> None:
    inventory = Inventory(10, 4)
    assert list(inventory.pieces(6, False)) == [Piece(0, 0, range(4)), Piece(1, 0, range(4, 6))]
    for piece in list(inventory.pieces(6, False)):
        inventory.add(record(piece))
    assert list(inventory.pieces(6, False)) == []
    assert inventory.missing == 4
    assert list(inventory.pieces(10, False)) == [Piece(1, 1, (6, 7)), Piece(2, 0, range(8, 10))]


def test_failed_rows_are_tried_again_only_if_asked() -> None:
    inventory = Inventory(8, 4)
    for piece in list(inventory.pieces(8, False)):
        inventory.add(record(piece, failed={1, 2}, skipped=0))
    assert (inventory.written, inventory.failed, inventory.missing) == (6, 2, 0)
    assert inventory.flawed == {0}
    assert list(inventory.pieces(8, False)) == []
    (again,) = inventory.pieces(8, True)
    assert again == Piece(0, 1, (1, 2), retry=True)
    inventory.add(record(again, failed={2}))
    assert (inventory.written, inventory.failed, inventory.missing) == (7, 1, 0)
    assert list(inventory.pieces(8, True)) == [Piece(0, 2, (2,), retry=True)]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 40),
    size=st.integers(1, 12),
    runs=st.lists(
        st.tuples(st.integers(1, 40), st.booleans(), st.sets(st.integers(0, 39)), st.integers(0, 5)), max_size=6
    ),
)
def test_any_sequence_of_runs_ends_with_every_row_once(
    rows: int, size: int, runs: list[tuple[int, bool, set[int], int]]
) -> None:
    records: list[CommitRecord] = []
    inventory = Inventory(rows, size)
    for limit, retry, failing, lost in runs:
        pieces = list(inventory.pieces(limit, retry))
        for piece in pieces[: max(0, len(pieces) - lost)]:  # the last ones are lost in a crash
            records.append(record(piece, failed=failing))
            inventory.add(records[-1])
        inventory = Inventory(rows, size)
        for each in sorted(records, key=lambda each: (each.shard, each.revision)):
            inventory.add(each)
    for piece in list(inventory.pieces(rows, True)):
        records.append(record(piece))
        inventory.add(records[-1])
    written = [row for each in records for row in each.row_numbers if row not in {f.row for f in each.failed}]
    assert sorted(written) == list(range(rows))
    assert (inventory.written, inventory.failed, inventory.missing) == (rows, 0, 0)
    assert list(inventory.pieces(rows, True)) == []
    assert inventory.stats.samples == sum(each.counters["samples"] for each in records)
