"""Manifests: what is read, what is refused and where, and that an output's manifest only ever grows."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import manifest_store
from pipeline.errors import Unavailable, UsageError
from pipeline.manifest import Manifest, normalise, read_rows, to_requests
from pipeline.manifest_store import BLOCK_ROWS, INDEX, first_difference, read_index, rechunked
from pipeline.spec import Job
from pipeline.storage import Storage
from specdiff.requests import Request
from specdiff.targets.base import TargetInfo

CLASSES = TargetInfo(
    name="classes",
    description="",
    shape=(1, 28, 28),
    num_classes=10,
    has_null_class=True,
    takes_prompts=False,
    steps=100,
    licence="MIT",
    weights_sha256=None,
)
NO_NULL_CLASS = replace(CLASSES, name="no-null-class", has_null_class=False)
PLAIN = replace(CLASSES, name="plain", num_classes=None, has_null_class=False)
PROMPTS = replace(PLAIN, name="prompts", takes_prompts=True)


def job(**manifest: Any) -> Job:
    return Job.model_validate(
        {"name": "test", "target": {"name": "test"}, "manifest": manifest, "output": {"uri": "unused"}}
    )


def refusal(info: TargetInfo, **manifest: Any) -> list[str]:
    """The lines of the message that refuses a manifest."""
    with pytest.raises(UsageError) as caught:
        normalise(job(**manifest), info)
    return [line.strip() for line in str(caught.value).splitlines()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def rows_of(info: TargetInfo, out: Storage, **manifest: Any) -> list[dict[str, Any]]:
    made = normalise(job(**manifest), info, out)
    table = read_rows(out, 0, made.rows + 10)
    assert len(table) == made.rows
    return list(table.to_pylist())


# Case 3: labels and targets that do not go together.


def test_case_3_labels_for_a_target_without_classes(here: Path) -> None:
    (here / "rows.csv").write_text("seed,label\n1,2\n")
    assert refusal(PLAIN, path="rows.csv") == [
        "rows.csv: column `label`: plain has no classes; take it out, or rename it to carry it along"
    ]
    assert "the target has no classes" in refusal(PLAIN, range={"count": 3, "labels": "cycle"})[0]


def test_case_3_label_that_is_no_class(here: Path) -> None:
    (here / "rows.csv").write_text("seed,label\n1,9\n2,10\n3,-1\n4,x\n5,\n")
    assert refusal(CLASSES, path="rows.csv")[1:] == [
        "rows.csv:3: label: 10 is not a class; they go from 0 to 9",
        "rows.csv:4: label: -1 is negative; they go from 0 to 9",
        "rows.csv:5: label: 'x' is not a whole number",
    ]
    assert refusal(NO_NULL_CLASS, path="rows.csv")[-1] == (
        "rows.csv:6: label: is empty, and the target has no null class"
    )
    assert refusal(CLASSES, range={"count": 3, "labels": [1, 12]}) == [
        "manifest.range.labels: 12 is not a class; they are 0 … 9"
    ]


def test_case_3_class_conditional_target_without_labels(here: Path) -> None:
    (here / "rows.csv").write_text("seed,lable\n1,2\n")
    assert refusal(CLASSES, path="rows.csv") == [
        "rows.csv: no column `label`, which classes needs; did you mean `label` by `lable`?"
    ]
    assert "set manifest.range.labels" in refusal(CLASSES, range={"count": 3})[0]


def test_prompts_and_targets(here: Path) -> None:
    (here / "rows.csv").write_text("seed,prompt,negative_prompt\n1,a cat,\n2,  ,blurred\n")
    assert refusal(PROMPTS, path="rows.csv")[1:] == ["rows.csv:3: prompt: is empty"]
    assert [line.split(";")[0] for line in refusal(PLAIN, path="rows.csv")] == [
        "rows.csv: column `prompt`: plain takes no prompts",
        "rows.csv: column `negative_prompt`: plain takes no prompts",
    ]
    assert "no column `prompt`, which prompts needs" in refusal(PROMPTS, range={"count": 3})[0]
    out = Storage("out")
    normalise(job(path="rows.csv", on_bad_row="skip"), PROMPTS, out)
    assert to_requests(read_rows(out, 0, 9)) == [(0, Request(key="000000000000", seed=1, prompt="a cat"))]


# Case 5: what is accepted, and what is refused with file and line.


def test_case_5_accepted(here: Path) -> None:
    content = '\ufeffkey,seed,label,note\r\n\r\na,0,3,"two\r\nlines"\r\n  \r\nb,1099511627776,,"a, ""b"""\r\nc,'
    (here / "rows.csv").write_bytes((content + f"{2**63 - 1}, 9 ,\r\n").encode())
    made = normalise(job(path="rows.csv"), CLASSES, Storage("out"))
    assert (made.rows, made.bad, made.problems) == (3, 0, [])
    assert made.columns.names == ["key", "seed", "label", "note"]
    assert read_rows(Storage("out"), 0, 9).to_pylist() == [
        {"key": "a", "seed": 0, "label": 3, "note": "two\r\nlines", "__error__": None},
        {"key": "b", "seed": 2**40, "label": None, "note": 'a, "b"', "__error__": None},
        {"key": "c", "seed": 2**63 - 1, "label": 9, "note": "", "__error__": None},
    ]


