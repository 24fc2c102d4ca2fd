"""`specdiff verify`, `status` and `clean`, on a whole set and on one with every kind of damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from test_job import pictures, run

from pipeline.cli import main
from pipeline.commits import CommitRecord, committed
from pipeline.lease import Lease
from pipeline.storage import Storage, file_sha256


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@pytest.fixture(scope="module")
def whole(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert run(pictures(folder, "pictures")).exit_code == 0
    return folder / "set"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "set"))


def test_a_whole_set_is_found_whole(whole: Path) -> None:
    result = invoke("verify", str(whole), "--deep")
    assert result.exit_code == 0, result.output
    assert "12: 12 have an image, 0 failed, 0 are bad, 0 are missing" in result.output
    assert "12 rows made again: the same as they were" in result.output
    result = invoke("status", str(whole))
    assert result.exit_code == 0
    assert "12 of 12 (100.0 %)" in result.output
    assert "images/s: 12 images" in result.output


def rewrite(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Changes the second data file, and its record with it, so that only its content can tell."""
    (record,) = [each for each in committed(Storage(str(folder))) if each.shard == 1]
    file = folder / record.file
    pq.write_table(change(pq.read_table(file)), file)
    amend(folder, record, replace(record, file_sha256=file_sha256(str(file)), bytes=file.stat().st_size))


def amend(folder: Path, record: CommitRecord, changed: CommitRecord) -> None:
    (folder / record.path).unlink()
    (folder / changed.path).write_text(changed.to_json())


def column(name: str, change: Callable[[pa.Array], pa.Array]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        rewrite(
            folder,
            lambda table: table.set_column(table.column_names.index(name), table.field(name), change(table[name])),
        )

    return damage


def flip(folder: Path) -> None:
    file = folder / "data" / "part-00001.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def record_twice(folder: Path) -> None:
    record = committed(Storage(str(folder)))[1]
    file = record.file.replace(".parquet", ".r1.parquet")
    shutil.copy(folder / record.file, folder / file)
    (folder / "commits" / "part-00001.r1.json").write_text(replace(record, revision=1, file=file).to_json())


def change_manifest(folder: Path) -> None:
    file = folder / "manifest" / "part-00000.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(1, table.field(1), pc.add(table["seed"], 1)), file)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flip, "data/part-00001.parquet: has sha256"),
        (lambda folder: (folder / "data" / "part-00001.parquet").unlink(), "data/part-00001.parquet: is gone"),
        (lambda folder: (folder / "commits" / "part-00001.json").unlink(), "rows without a record: 4–7"),
        (record_twice, "row 4 is recorded twice, the second time in commits/part-00001.r1.json"),
        (column("seed", lambda seeds: pc.add(seeds, 1)), "its rows are not the manifest's"),
        (column("sha256", lambda each: pc.utf8_reverse(each)), "its pixels are not those that were recorded"),
        (column("width", lambda each: pc.add(each, 1).cast(pa.int32())), "another size than recorded"),
        (
            column("image", lambda each: pa.array([{"bytes": b"no", "path": None}] * 4, each.type)),
            "the picture cannot be read",
        ),
        (lambda folder: rewrite(folder, lambda table: table.slice(1)), "holds 3 rows, not 4"),
        (change_manifest, "manifest/part-00000.parquet is not what was written"),
    ],
)
def test_damage_is_found_and_named(copy: Path, damage: Callable[[Path], None], told: str) -> None:
    damage(copy)
    result = invoke("verify", str(copy))
    assert result.exit_code == 1, result.output
    assert told in result.output
    assert "NOT WHOLE" in result.output


