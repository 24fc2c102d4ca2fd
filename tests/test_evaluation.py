"""What is scored of a set, what is refused, what is said beside the score, and what is kept for the next time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from clothes import clothes, write_pictures
from committed_set import job, write_job, write_set

from pipeline.cli import main
from pipeline.commits import committed
from pipeline.errors import PipelineError, UsageError
from pipeline.evaluation import check_evaluation, evaluate
from pipeline.extractors import Extractor, load_extractor
from pipeline.feature_store import compute_features, entry_paths
from pipeline.lease import Lease
from pipeline.output import remove_set
from pipeline.spec import EvaluateSpec, Job
from pipeline.storage import Storage
from specdiff.targets.fashion_mnist.data import DEFAULT_FOLDER

needs_data = pytest.mark.skipif(not DEFAULT_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")
IMAGES, _ = clothes(600)


def score(storage: Storage, **settings: Any) -> dict[str, Any]:
    return evaluate(storage, job(**settings), partial=False, threads=1, device="cpu")["fid"]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every batch that an extractor sees from now on."""
    seen: list[int] = []
    original = Extractor.__call__

    def call(self: Extractor, images: Any) -> Any:
        seen.append(len(images))
        return original(self, images)

    monkeypatch.setattr(Extractor, "__call__", call)
    return seen


def test_a_set_is_at_no_distance_from_itself(tmp_path: Path) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:200])
    found = score(storage, reference=storage.uri)
    assert found["value"] == 0
    assert found["noise_floor"] > 0.1


@needs_data
def test_noise_raises_the_score(tmp_path: Path) -> None:
    """Far beyond what 600 images leave to chance: 0.16 ± 0.03 as they are, 0.75 ± 0.09 with this noise."""
    noise = np.random.default_rng(0).normal(0, 10, IMAGES.shape)
    noisy = write_set(tmp_path / "noisy", np.clip(IMAGES + noise, 0, 255).round().astype(np.uint8))
    clean = score(write_set(tmp_path / "clean", IMAGES))
    assert clean["value"] < 0.3
    assert score(noisy)["value"] > clean["value"] + 0.3
    assert clean["reference_count"] == 10_000


def test_both_sides_conditions_are_recorded(tmp_path: Path) -> None:
    found = score(write_set(tmp_path / "set", IMAGES[:100]))
    assert found["images"] == {"resolution": "28×28", "formats": "PNG", "resize": "none"} == found["reference_images"]
    assert (found["count"], found["reference_count"]) == (100, 10_000)
    assert found["warnings"] == []


def test_too_few_images_for_the_features_are_marked(tmp_path: Path) -> None:
    few = score(write_set(tmp_path / "set", IMAGES[:64]))
    assert few["warnings"] == ["64 images for 64 features: too few to judge the set by"]


@pytest.mark.parametrize(
    ("count", "metric", "message"),
    [
        (1, "fid", "two images at least, and there are 1"),
        (9, "inception_score", "needs 10 images, one a split, and there are 9"),
        (3, "precision_recall", "need 4 images on each side, and there are 3"),
    ],
)
def test_too_few_images_for_a_metric_are_refused(tmp_path: Path, count: int, metric: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        score(write_set(tmp_path / "set", IMAGES[:count]), metrics=[metric])


def test_an_incomplete_set_is_scored_only_when_asked(tmp_path: Path) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:80], rows=100)
    with pytest.raises(PipelineError, match=r"20 rows have no image yet.*--partial") as refused:
        score(storage)
    assert refused.value.exit_code == 1
    asked = evaluate(storage, job(), partial=True, threads=1, device="cpu")["fid"]
    assert asked == score(storage, partial=True)
    assert asked["count"] == 80
    assert asked["warnings"] == ["partial: 20 rows have no image"]


def test_debris_in_the_manifest_is_not_missed(tmp_path: Path) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:80])
    pq.write_table(pa.table({"key": ["a"]}), tmp_path / "part.parquet")
    storage.upload(str(tmp_path / "part.parquet"), "manifest/part-00001.parquet")
    assert score(storage)["count"] == 80