BAD = (
    "key,seed,prompt\n"
    "a,1,x\n"
    'b,2,"two\nlines"\n'
    "c,3,\n"
    "d,-1,x\n"
    "\n"
    "e,abc,x\n"
    "f,1.5,x\n"
    "a,4,x\n"
    f"g,{2**63},x\n"
    f"h,{10**30},x\n"
    "i,,x\n"
    ",5,x\n"
    "j,6\n"
    "k,7,x,y\n"
    'l,8,"x"y\n'
    "c,9,\n"
    "m,10,x\n"
)
BAD_LINES = [
    "bad.csv:5: prompt: is empty",
    "bad.csv:6: seed: -1 is negative; they go from 0 to 9223372036854775807",
    "bad.csv:8: seed: 'abc' is not a whole number",
    "bad.csv:9: seed: '1.5' is not a whole number",
    "bad.csv:10: key: 'a' is already in bad.csv:2",
    "bad.csv:11: seed: 9223372036854775808 is too large; they go from 0 to 9223372036854775807",
    f"bad.csv:12: seed: {10**30} is too large; they go from 0 to 9223372036854775807",
    "bad.csv:13: seed: is empty",
    "bad.csv:14: key: is empty",
    "bad.csv:15: 2 fields where the header has 3",
    "bad.csv:16: 4 fields where the header has 3",
    "bad.csv:17: not valid CSV: ',' expected after '\"'",
    "bad.csv:18: prompt: is empty",
    "bad.csv:18: key: 'c' is already in bad.csv:5",
]


def test_case_5_refused_all_at_once(here: Path) -> None:
    (here / "bad.csv").write_text(BAD)
    lines = refusal(PROMPTS, path="bad.csv")
    assert "14" in lines[0]
    assert "manifest.on_bad_row: skip" in lines[0]
    assert lines[1:] == BAD_LINES
    with pytest.raises(UsageError):
        normalise(job(path="bad.csv"), PROMPTS, Storage("out"))
    assert not (here / "out").exists()


def test_case_5_skipped(here: Path) -> None:
    (here / "bad.csv").write_text(BAD)
    made = normalise(job(path="bad.csv", on_bad_row="skip"), PROMPTS, Storage("out"))
    assert (made.rows, made.bad, made.problem_count) == (16, 13, 14)
    assert made.problems == BAD_LINES
    table = read_rows(Storage("out"), 0, 99)
    assert [(offset, request.key) for offset, request in to_requests(table)] == [(0, "a"), (1, "b"), (15, "m")]
    errors = table["__error__"].to_pylist()
    assert errors[6] == "key: 'a' is row 0's already"
    assert errors[14] == "prompt: is empty; key: 'c' is row 2's already"
    assert None not in table["key"].to_pylist()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Seed", "column `Seed`: did you mean `seed`?"),
        (" seed", "column ` seed`: did you mean `seed`?"),
        ("sede", "no column `seed`; did you mean `seed` by `sede`?"),
        ("number", "no column `seed`; the columns are: number"),
        ("seed,Key", "column `Key`: did you mean `key`?"),
        ("seed,image", "column `image`: the output has a column of this name; rename yours"),
        ("seed,SHA256", "column `SHA256`: the output has a column of this name; rename yours"),
        ("seed,__error__", "column `__error__`: the output has a column of this name; rename yours"),
        (
            "seed,guidance_scale",
            "column `guidance_scale`: plain has no null class to steer away from; take it out, or rename it to carry "
            "it along",
        ),
    ],
)
def test_case_5_refused_columns(here: Path, header: str, expected: str) -> None:
    (here / "rows.csv").write_text(f"{header}\n" + ",".join("1" for _ in header.split(",")) + "\n")
    assert refusal(PLAIN, path="rows.csv") == [f"rows.csv: {expected}"]


