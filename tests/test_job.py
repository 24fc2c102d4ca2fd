"""Whole jobs through a real Ray cluster: the same bytes by any way, and every row once whatever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from faults import FAULTY_SEED
from seaweed import Server

import pipeline.driver
from pipeline.cli import main
from pipeline.commits import CommitRecord, committed
from pipeline.storage import Storage

ROWS = 24
STEPS = 25
WAIT_S = 120


def job_file(folder: Path, name: str = "job", **sections: dict[str, Any]) -> Path:
    """A job of 24 pictures of clothes, or what the sections say."""
    job: dict[str, Any] = {
        "name": name,
        "target": {"name": "fashion-mnist", "steps": STEPS},
        "sampler": {"lanes": 8},
        "manifest": {"range": {"count": ROWS, "labels": "cycle"}},
        "output": {"uri": str(folder / name), "shard_size": 5},
        "workers": {"count": 2},
    }
    for section, settings in sections.items():
        job[section] = {**job[section], **settings} if section in job and section != "manifest" else settings
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def pictures(folder: Path, target: str, count: int = 12, **sections: dict[str, Any]) -> Path:
    """A job of a target with a fault, four rows a shard: the faulty row is in shard 1."""
    return job_file(
        folder,
        target={"name": target, "steps": 20},
        manifest={"range": {"count": count}},
        output={"uri": str(folder / "set"), "shard_size": 4},
        **sections,
    )


def run(job: Path, *options: str) -> Result:
    """`specdiff run`, in this process."""
    return CliRunner().invoke(main, ["run", str(job), *options], catch_exceptions=False)


def start(job: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """`specdiff run`, in a process of its own."""
    command = [sys.executable, "-m", "pipeline.cli", "run", str(job), *options]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, int]:
    """What a process printed, and its exit status."""
    try:
        output, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    return output, process.returncode


def wait_for_records(storage: Storage, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(storage.list("commits/")) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def images(storage: Storage) -> dict[str, dict[str, Any]]:
    """The rows of the committed files by key, after a look at what every set must hold to."""
    found: dict[str, dict[str, Any]] = {}
    for record in committed(storage):
        assert storage.sha256(record.file) == record.file_sha256
        with storage.open(record.file) as file:
            table = pq.read_table(file)
        assert len(table) == record.written
        for row in table.to_pylist():
            assert row["key"] not in found, "no key twice"
            found[row["key"]] = row
    return found


def hashes(storage: Storage) -> dict[int, tuple[str, int, int]]:
    """What must not depend on how a set was made, by seed: pixels and costs."""
    return {row["seed"]: (row["sha256"], row["calls"], row["evaluations"]) for row in images(storage).values()}


@pytest.fixture(scope="module")
def unbroken(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """One worker, shards of 5, manifest order, evaluated."""
    evaluation = {"extractor": "fashion-mnist", "reference": "fashion-mnist"}
    job = job_file(tmp_path_factory.mktemp("unbroken"), workers={"count": 1}, evaluate=evaluation)
    result = run(job)
    assert result.exit_code == 0, result.output
    return Storage(yaml.safe_load(job.read_text())["output"]["uri"])


def test_a_set_is_whole_and_reported(unbroken: Storage) -> None:
    rows = images(unbroken)
    assert sorted(rows) == [f"{row:012}" for row in range(ROWS)]
    assert all(row["label"] == row["seed"] % 10 for row in rows.values())
    records = committed(unbroken)
    assert [(record.shard, record.first_row, record.rows) for record in records] == [
        (0, 0, 5),
        (1, 5, 5),
        (2, 10, 5),
        (3, 15, 5),
        (4, 20, 4),
    ]
    assert all(record.attempt == 1 for record in records)
    report = json.loads(unbroken.read("report/report.json"))
    assert report["metrics"]["fid"]["count"] == ROWS
    assert report["metrics"]["fid"]["extractor"] == "fashion-mnist"
    assert report["throughput"]["images"] == ROWS
    throughput = report["throughput"]
    assert throughput["images_per_s"] > throughput["images_per_s_with_start"] > 0
    assert throughput["workers"] == 1
    assert sum(throughput["shares"].values()) == pytest.approx(1)
    assert all(share > 0 for share in (throughput["shares"] | throughput["shares_beside"]).values())
    # The one worker's device was held from its start to its last commit, less what it took to come by it and to upload.
    assert 0.7 * throughput["seconds"] < throughput["device_seconds"] < throughput["seconds_with_start"]
    assert throughput["peak_memory_bytes"] > 100 << 20
    assert throughput["lost_images"] == throughput["attempts_beyond_first"] == 0
    assert unbroken.exists("report/report.html")
    assert report["sampler"]["samples"] == ROWS
    assert report["sampler"]["calls"] == sum(row["calls"] for row in rows.values())
    assert report["sampler"]["evaluations"] == sum(row["evaluations"] for row in rows.values())
    assert report["sampler"]["sequential_speedup"] == ROWS * STEPS / report["sampler"]["calls"]
    assert unbroken.exists("report/contact_sheet.png")
    assert unbroken.read("failures.jsonl") == b""


def test_case_19_datasets_decodes_a_set(unbroken: Storage, tmp_path: Path) -> None:
    files = f"{unbroken.uri}/data/*.parquet"
    read = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path), split="train")
    assert isinstance(read.features["image"], datasets.Image)
    assert len(read) == ROWS
    assert read[7]["image"].size == (28, 28)


def test_case_15_a_finished_set_is_left_alone(unbroken: Storage) -> None:
    job = Path(unbroken.uri).parent / "job.yaml"
    before = {path: unbroken.sha256(path) for path in unbroken.list()}
    began = time.monotonic()
    # An address where nothing listens: a run that needed Ray would fail.
    output, status = finish(start(job, RAY_ADDRESS="127.0.0.1:1"))
    assert status == 0, output
    assert "nothing to generate" in output
    assert {path: unbroken.sha256(path) for path in unbroken.list()} == before
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("workers", "shard_size", "shuffled"), [(2, 5, True), (2, 16, False), (1, 16, True)])
def test_bytes_do_not_depend_on_workers_shards_or_order(
    unbroken: Storage, tmp_path: Path, workers: int, shard_size: int, shuffled: bool
) -> None:
    seeds = list(range(ROWS))
    if shuffled:
        random.Random(0).shuffle(seeds)
    rows = pa.table({"seed": seeds, "label": [seed % 10 for seed in seeds], "key": [f"s{seed}" for seed in seeds]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    job = job_file(
        tmp_path,
        manifest={"path": str(tmp_path / "rows.parquet")},
        output={"shard_size": shard_size},
        workers={"count": workers},
    )
    result = run(job)
    assert result.exit_code == 0, result.output
    storage = Storage(str(tmp_path / "job"))
    assert hashes(storage) == hashes(unbroken)
    for record in committed(storage):
        with storage.open(record.file) as file:
            keys = pq.read_table(file, columns=["key"])["key"].to_pylist()
        assert keys == [f"s{seeds[row]}" for row in record.row_numbers], "manifest order"


def test_case_10_a_killed_driver_is_continued(unbroken: Storage, tmp_path: Path) -> None:
    job = job_file(tmp_path)
    storage = Storage(str(tmp_path / "job"))
    process = start(job)
    wait_for_records(storage, 1, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for path in storage.list("data/"):
        with storage.open(path) as file:
            pq.read_table(file)  # a reader of the folder meets whole files only
    before = len(storage.list("commits/"))
    assert before < 5, "it was killed too late to show anything"
    result = run(job)
    assert result.exit_code == 0, result.output
    assert hashes(storage) == hashes(unbroken)
    assert len(committed(storage)) == 5


def test_case_12_a_terminated_driver_is_continued(unbroken: Storage, tmp_path: Path) -> None:
    rows = 2 * ROWS  # more than can be in flight
    job = job_file(tmp_path, manifest={"range": {"count": rows, "labels": "cycle"}})
    storage = Storage(str(tmp_path / "job"))
    process = start(job, "--workers", "1")
    wait_for_records(storage, 1, process)
    process.send_signal(signal.SIGTERM)
    output, status = finish(process)
    assert status == 143, output
    assert "the same command goes on" in output
    before = sum(record.written for record in committed(storage))
    result = run(job)
    assert result.exit_code == 0, result.output
    assert json.loads(storage.read("report/report.json"))["throughput"]["runs"][1]["images"] == rows - before
    assert hashes(unbroken).items() <= hashes(storage).items()
    assert len(images(storage)) == rows


@pytest.mark.parametrize(
    ("number", "begun", "delay"),
    [
        (signal.SIGINT, "pipeline/signals.py", 0.3),  # modules are imported
        (signal.SIGTERM, "ray/_private/node.py", 1.5),  # Ray starts, and has taken SIGTERM over
    ],
)
def test_case_12_a_signal_as_a_run_begins(tmp_path: Path, number: int, begun: str, delay: float) -> None:
    job = job_file(tmp_path, target={"name": "fashion-mnist", "steps": 5})
    command = [sys.executable, "-v", "-m", "pipeline.cli", "run", str(job), "--limit", "4"]
    process = subprocess.Popen(
        command, env={**os.environ, "RAY_ADDRESS": ""}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert any(begun in line for line in process.stdout)
    threading.Timer(delay, process.send_signal, [number]).start()
    output, status = finish(process)
    assert status == 128 + number, output[-2000:]
    assert "the same command goes on" in output


def test_limit_makes_a_prefix_of_the_same_set(unbroken: Storage, tmp_path: Path) -> None:
    job = job_file(tmp_path)
    storage = Storage(str(tmp_path / "job"))
    result = run(job, "--limit", "7")
    assert result.exit_code == 0, result.output
    assert sorted(images(storage)) == [f"{row:012}" for row in range(7)]
    result = run(job)
    assert result.exit_code == 0, result.output
    assert hashes(storage) == hashes(unbroken)
    assert [record.path for record in committed(storage)][1:3] == [
        "commits/part-00001.json",
        "commits/part-00001.r1.json",
    ]
    throughput = json.loads(storage.read("report/report.json"))["throughput"]
    assert throughput["images"] == ROWS, "of both runs"
    assert [each["images"] for each in throughput["runs"]] == [7, ROWS - 7]
    assert throughput["seconds"] == sum(each["seconds"] for each in throughput["runs"])


def test_case_13_another_setting_is_refused_and_named(unbroken: Storage) -> None:
    result = run(Path(unbroken.uri).parent / "job.yaml", "--set", "sampler.draft_length=3")
    assert result.exit_code == 2
    assert "sampler.draft_length: 7 there, 3 here" in result.output


def test_other_lanes_go_on_with_the_rows_of_a_call_that_the_set_has(unbroken: Storage, tmp_path: Path) -> None:
    job = job_file(tmp_path)
    storage = Storage(str(tmp_path / "job"))
    assert run(job, "--limit", "7").exit_code == 0
    result = run(job, "--set", "sampler.lanes=3")
    assert result.exit_code == 0, result.output
    assert hashes(storage) == hashes(unbroken)
    result = CliRunner().invoke(main, ["verify", "--deep", storage.uri], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "rows made again: the same as they were" in result.output
    result = run(job, "--set", "sampler.lanes=3", "--set", "sampler.draft_length=3")
    assert result.exit_code == 2
    assert "sampler.draft_length: 7 there, 3 here" in result.output
    assert "batch_rows" not in result.output, "which nobody set"
    result = run(job, "--set", "sampler.batch_rows=24")
    assert result.exit_code == 2
    assert "sampler.batch_rows: 64 there, 24 here" in result.output


def test_evaluate_scores_again_and_refuses_what_is_no_set(unbroken: Storage, tmp_path: Path) -> None:
    before = json.loads(unbroken.read("report/report.json"))
    result = CliRunner().invoke(main, ["evaluate", unbroken.uri], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    after = json.loads(unbroken.read("report/report.json"))
    assert after["metrics"] == before["metrics"]
    assert after["throughput"] == before["throughput"]
    result = CliRunner().invoke(main, ["evaluate", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 2
    assert "job.json" in result.output


def test_evaluate_tells_of_rows_without_an_image(unbroken: Storage, tmp_path: Path) -> None:
    """A set that is whole but for a bad row: its evaluation, and a look at it, end with 1 as its run did."""
    (tmp_path / "rows.csv").write_text("seed,label\n1,1\n-1,1\n3,3\n")
    job = job_file(
        tmp_path,
        target={"name": "fashion-mnist", "steps": 5},
        manifest={"path": str(tmp_path / "rows.csv"), "on_bad_row": "skip"},
        evaluate={"extractor": "fashion-mnist", "reference": "fashion-mnist"},
    )
    assert run(job).exit_code == 1
    for command in ("evaluate", "status"):
        result = CliRunner().invoke(main, [command, str(tmp_path / "job")], catch_exceptions=False)
        assert result.exit_code == 1, result.output
        assert "1 was skipped as bad" in result.output


def failures(storage: Storage) -> list[dict[str, Any]]:
    return [json.loads(line) for line in storage.read("failures.jsonl").splitlines()]


def records_by_shard(storage: Storage) -> dict[int, list[CommitRecord]]:
    found: dict[int, list[CommitRecord]] = {}
    for record in committed(storage):
        found.setdefault(record.shard, []).append(record)
    return found


@pytest.mark.parametrize(("fault", "reason"), [("exit", "unexpectedly exits"), ("raise", "RuntimeError: device lost")])
def test_case_9_a_worker_that_dies_once(cluster: str, tmp_path: Path, fault: str, reason: str) -> None:
    result = run(pictures(tmp_path, f"pictures-{fault}-once"))
    assert result.exit_code == 0, result.output
    assert reason in result.output
    storage = Storage(str(tmp_path / "set"))
    assert len(images(storage)) == 12
    assert records_by_shard(storage)[1][0].attempt == 2


def test_work_that_is_lost_with_a_worker_is_told(cluster: str, tmp_path: Path) -> None:
    """Row 5 kills the worker when row 4 of the same shard is finished."""
    job = pictures(tmp_path, "pictures-late-exit-once", workers={"count": 1}, sampler={"lanes": 1})
    result = run(job)
    assert result.exit_code == 0, result.output
    throughput = json.loads(Storage(str(tmp_path / "set")).read("report/report.json"))["throughput"]
    assert throughput["lost_images"] == 1
    assert throughput["attempts_beyond_first"] >= 1, "of shard 1, and of others that it held"
    assert throughput["images"] == 12


def test_case_9_a_row_that_always_kills_fails_alone(cluster: str, tmp_path: Path) -> None:
    job = pictures(tmp_path, "pictures-exit", workers={"count": 1, "max_attempts": 2})
    result = run(job)
    assert result.exit_code == 1, result.output
    storage = Storage(str(tmp_path / "set"))
    assert sorted(row["seed"] for row in images(storage).values()) == [
        seed for seed in range(12) if seed != FAULTY_SEED
    ]
    assert [(each["row"], each["shard"], each["kind"]) for each in failures(storage)] == [(FAULTY_SEED, 1, "shard")]
    assert [(record.revision, record.rows) for record in records_by_shard(storage)[1]] == [(0, 1), (1, 2)]
    result = run(job, "--set", "workers.max_attempts=1")
    assert result.exit_code == 1, "tried again, in vain"
    assert len(storage.list("data/")) == len(committed(storage)) == 4


def test_what_a_worker_recorded_before_it_died_is_done(cluster: str, tmp_path: Path) -> None:
    result = run(pictures(tmp_path, "pictures-untold", workers={"count": 1, "max_attempts": 1}))
    assert "worker 0 died" in result.output
    storage = Storage(str(tmp_path / "set"))
    assert len(records_by_shard(storage)[1]) == 1, "and not halved"
    assert len(images(storage)) == 12
    assert result.exit_code == 0, result.output


def test_a_worker_that_stalls_is_killed_and_its_work_goes_back(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.driver, "STALL_S", 5.0)
    result = run(pictures(tmp_path, "pictures-hang-once", workers={"count": 1}))
    assert result.exit_code == 0, result.output
    assert "worker 0 died: no progress for 5 s" in result.output
    storage = Storage(str(tmp_path / "set"))
    assert len(images(storage)) == 12
    assert records_by_shard(storage)[1][0].attempt == 2


def test_max_hours_and_waiting_for_devices(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More workers than there are CPUs: those there are begin, the others are named; and time is over."""
    monkeypatch.setattr(pipeline.driver, "LATE_S", 3.0)
    job = pictures(tmp_path, "pictures-slow", count=2000, workers={"count": 2, "max": 6, "threads": 2})
    result = run(job, "--set", f"workers.max_hours={20 / 3600}")
    assert result.exit_code == 1, result.output
    assert "has no device yet" in result.output
    assert "the same command goes on" in result.output
    assert 0 < len(images(Storage(str(tmp_path / "set")))) < 2000