def test_nothing_is_computed_unasked(tmp_path: Path) -> None:
    unasked = job().model_copy(update={"evaluate": None})
    assert evaluate(write_set(tmp_path / "set", IMAGES[:3]), unasked, partial=False, threads=1, device="cpu") == {}


def test_features_are_kept_and_only_new_files_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_set(tmp_path / "whole", IMAGES[:90], files=3)
    right = score(whole)
    storage = write_set(tmp_path / "set", IMAGES[:90], files=3)
    last = committed(storage)[-1]
    storage.remove(last.path)
    evaluate(storage, job(), partial=True, threads=1, device="cpu")
    storage.create(last.path, last.to_json().encode())
    seen = counted(monkeypatch)
    assert score(storage) == right
    assert seen == [30]
    assert score(storage) == right
    assert seen == [30]
    score(storage, metrics=["inception_score", "fid"])
    assert seen == [30] * 4, "class scores were not kept before"
    score(storage, metrics=["fid", "kid"])
    assert seen == [30] * 4


def test_an_interrupted_evaluation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:90], files=3)
    original = Extractor.__call__
    calls = iter(range(10))

    def call(self: Extractor, images: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return original(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "__call__", call)
        with pytest.raises(KeyboardInterrupt):
            score(storage)
    seen = counted(monkeypatch)
    score(storage)
    assert seen == [30]


def test_kept_features_are_never_those_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:40])
    other = write_set(tmp_path / "other", IMAGES[40:80])
    right, (record,), (strange,) = score(storage), committed(storage), committed(other)
    score(other)
    extractor = load_extractor("fashion-mnist", None, "cpu")
    (path, _), (strange_path, _) = entry_paths(record, extractor), entry_paths(strange, extractor)
    assert path != strange_path
    whole = storage.read(path)
    seen = counted(monkeypatch)
    # Another file's features under this one's name, half a file, and one of another kind.
    for damaged in (other.read(strange_path), whole[: len(whole) // 2], b"{}"):
        storage.replace(path, damaged)
        assert score(storage) == right
    assert seen == [40] * 3
    assert storage.read(path) == whole


def test_a_changed_data_file_is_refused_though_its_features_are_kept(tmp_path: Path) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:40])
    score(storage)
    (record,) = committed(storage)
    other = write_set(tmp_path / "other", IMAGES[40:80])
    (Path(storage.uri) / record.file).write_bytes(other.read(record.file))
    with pytest.raises(
        PipelineError, match=r"data/part-00000\.parquet is damaged \(.*not the file that was committed\)"
    ):
        score(storage)
    (Path(storage.uri) / record.file).unlink()
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet is gone"):
        score(storage)


def test_a_file_that_holds_less_than_its_record_is_named(tmp_path: Path) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:5])
    (record,) = committed(storage)
    network = load_extractor("fashion-mnist", None, "cpu")
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet has 5 images where its record says 6"):
        compute_features(storage, replace(record, written=6), network)


def test_images_of_a_size_that_the_extractor_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet.*26×28 pixels, not 28×28"):
        score(write_set(tmp_path / "set", np.ascontiguousarray(IMAGES[:3, :, 1:-1])))


def test_case_20_grey_counts_as_three_equal_channels(tmp_path: Path) -> None:
    grey = score(write_set(tmp_path / "grey", IMAGES[:100]))
    colour = score(write_set(tmp_path / "rgb", IMAGES[:100].repeat(3, axis=3)))
    assert grey == colour


def test_case_20_transparent_images_are_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet: 000000000000: .*mode RGBA"):
        score(write_set(tmp_path / "set", np.zeros((3, 28, 28, 4), np.uint8)))