def test_guidance_scales(here: Path) -> None:
    """Numbers from 0 on, or nothing; as text, or as Parquet's own numbers."""
    guided = replace(CLASSES, takes_guidance=True)
    good = ["4", "4.0", " 0 ", "1e1", ".5", ""]
    (here / "rows.csv").write_text("seed,label,guidance_scale\n" + "".join(f"{i},1,{x}\n" for i, x in enumerate(good)))
    storage = Storage(str(here / "out"))
    normalise(job(path="rows.csv"), guided, storage)
    found = [request.guidance_scale for _, request in to_requests(read_rows(storage, 0, len(good)))]
    assert found == [4.0, 4.0, 0.0, 10.0, 0.5, None]
    table = pa.table({"seed": [1, 2], "label": [1, 2], "guidance_scale": pa.array([2.5, None], pa.float32())})
    pq.write_table(table, here / "rows.parquet")
    assert normalise(job(path="rows.parquet"), guided).bad == 0
    for bad in ("-1", "abc", "nan", "inf", "1,5"):
        (here / "bad.csv").write_text(f'seed,label,guidance_scale\n1,1,"{bad}"\n')
        (_, problem) = refusal(guided, path="bad.csv")
        assert problem == f"bad.csv:2: guidance_scale: {bad!r} is not a number of 0 or more"
    spec = {"count": 2, "labels": "cycle", "guidance_scale": 3.5}
    storage = Storage(str(here / "range"))
    normalise(job(range=spec), guided, storage)
    assert [request.guidance_scale for _, request in to_requests(read_rows(storage, 0, 2))] == [3.5, 3.5]


@pytest.mark.parametrize("column", ["image", "width", "height", "rounds", "calls", "evaluations", "sha256"])
def test_case_5_no_column_of_the_output(here: Path, column: str) -> None:
    (here / "rows.csv").write_text(f"seed,{column}\n1,2\n")
    assert "rename yours" in refusal(PLAIN, path="rows.csv")[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "rows.csv: is empty"),
        (b"\n\n", "rows.csv: is empty"),
        (b"seed,note\n", "rows.csv: has no rows"),
        (b"seed,seed\n1,2\n", "rows.csv:1: column `seed` is there twice"),
        (b"\nseed,\n1,2\n", "rows.csv:2: column 2 has no name"),
        (b"seed,\xff\n1,2\n", "rows.csv:1: the name of column 2 is not UTF-8 text"),
        (b'seed,"a\n', "rows.csv:1: not valid CSV"),
    ],
)
def test_files_without_a_header_or_rows(here: Path, content: bytes, expected: str) -> None:
    (here / "rows.csv").write_bytes(content)
    assert refusal(PLAIN, path="rows.csv")[0].startswith(expected)


def test_text_that_is_not_utf8_or_ends_within_quotes(here: Path) -> None:
    (here / "rows.csv").write_bytes(b'seed,note\n1,caf\xe9\n2,ok\n3,"never\nclosed\n')
    assert refusal(PLAIN, path="rows.csv")[1:] == [
        "rows.csv:2: is not UTF-8 text",
        "rows.csv:4: not valid CSV: unexpected end of data",
    ]


def test_twenty_problems_are_shown_and_all_counted(here: Path) -> None:
    keys = [f"k{row}" for row in range(30)] + ["k3"] * 30
    (here / "rows.csv").write_text("key,seed\n" + "".join(f"{key},{-row}\n" for row, key in enumerate(keys)))
    lines = refusal(PLAIN, path="rows.csv")
    assert "89" in lines[0]
    assert len(lines) == 22
    assert lines[1].startswith("rows.csv:3: seed: -1 is negative")
    assert lines[-1] == "… and 69 more"


# Case 6: formats, places, globs, ranges.


def write(path: Path, rows: list[dict[str, Any]], schema: Any = None) -> None:
    if path.suffix == ".csv":
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