def test_fewer_workers_than_the_job_needs(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.driver, "NO_WORKER_S", 12.0)
    job = pictures(tmp_path, "pictures-slow", count=2000, workers={"count": 3, "min": 3, "threads": 2})
    result = run(job)
    assert result.exit_code == 3, result.output
    assert "of at least 3 that the job needs" in result.output


def test_case_7_nan_is_one_failed_row(cluster: str, tmp_path: Path) -> None:
    job = pictures(tmp_path, "pictures-nan", count=8)
    result = run(job)
    assert result.exit_code == 1, result.output
    storage = Storage(str(tmp_path / "set"))
    assert sorted(row["seed"] for row in images(storage).values()) == [s for s in range(8) if s != FAULTY_SEED]
    (failure,) = failures(storage)
    assert (failure["row"], failure["key"], failure["seed"], failure["kind"]) == (5, f"{5:012}", 5, "sample")
    assert "NaN" in failure["reason"]
    result = run(job)
    assert result.exit_code == 1, "also when there is nothing to do"
    assert "1 row failed" in result.output
    result = run(job, "--retry-failed")
    assert result.exit_code == 1
    assert len(committed(storage)) == 2, "a row that fails again changes nothing"


def test_case_8_a_row_that_failed_once_is_retried_alone(cluster: str, tmp_path: Path) -> None:
    job = pictures(tmp_path, "pictures-nan-once", count=8)
    assert run(job).exit_code == 1
    storage = Storage(str(tmp_path / "set"))
    before = {path: storage.sha256(path) for path in storage.list("data/")}
    result = run(job, "--retry-failed")
    assert result.exit_code == 0, result.output
    retry = committed(storage)[-1]
    assert (retry.shard, retry.revision, retry.rows, retry.written) == (1, 1, (5,), 1)
    after = {path: storage.sha256(path) for path in storage.list("data/")}
    assert after == {**before, "data/part-00001.r1.parquet": retry.file_sha256}
    assert sorted(row["seed"] for row in images(storage).values()) == list(range(8))
    assert storage.read("failures.jsonl") == b""