def test_case_20_a_format_that_loses_detail_is_warned_of(tmp_path: Path) -> None:
    storage = write_set(tmp_path / "set", IMAGES[:100], image_format="jpeg")
    assert score(storage)["warnings"] == [
        "the images are JPEG, those of fashion-mnist PNG: JPEG loses detail, and that counts as distance"
    ]
    reference = write_pictures(tmp_path / "reference", IMAGES[100:300], "jpeg")
    assert score(storage, reference=reference)["warnings"] == []


def test_what_cannot_be_evaluated_is_refused_beforehand(tmp_path: Path) -> None:
    def check(**settings: Any) -> None:
        check_evaluation(EvaluateSpec.model_validate({"reference": "fashion-mnist", **settings}))

    check(extractor="fashion-mnist", metrics=["fid", "inception_score", "kid", "precision_recall"])
    with pytest.raises(UsageError, match=r"evaluate\.extractor: vgg16 is not available"):
        check(extractor="vgg16")
    with pytest.raises(UsageError, match=r"evaluate\.weights: there is no file"):
        check(weights=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="made by the extractor fashion-mnist"):
        check()
    with pytest.raises(UsageError, match="inception_score needs class scores, which clip-vit-b-32 does not have"):
        check(extractor="clip-vit-b-32", metrics=["inception_score"])
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="made with other weights of fashion-mnist"):
        check(extractor="fashion-mnist", weights=str(tmp_path / "weights.safetensors"))


def described(folder: Path) -> tuple[Storage, Job]:
    """A set with its `job.json`, for commands."""
    made = Job.model_validate({**job().model_dump(), "output": {"uri": "unused", "shard_size": 30}})
    storage = write_set(folder, IMAGES[:90], files=3)
    write_job(storage, made, 90)
    return storage, made


def test_the_command_writes_its_report_under_the_lease(tmp_path: Path) -> None:
    storage, _ = described(tmp_path / "set")
    with Lease(storage, 120.0):
        result = CliRunner().invoke(main, ["evaluate", storage.uri], catch_exceptions=False)
    assert result.exit_code == 3
    assert "another driver is at work there (process" in result.output
    assert not storage.exists("report/report.json")
    result = CliRunner().invoke(main, ["evaluate", storage.uri], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(storage.read("report/report.json"))["metrics"]["fid"]["count"] == 90
    assert "its halves" in result.output, "the noise floor stands beside the score"


def test_kept_features_are_ours_to_clean_and_to_remove(tmp_path: Path) -> None:
    storage, _ = described(tmp_path / "set")
    reference = write_pictures(tmp_path / "pictures", IMAGES[100:200])
    score(storage, reference=reference)
    kept = storage.list("report/features/")
    assert len(kept) == 4, "three files' and the reference's"
    last = committed(storage)[-1]
    storage.remove(last.path)
    storage.replace("report/features/mine.npz", b"")
    result = CliRunner().invoke(main, ["clean", storage.uri], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (stale,) = (path for path in kept if "part-00002" in path)
    assert result.output.splitlines() == [f"removed {last.file}", f"removed {stale}", "2 files removed"]
    remove_set(storage)
    assert storage.list("report/") == ["report/features/mine.npz"], "somebody else's"


def test_large_sets_are_evaluated_by_ray_data(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = score(write_set(tmp_path / "plain", IMAGES[:150], files=5))
    monkeypatch.setattr("pipeline.evaluation.PLAIN_IMAGES", 100)
    seen = counted(monkeypatch)
    storage = write_set(tmp_path / "set", IMAGES[:150], files=5)
    workers = {"count": 2, "gpus": 0}
    by_actors = Job.model_validate({**job().model_dump(), "workers": workers})
    assert evaluate(storage, by_actors, partial=False, threads=1, device="cpu")["fid"] == right
    assert seen == [], "by none here"
    broken = write_set(tmp_path / "broken", np.zeros((150, 28, 28, 4), np.uint8), files=5)
    with pytest.raises(PipelineError, match=r"data/part-0000\d\.parquet: 0000000000\d\d: .*mode RGBA"):
        evaluate(broken, by_actors, partial=False, threads=1, device="cpu")