ROWS = [{"key": f"k{row}", "seed": row * 2**50, "label": row % 10, "note": f"note {row}"} for row in range(25)]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "ndjson", "parquet"])
def test_case_6_one_file_or_several_of_any_format(here: Path, ending: str) -> None:
    write(here / "all.csv", ROWS)
    expected = normalise(job(path="all.csv"), CLASSES)
    write(here / f"one.{ending}", ROWS)
    (here / "parts").mkdir()
    for number, rows in enumerate((ROWS[:4], ROWS[4:5], ROWS[5:])):
        write(here / "parts" / f"part-{number}.{ending}", rows)
    for path in (f"one.{ending}", f"parts/*.{ending}", f"{here}/parts/part-?.{ending}", f"**/part-*.{ending}"):
        made = normalise(job(path=path), CLASSES)
        assert (made.rows, made.digest) == (25, expected.digest), path


def test_case_6_local_and_s3(here: Path, storage: Storage) -> None:
    for number, ending in enumerate(("csv", "jsonl", "parquet")):
        write(here / f"rows-{number}.{ending}", ROWS[number::3])
        storage.upload(str(here / f"rows-{number}.{ending}"), f"in/rows-{number}.{ending}")
    write(here / "all.jsonl", ROWS[0::3] + ROWS[1::3] + ROWS[2::3])
    out = Storage(f"{storage.uri}/out")
    made = normalise(job(path=f"{storage.uri}/in/rows-*"), CLASSES, out)
    assert made.digest == normalise(job(path="all.jsonl"), CLASSES).digest
    assert read_rows(out, 9, 2)["key"].to_pylist() == ["k1", "k4"]
    assert normalise(job(path=f"{storage.uri}/in/rows-0.csv"), CLASSES).rows == 9
    with pytest.raises(UsageError, match=r"absent\.csv: no such file"):
        normalise(job(path=f"{storage.uri}/in/absent.csv"), CLASSES)
    with pytest.raises(UsageError, match="no file matches"):
        normalise(job(path=f"{storage.uri}/in/*.txt"), CLASSES)


def test_case_6_range(here: Path) -> None:
    made = rows_of(CLASSES, Storage("out"), range={"count": 12, "seed": 2**40, "labels": "cycle"})
    assert [row["key"] for row in made] == [f"{row:012d}" for row in range(12)]
    assert [row["seed"] for row in made] == [2**40 + row for row in range(12)]
    assert [row["label"] for row in made] == [*range(10), 0, 1]
    made = rows_of(CLASSES, Storage("out2"), range={"count": 5, "labels": [3, 7]})
    assert [row["label"] for row in made] == [3, 7, 3, 7, 3]
    assert rows_of(PLAIN, Storage("out3"), range={"count": 2})[1] == {
        "key": "000000000001",
        "seed": 1,
        "__error__": None,
    }


def test_rows_are_numbered_over_all_files_and_named_in_theirs(here: Path) -> None:
    (here / "a.csv").write_text("seed,key\n1,a\n2,b\n")
    (here / "b.csv").write_text("key,seed\n")  # columns in another order, and no rows
    (here / "c.csv").write_text("key,seed\nc,3\na,4\n")
    assert refusal(PLAIN, path="*.csv")[1:] == ["c.csv:3: key: 'a' is already in a.csv:2"]
    (here / "c.csv").write_text("key,seed\nc,3\nd,4\n")
    assert [row["key"] for row in rows_of(PLAIN, Storage("out"), path="*.csv")] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("absent.csv", "absent.csv: no such file"),
        ("absent/*.csv", "absent/*.csv: no file matches"),
        ("rows.txt", "rows.txt: a manifest file ends in .csv, .jsonl, .ndjson, .parquet"),
        ("folder", "folder: is a folder; name its files, as in folder/*.parquet"),
        ("folder/", "folder/: is a folder; name its files, as in folder/*.parquet"),
        ("broken.parquet", "broken.parquet: not a readable Parquet file"),
        ("https://host/rows.csv", "only local folders and s3:// are supported"),
    ],
)
def test_files_that_cannot_be_read(here: Path, path: str, expected: str) -> None:
    (here / "rows.txt").write_text("seed\n1\n")
    (here / "broken.parquet").write_text("seed\n1\n")
    (here / "folder").mkdir()
    assert expected in refusal(PLAIN, path=path)[0]


def test_a_name_with_glob_characters_may_be_a_file(here: Path) -> None:
    (here / "rows[1].csv").write_text("seed\n1\n")
    assert normalise(job(path="rows[1].csv"), PLAIN).rows == 1