def test_case_2_an_image_does_not_depend_on_the_fate_of_other_rows(cluster: str, tmp_path: Path) -> None:
    def made(name: str, target: str, manifest: dict[str, Any], *limits: str) -> dict[int, tuple[str, int, int]]:
        job = job_file(tmp_path, name, target={"name": target, "steps": 20}, manifest=manifest)
        for options in [*(("--limit", limit) for limit in limits), ()]:
            run(job, *options)
        return hashes(Storage(str(tmp_path / name)))

    count = {"range": {"count": 12}}
    plain = made("plain", "pictures", count)
    assert len(plain) == 12
    others = {seed: each for seed, each in plain.items() if seed != FAULTY_SEED}
    assert made("failed", "pictures-nan", count) == others
    seeds = [str(seed) if seed != FAULTY_SEED else "-1" for seed in range(12)]
    (tmp_path / "rows.csv").write_text("\n".join(["seed", *seeds]))
    skipping = {"path": str(tmp_path / "rows.csv"), "on_bad_row": "skip"}
    assert made("skipped", "pictures", skipping) == others
    assert made("done", "pictures", count, "7") == plain


def test_case_16_memory_stays_flat_over_200_shards(cluster: str, tmp_path: Path) -> None:
    """The cluster's object store holds 100 MB; what is in flight is bounded in the scheduler's tests."""
    storage = Storage(str(tmp_path / "set"))
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((len(storage.list("commits/")), pages * os.sysconf("SC_PAGE_SIZE")))

    thread = threading.Thread(target=watch)
    thread.start()
    result = run(pictures(tmp_path, "pictures", count=800))
    ended.set()
    thread.join()
    assert result.exit_code == 0, result.output
    assert len(committed(storage)) == 200
    early = [size for records, size in seen if 20 <= records < 100]
    late = [size for records, size in seen if 120 <= records < 200]
    assert max(late) < 1.1 * min(early)