def test_deep_finds_pictures_that_are_not_the_samplers(copy: Path) -> None:
    """A consistent set of other pictures: each row has its neighbour's, hashes and all."""
    names = ("image", "sha256", "width", "height", "rounds", "calls", "evaluations")

    def shift(table: pa.Table) -> pa.Table:
        for name in names:
            turned = table[name].take(pa.array([1, 2, 3, 0]))
            table = table.set_column(table.column_names.index(name), table.field(name), turned)
        return table

    rewrite(copy, shift)
    assert invoke("verify", str(copy)).exit_code == 0
    result = invoke("verify", str(copy), "--deep")
    assert result.exit_code == 1, result.output
    assert "made again it is another picture" in result.output


def test_deep_says_what_it_cannot_compare(copy: Path) -> None:
    record = committed(Storage(str(copy)))[1]
    amend(copy, record, replace(record, device="abacus"))
    result = invoke("verify", str(copy), "--deep")
    assert result.exit_code == 0, result.output
    assert "commits/part-00001.json: rows were not made again, because they were made on abacus" in result.output
    assert "8 rows made again" in result.output


def test_failed_rows_are_told(cluster: str, tmp_path: Path) -> None:
    assert run(pictures(tmp_path, "pictures-nan")).exit_code == 1
    result = invoke("verify", str(tmp_path / "set"))
    assert result.exit_code == 1
    assert "11 have an image, 1 failed" in result.output
    result = invoke("status", str(tmp_path / "set"))
    assert result.exit_code == 1
    assert "11 of 12" in result.output
    assert "1 × sample: " in result.output


def test_shards_without_an_image_are_no_damage(cluster: str, tmp_path: Path) -> None:
    """One shard of bad rows, one whose only row failed, one that is whole."""
    (tmp_path / "rows.csv").write_text("seed\n-1\n-2\n-3\n-4\n5\n6\n7\n8\n")
    job = pictures(tmp_path, "pictures-nan")
    job.write_text(
        yaml.safe_dump(
            yaml.safe_load(job.read_text()) | {"manifest": {"path": str(tmp_path / "rows.csv"), "on_bad_row": "skip"}}
        )
    )
    assert run(job, "--limit", "5").exit_code == 1
    assert run(job).exit_code == 1
    result = invoke("verify", str(tmp_path / "set"), "--deep")
    assert result.exit_code == 1
    assert "3 have an image, 1 failed, 4 are bad, 0 are missing" in result.output
    assert "3 rows made again: the same as they were" in result.output, "no problem was found"


@pytest.mark.parametrize("image_format", ["jpeg", "webp"])
def test_sets_of_other_formats(cluster: str, tmp_path: Path, image_format: str) -> None:
    assert run(pictures(tmp_path, "pictures"), "--set", f"output.image_format={image_format}").exit_code == 0
    result = invoke("verify", str(tmp_path / "set"), "--deep")
    assert result.exit_code == 0, result.output
    assert "encoder" in json.loads((tmp_path / "set" / "job.json").read_text())["identity"]["output"]


def test_clean_removes_debris_and_nothing_else(copy: Path) -> None:
    temporary = ".tmp-" + "0" * 32
    debris = ["data/part-00001.a1.parquet", "data/part-00002.r1.parquet", "manifest/part-00007.parquet"]
    debris += [f"data/{temporary}", f"commits/{temporary}", temporary]
    foreign = ["notes.txt", "data/notes.parquet", "data/.tmp-mine"]
    foreign += [f"other/{temporary}", "other/data/part-00001.parquet"]
    for path in debris + foreign:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(b"x")
    result = invoke("verify", str(copy))
    assert result.exit_code == 0, result.output
    assert "3 files in data/ that no record names" in result.output
    result = invoke("clean", str(copy))
    assert result.exit_code == 0, result.output
    assert "6 files removed" in result.output
    assert not [path for path in debris if (copy / path).exists()]
    assert [path for path in foreign if (copy / path).exists()] == foreign
    result = invoke("verify", str(copy))
    assert "whole" in result.output
    assert "1 file in data/ that no record names, as data/notes.parquet" in result.output