def test_files_with_other_columns_are_refused(here: Path) -> None:
    (here / "a.csv").write_text("seed,note\n1,x\n")
    (here / "b.csv").write_text("seed\n1\n")
    assert refusal(PLAIN, path="*.csv") == ["b.csv: has no column `note`, which a.csv has"]
    write(here / "c.parquet", [{"seed": 1, "note": 5}])
    assert refusal(PLAIN, path="[ac].*") == ["c.parquet: column `note` is int64, but string in a.csv"]


def test_json_lines_keep_plain_types(here: Path) -> None:
    (here / "a.jsonl").write_text('\ufeff{"seed": 1, "w": 1, "ok": true, "none": null}\n\n{"key": 7, "seed": "2"}\n')
    assert refusal(PLAIN, path="a.jsonl")[1:] == ["a.jsonl:1: key: is empty"]
    (here / "a.jsonl").write_text('{"seed": 1, "w": 1, "ok": true, "none": null}\n\n{"seed": "2", "n": 3}\n')
    (here / "b.jsonl").write_text('{"seed": 3, "w": 0.5, "n": -4}\n')
    made = rows_of(PLAIN, Storage("out"), path="*.jsonl")
    assert [[row[name] for name in ("seed", "w", "ok", "none", "n")] for row in made] == [
        [1, 1.0, True, None, None],
        [2, None, None, None, 3],
        [3, 0.5, None, None, -4],
    ]
    schema = read_rows(Storage("out"), 0, 0).schema
    assert [str(schema.field(name).type) for name in ("w", "ok", "none", "n")] == ["double", "bool", "string", "int64"]


def test_json_lines_problems(here: Path) -> None:
    lines = [
        '{"seed": 1, "w": 1, "t": "x"}',
        '{"seed": 1.5, "w": "x"}',
        '{"seed": true}',
        '{"seed": 1',
        "[1]",
        '{"seed": 1, "seed": 2}',
        '{"seed": 1, "w": NaN}',
        '{"seed": 1, "t": {"a": 1}}',
        '{"seed": 1, "t": "\\ud800"}',
        f'{{"seed": {2**63}}}',
        f'{{"seed": 1, "w": {2**64}}}',
        '{"w": 1}',
    ]
    (here / "rows.jsonl").write_text("\n".join(lines))
    assert refusal(PLAIN, path="rows.jsonl")[1:] == [
        "rows.jsonl:2: w: must be a whole number, like the values before; got 'x'",
        "rows.jsonl:3: seed: 'true' is not a whole number",
        "rows.jsonl:4: not valid JSON: Expecting ',' delimiter, at character 12",
        'rows.jsonl:5: is not a JSON object, as in {"seed": 1}',
        "rows.jsonl:6: not valid JSON: a key is there twice",
        "rows.jsonl:7: not valid JSON: NaN is not JSON",
        "rows.jsonl:8: t: must be text, like the values before; got {'a': 1}",
        "rows.jsonl:9: is not UTF-8 text",
        "rows.jsonl:10: seed: 9223372036854775808 is too large; they go from 0 to 9223372036854775807",
        "rows.jsonl:11: w: must be a whole number, like the values before; got 18446744073709551616",
        "rows.jsonl:12: seed: is empty",
    ]


@pytest.mark.parametrize("name", ["", " ", "\\ud800"])
def test_json_lines_names_that_are_none(here: Path, name: str) -> None:
    (here / "rows.jsonl").write_text(f'{{"seed": 1, "{name}": 1}}\n')
    assert "is no name for a column" in refusal(PLAIN, path="rows.jsonl")[0]