def test_bad_rows_are_skipped_and_listed(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("seed,key\n1,a\n-1,b\n3,c\n")
    job = job_file(
        tmp_path,
        target={"name": "pictures", "steps": 20},
        manifest={"path": str(tmp_path / "rows.csv"), "on_bad_row": "skip"},
    )
    result = run(job)
    assert result.exit_code == 1, result.output
    storage = Storage(str(tmp_path / "job"))
    assert sorted(images(storage)) == ["a", "c"]
    (failure,) = failures(storage)
    assert (failure["row"], failure["kind"]) == (1, "bad_row")
    assert committed(storage)[0].skipped == 1


def test_case_18_many_shards_many_workers_and_overwrite(cluster: str, tmp_path: Path) -> None:
    job = pictures(tmp_path, "pictures", count=40, workers={"count": 3})
    assert run(job).exit_code == 0
    storage = Storage(str(tmp_path / "set"))
    (tmp_path / "set" / "notes.txt").write_text("not ours")
    result = run(job, "--set", "output.overwrite=true", "--set", "output.shard_size=8")
    assert result.exit_code == 0, result.output
    assert len(committed(storage)) == 5
    assert sorted(row["seed"] for row in images(storage).values()) == list(range(40))
    assert storage.read("notes.txt") == b"not ours"


def test_case_22_a_job_on_s3_with_a_cluster_of_its_own(
    unbroken: Storage, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the environment tells of S3, and without RAY_ADDRESS the run starts Ray itself."""
    uri = f"s3://test-bucket/{tmp_path.name}"
    job = job_file(tmp_path, manifest={"range": {"count": 8, "labels": "cycle"}})
    output, status = finish(start(job, "--output", uri, RAY_ADDRESS="", **server.environment))
    assert status == 0, output
    assert "Traceback" not in output
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert hashes(Storage(uri)) == {seed: made for seed, made in hashes(unbroken).items() if seed < 8}


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--set", "target.name=fashion-mnits"], 2, "did you mean 'fashion-mnist'"),
        (["--set", "evaluate.extractor=nothing", "--set", "evaluate.reference=fashion-mnist"], 2, "nothing"),
        (["--output", "gs://bucket/set"], 2, "only local folders and s3://"),
        (["--workers", "0"], 2, "--workers"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    tmp_path: Path, options: list[str], status: int, message: str
) -> None:
    result = run(job_file(tmp_path), *options)
    assert result.exit_code == status, result.output
    assert message in result.output
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("folder", ["file", "link", "/proc/x"])
def test_an_output_that_cannot_be_made_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "set")
    result = run(job_file(tmp_path), "--output", str(tmp_path / folder))
    assert result.exit_code == 2, result.output
    assert str(tmp_path / folder) in result.output
    assert "choose another" in result.output


def test_check_refuses_an_output_that_run_refuses(tmp_path: Path) -> None:
    job = job_file(tmp_path, output={"uri": "gs://x/y"})
    result = CliRunner().invoke(main, ["check", str(job)], catch_exceptions=False)
    assert result.exit_code == 2, result.output
    assert "gs://x/y: only local folders and s3://" in result.output


def test_check_targets_and_schema(tmp_path: Path) -> None:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    result = invoke("check", str(job_file(tmp_path)))
    assert result.exit_code == 0, result.output
    assert "24 rows, 0 of them bad" in result.output
    assert "5 shards of 5 png" in result.output
    assert not (tmp_path / "job").exists()
    assert "fashion-mnist: 1×28×28, 10 classes and a null class" in invoke("targets").output
    assert "draft_length" in json.loads(invoke("schema").output)["$defs"]["SamplerSpec"]["properties"]