def test_clean_aborts_uploads_and_waits_for_the_driver(whole: Path, storage: Storage) -> None:
    copied = Storage(str(whole))
    for path in copied.list():
        if not path.startswith("lease/"):
            storage.create(path, copied.read(path))
    if storage.uri.startswith("s3://"):
        import s3fs

        bucket, _, prefix = storage.uri.removeprefix("s3://").partition("/")
        client = s3fs.S3FileSystem(skip_instance_cache=True)
        for name in ("data/part-00009.parquet", "data/notes.parquet"):
            client.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{prefix}/{name}")
    with Lease(storage, 60):
        result = invoke("clean", storage.uri)
        assert result.exit_code == 3, result.output
        assert "driver    process" in invoke("status", storage.uri).output
    result = invoke("clean", storage.uri)
    assert result.exit_code == 0, result.output
    if storage.uri.startswith("s3://"):
        assert "removed data/part-00009.parquet" in result.output
        left = client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", [])
        assert [upload["Key"] for upload in left] == [f"{prefix}/data/notes.parquet"]
    assert invoke("verify", storage.uri).exit_code == 0


@pytest.mark.parametrize(
    ("file", "commands", "remedy"),
    [
        ("job.json", ["run", "evaluate", "verify", "status"], "restore it"),
        ("manifest.json", ["run", "verify", "evaluate"], "restore it"),
        ("manifest/part-00000.parquet", ["run"], "restore it"),
        ("commits/part-00001.json", ["run", "evaluate", "verify", "status"], "remove it, and `specdiff run`"),
        ("data/part-00000.parquet", ["evaluate"], "remove it and its record in commits/"),
        ("lease/0001.json", ["status", "run", "evaluate"], "remove it if no driver"),
        ("failures.jsonl", ["status"], "remove it, and `specdiff run`"),
        ("report/report.json", [], ""),
    ],
)
def test_half_a_file_is_named(copy: Path, file: str, commands: list[str], remedy: str) -> None:
    """By every command that reads it; the others go on without."""
    document = json.loads((copy / "job.json").read_text())
    document["job"]["evaluate"] = {"extractor": "fashion-mnist", "reference": "fashion-mnist"}
    (copy / "job.json").write_text(json.dumps(document))
    if file == "failures.jsonl":
        (copy / file).write_text('{"row": 1, "kind": "sample", "reason": "none"}\n')
    data = (copy / file).read_bytes()
    (copy / file).write_bytes(data[: len(data) // 2])
    options = {"run": [str(copy.parent / "job.yaml")], "verify": [str(copy), "--deep"]}
    pictures(copy.parent, "pictures")
    for command in ("evaluate", "verify", "status", "run"):
        result = invoke(command, *options.get(command, [str(copy)]))
        told = any(f"{file} is {what}" in result.output for what in ("damaged", "not the file that was committed"))
        assert told == (command in commands), (command, result.output)
        assert not told or (remedy in result.output and result.exit_code == 1)
    if file.startswith("commits/"):
        assert "8 have an image, 0 failed, 0 are bad, 4 are missing" in invoke("verify", str(copy)).output


def test_a_damaged_data_file_is_a_finding_among_others(copy: Path) -> None:
    """Its record agrees with it, so that only Parquet can tell; the files after it are looked at too."""
    (first, _, last) = committed(Storage(str(copy)))
    file = copy / first.file
    file.write_bytes(file.read_bytes()[:-10])
    amend(copy, first, replace(first, file_sha256=file_sha256(str(file))))
    (copy / last.file).unlink()
    result = invoke("verify", str(copy))
    assert result.exit_code == 1, result.output
    assert f"{first.file} is damaged" in result.output
    assert f"{last.file}: is gone" in result.output


def test_what_is_no_set_is_refused(tmp_path: Path) -> None:
    for command in ("verify", "status", "clean"):
        result = invoke(command, str(tmp_path))
        assert result.exit_code == 2
        assert "job.json" in result.output