def test_parquet_keeps_its_types_and_names_rows(here: Path) -> None:
    table = pa.table(
        {
            "seed": pa.array([1, 2**63, 3, None], pa.uint64()),
            "label": pa.array([1, -2, 200, None], pa.int16()),
            "key": pa.array([5, 6, 7, 7], pa.int32()),
            "when": pa.array([0, 1, 2, 3], pa.timestamp("us", tz="UTC")),
            "list": pa.array([[1], [], None, [2, 3]], pa.list_(pa.float32())),
            "kind": pa.array(["a", "b", "a", None]).dictionary_encode(),
            "large": pa.array(["x", "y", "z", ""], pa.large_string()),
        }
    )
    pq.write_table(table, here / "rows.parquet")
    assert refusal(CLASSES, path="rows.parquet")[1:] == [
        "rows.parquet:1: seed: 9223372036854775808 is too large; they go from 0 to 9223372036854775807",
        "rows.parquet:1: label: -2 is negative; they go from 0 to 9",
        "rows.parquet:2: label: 200 is not a class; they go from 0 to 9",
        "rows.parquet:3: seed: is empty",
        "rows.parquet:3: key: '7' is already in rows.parquet:2",
    ]
    normalise(job(path="rows.parquet", on_bad_row="skip"), CLASSES, Storage("out"))
    stored = read_rows(Storage("out"), 0, 9)
    assert stored["when"].equals(table["when"])
    assert stored["list"].equals(table["list"])
    assert stored["kind"].to_pylist() == ["a", "b", "a", None]
    assert to_requests(stored) == [(0, Request(key="5", seed=1, label=1))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 2.0], "whole numbers, not double"), ([True], "not bool"), ([b"1"], "not binary")],
)
def test_parquet_columns_of_the_wrong_type(here: Path, values: list[Any], expected: str) -> None:
    write(here / "rows.parquet", [{"seed": value} for value in values])
    assert expected in refusal(PLAIN, path="rows.parquet")[0]


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
SEEDS = st.integers(0, 2**63 - 1)


@st.composite
def manifests(draw: Any) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 12))
    return [
        {
            "key": f"{row}-{draw(TEXT)}",
            "seed": draw(SEEDS),
            "label": draw(st.none() | st.integers(0, 9)),
            'a "quoted", name': draw(TEXT),
        }
        for row in range(count)
    ]


@settings(derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=manifests(), cut=st.integers(0, 12))
def test_the_same_rows_in_any_format_are_the_same_manifest(
    tmp_path: Path, rows: list[dict[str, Any]], cut: int
) -> None:
    schema = pa.schema(
        [("key", pa.string()), ("seed", pa.int64()), ("label", pa.int8()), ('a "quoted", name', pa.string())]
    )
    folder = tmp_path / os.urandom(8).hex()
    digests = set()
    for ending in ("csv", "jsonl", "parquet"):
        (folder / ending).mkdir(parents=True)
        for number, part in enumerate((rows[:cut], rows[cut:])):
            if part:
                write(folder / ending / f"{number}.{ending}", part, schema)
        out = Storage(str(folder / ending / "out"))
        made = normalise(job(path=f"{folder}/{ending}/*.{ending}"), CLASSES, out)
        digests.add(made.digest)
        assert read_rows(out, 0, len(rows)).drop_columns(["__error__"]).to_pylist() == rows
    assert len(digests) == 1


@settings(derandomize=True, max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), max_size=8), rows=st.integers(1, 20))
def test_rechunked_keeps_rows_in_order(sizes: list[int], rows: int) -> None:
    ends = np.cumsum([0, *sizes])
    tables = [pa.table({"x": np.arange(ends[i], ends[i + 1])}) for i in range(len(sizes))]
    chunks = list(rechunked(tables, rows))
    assert [x for chunk in chunks for x in chunk["x"].to_pylist()] == list(range(sum(sizes)))
    assert all(len(chunk) == rows for chunk in chunks[:-1])


def test_images_per_row(here: Path) -> None:
    (here / "rows.csv").write_text("key,seed,label\na,5,1\nb,x,2\na,7,3\nc,8,4\n")
    made = normalise(job(path="rows.csv", images_per_row=3, on_bad_row="skip"), CLASSES, Storage("out"))
    assert (made.rows, made.bad, made.problem_count) == (12, 6, 2)
    table = read_rows(Storage("out"), 0, 12)
    requests = to_requests(table)
    assert [request.key for _, request in requests] == ["a-0", "a-1", "a-2", "c-0", "c-1", "c-2"]
    assert [offset for offset, _ in requests] == [0, 1, 2, 9, 10, 11]
    seeds = [request.seed for _, request in requests]
    assert (seeds[0], seeds[3]) == (5, 8)
    assert len(set(seeds)) == 6
    assert [request.label for _, request in requests] == [1, 1, 1, 4, 4, 4]
    assert all("is row 0's already" in error for error in table["__error__"].to_pylist()[6:9])
    # The first images do not depend on how many there are.
    two = normalise(job(path="rows.csv", images_per_row=2, on_bad_row="skip"), CLASSES, Storage("two"))
    assert two.rows == 8
    assert read_rows(Storage("two"), 0, 2)["seed"].to_pylist() == seeds[:2]


def test_reading_rows_across_blocks_and_parts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_store, "PART_ROWS", 2 * BLOCK_ROWS)
    count = 5 * BLOCK_ROWS + 7
    out = Storage("out")
    assert normalise(job(range={"count": count}), PLAIN, out).rows == count
    assert len(out.list("manifest/")) == 3
    for first, rows in ((0, 3), (BLOCK_ROWS - 2, 5), (2 * BLOCK_ROWS - 1, 2 * BLOCK_ROWS + 2), (count - 3, 9)):
        expected = list(range(first, min(first + rows, count)))
        assert read_rows(out, first, rows)["seed"].to_pylist() == expected
    assert len(read_rows(out, count, 5)) == 0
    with pytest.raises(UsageError, match="holds no manifest"):
        read_rows(Storage("elsewhere"), 0, 1)


# Case 13, and what a rerun with another manifest does.


def refused_difference(out: Storage, info: TargetInfo, **manifest: Any) -> str:
    before = {path: out.read(path) for path in out.list()}
    with pytest.raises(UsageError) as caught:
        normalise(job(**manifest), info, out)
    assert {path: out.read(path) for path in out.list()} == before
    return str(caught.value)


def test_case_13_an_edited_manifest_is_refused_and_the_row_named(here: Path) -> None:
    lines = [f"k{row},{row},cat {row}\n" for row in range(9)]

    def manifest(*rows: str) -> dict[str, str]:
        (here / "rows.csv").write_text("key,seed,prompt\n" + "".join(rows))
        return {"path": "rows.csv"}

    out = Storage("out")
    normalise(job(**manifest(*lines)), PROMPTS, out)
    changed = refused_difference(out, PROMPTS, **manifest(*lines[:5], "k5,5,dog\n", *lines[6:]))
    assert "row 5 differs: prompt: 'cat 5' there, 'dog' here" in changed
    deleted = refused_difference(out, PROMPTS, **manifest(*lines[:3], *lines[4:]))
    assert "row 3 differs: key: 'k3' there, 'k4' here, seed: 3 there, 4 here" in deleted
    shorter = refused_difference(out, PROMPTS, **manifest(*lines[:7]))
    assert "row 7 (key 'k7') is gone; there were 9 rows, here are 7" in shorter
    (here / "rows.csv").write_text("key,seed,prompt,note\n" + "".join(f"{line.strip()},x\n" for line in lines))
    assert "column `note` is new" in refused_difference(out, PROMPTS, path="rows.csv")
    assert normalise(job(**manifest(*lines)), PROMPTS, out).previous_rows == 9


def test_first_difference_far_into_a_long_manifest(here: Path) -> None:
    count, at = 3 * BLOCK_ROWS, 2 * BLOCK_ROWS + 1234
    out = Storage("out")
    normalise(job(range={"count": count}), PLAIN, out)
    index = read_index(out)
    assert index is not None
    seeds = np.arange(count)
    table = read_rows(out, 0, count)
    assert first_difference(out, index, rechunked([table], BLOCK_ROWS)) is None
    seeds[at] = 5
    changed = table.set_column(table.schema.get_field_index("seed"), "seed", pa.array(seeds))
    assert first_difference(out, index, rechunked([changed], BLOCK_ROWS)) == (
        f"row {at} differs: seed: {at} there, 5 here"
    )


def test_an_unchanged_manifest_is_recognised_without_reading_its_rows(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here / "rows.jsonl", ROWS)
    out = Storage("out")
    first = normalise(job(path="rows.jsonl"), CLASSES, out)
    before = {path: os.stat(here / "out" / path).st_mtime_ns for path in out.list()}
    monkeypatch.setattr("pipeline.manifest.check", lambda *_: pytest.fail("rows were read"))
    again = normalise(job(path="rows.jsonl"), CLASSES, out)
    assert again == replace(first, previous_rows=25)
    assert {path: os.stat(here / "out" / path).st_mtime_ns for path in out.list()} == before


def test_the_same_rows_in_another_format_rewrite_no_part(here: Path) -> None:
    write(here / "rows.jsonl", ROWS)
    write(here / "rows.parquet", ROWS)
    out = Storage("out")
    first = normalise(job(path="rows.jsonl"), CLASSES, out)
    before = os.stat(here / "out/manifest/part-00000.parquet").st_mtime_ns
    assert normalise(job(path="rows.parquet"), CLASSES, out) == replace(first, previous_rows=25)
    assert os.stat(here / "out/manifest/part-00000.parquet").st_mtime_ns == before


def test_what_rows_are_checked_against_counts(here: Path) -> None:
    write(here / "rows.csv", ROWS)
    out = Storage("out")
    normalise(job(path="rows.csv"), CLASSES, out)
    with pytest.raises(UsageError, match="label: 5 is not a class"):
        normalise(job(path="rows.csv"), replace(CLASSES, num_classes=5), out)


def test_a_longer_manifest_extends(here: Path, storage: Storage) -> None:
    write(here / "rows.csv", ROWS[:11])
    normalise(job(path="rows.csv"), CLASSES, storage)
    old = {path: storage.read(path) for path in storage.list("manifest/")}
    write(here / "rows.csv", ROWS)
    made = normalise(job(path="rows.csv"), CLASSES, storage)
    assert (made.rows, made.previous_rows) == (25, 11)
    assert made.digest == normalise(job(path="rows.csv"), CLASSES).digest
    assert {path: storage.read(path) for path in old} == old
    assert read_rows(storage, 9, 5)["key"].to_pylist() == [f"k{row}" for row in range(9, 14)]
    assert len(read_rows(storage, 0, 99)) == 25


class Killed(Exception):
    """What stands for a process that ends here."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the process before its change number `step` of a storage (upload, replace, remove), counted from 0."""
    left = step

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def call(self: Storage, *arguments: Any) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            change(self, *arguments)

        return call

    with monkeypatch.context() as patched:
        for name in ("upload", "replace", "remove"):
            patched.setattr(Storage, name, counted(getattr(Storage, name)))
        yield


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize("edited", [False, True])
def test_killed_at_any_step_and_run_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, extends: bool, edited: bool
) -> None:
    """A later run ends whole, also where the manifest's new rows were edited in between."""
    monkeypatch.setattr(manifest_store, "PART_ROWS", 8)
    write(here / "start.csv", ROWS[:11])
    write(here / "rows.csv", ROWS)
    write(here / "edited.csv", [*ROWS[:13], {**ROWS[13], "seed": 1}, *ROWS[14:]][: 18 if edited else 25])
    last = job(path="edited.csv" if edited else "rows.csv")
    expected = normalise(last, CLASSES, Storage("whole"))
    step = 0
    while True:
        out = Storage(f"out-{step}")
        if extends:
            normalise(job(path="start.csv"), CLASSES, out)
        before = read_index(out)
        try:
            with killed_at(step, monkeypatch):
                normalise(job(path="rows.csv"), CLASSES, out)
            break
        except Killed:
            assert read_index(out) == before
        made = normalise(last, CLASSES, out)
        assert (made.rows, made.digest) == (expected.rows, expected.digest)
        assert read_rows(out, 0, 99).equals(read_rows(Storage("whole"), 0, 99))
        index = read_index(out)
        assert index is not None
        assert [part.file for part in index.parts] == out.list("manifest/")
        step += 1
    assert step == (3 if extends else 5)  # parts and the index: every step was tried


def test_lost_files_are_made_again_or_the_loss_is_told(here: Path) -> None:
    write(here / "rows.csv", ROWS)
    out = Storage("out")
    made = normalise(job(path="rows.csv"), CLASSES, out)
    out.remove("manifest/part-00000.parquet")
    write(here / "other.csv", ROWS[1:])
    with pytest.raises(UsageError, match="files are missing"):
        normalise(job(path="other.csv"), CLASSES, out)
    assert normalise(job(path="rows.csv"), CLASSES, out).digest == made.digest
    assert len(read_rows(out, 0, 99)) == 25
    out.create("commits/part-00000.json", b"{}")
    out.remove(INDEX)
    with pytest.raises(UsageError, match=r"manifest\.json is gone"):
        normalise(job(path="rows.csv"), CLASSES, out)


def test_storage_out_of_reach_is_unavailable(here: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    if not storage.uri.startswith("s3://"):
        pytest.skip("a local folder is always in reach")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Unavailable):
        normalise(job(path=f"{storage.uri}/rows.csv"), CLASSES)


def test_summary_is_the_same_whether_stored_or_only_checked(here: Path) -> None:
    write(here / "rows.csv", ROWS)
    checked: Manifest = normalise(job(path="rows.csv"), CLASSES)
    assert checked == normalise(job(path="rows.csv"), CLASSES, Storage("out"))
