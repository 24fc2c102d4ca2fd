"""`specdiff compare` tells sets of one law from sets of two, at the false-alarm rate that it states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from clothes import clothes
from committed_set import job, write_job, write_set
from numpy.typing import NDArray
from scipy import stats

from pipeline.cli import main
from pipeline.lease import Lease
from pipeline.storage import Storage
from pipeline.two_sample import paired_band, unpaired_band

SPLITS = 19  # of the simulated tests: a false-alarm rate of 1/20
REPEATS = 200
IMAGES, LABELS = clothes(1200)


def vectors(chance: np.random.Generator, rows: int = 60) -> NDArray[np.float32]:
    """Skewed and correlated, [rows, 6]."""
    mixing = np.random.default_rng(1).normal(size=(6, 6))
    return (chance.exponential(size=(rows, 6)) @ mixing).astype(np.float32)


def alarms(test: str, shift: float) -> int:
    """How often 200 pairs of sets are called different, the second of them shifted in one dimension."""
    found = 0
    for repeat in range(REPEATS):
        chance = np.random.default_rng([repeat, 7])
        a = vectors(chance)
        if test == "paired":
            # A rotation by a third about the axis (1, 1, 1) of independent parts: (a, b) and (b, a) differ in law.
            parts = chance.exponential(size=(60, 3))
            a, b = (np.roll(parts, k, axis=1).astype(np.float32) for k in range(2))
            a, b = np.hstack([a, 0.1 * vectors(chance)]), np.hstack([b, 0.1 * vectors(chance)])
        else:
            b = vectors(chance)
        b[:, 0] += shift
        classes = np.arange(60) % 3
        band = paired_band(a, b, SPLITS) if test == "paired" else unpaired_band(a, b, classes, classes, SPLITS)
        assert band.level == 1 / 20
        found += not band.same
    return found


@pytest.mark.parametrize("test", ["unpaired", "paired"])
def test_false_alarms_come_at_the_stated_rate(test: str) -> None:
    """A right rate fails this once in 10⁴ times; twice the rate passes it less than once in 100."""
    low, high = stats.binom.ppf([5e-5, 1 - 5e-5], REPEATS, 1 / 20)
    assert low <= alarms(test, 0.0) <= high
    assert stats.binom.cdf(high, REPEATS, 1 / 4) < 1e-4


@pytest.mark.parametrize(("test", "shift"), [("unpaired", 4.0), ("paired", 1.5)])
def test_a_shift_is_found(test: str, shift: float) -> None:
    assert alarms(test, shift) > 0.9 * REPEATS


def test_pairs_show_what_independent_sets_hide() -> None:
    chance = np.random.default_rng(0)
    a = vectors(chance, 200)
    b = (a + 0.05 * chance.normal(size=a.shape)).astype(np.float32)
    b[:, 0] += 0.05
    zero = np.zeros(200, np.int64)
    assert unpaired_band(a, b, zero, zero, 99).same
    assert not paired_band(a, b, 99).same


def test_classes_keep_their_shares() -> None:
    """Two classes far apart: if they mixed, a split would be off by much more than what either class is."""
    chance = np.random.default_rng(0)
    classes = np.arange(100) % 2
    a, b = (vectors(chance, 100) + 100 * classes[:, None].astype(np.float32) for _ in range(2))
    kept = unpaired_band(a, b, classes, classes, 99)
    mixed = unpaired_band(a, b, 0 * classes, 0 * classes, 99)
    assert np.median(kept.splits) < 0.1 * np.median(mixed.splits)


def described(folder: Path, images: NDArray[np.uint8], labels: NDArray[np.int64], **more: str) -> Storage:
    storage = write_set(folder, images, labels.tolist(), files=3, **more)
    write_job(storage, job(), len(images))
    return storage


def compared(a: Storage, b: Storage, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", a.uri, b.uri, *arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return described(tmp_path_factory.mktemp("first"), IMAGES[:300], LABELS[:300])


def test_a_set_and_itself(first: Storage) -> None:
    result = compared(first, first)
    assert result.exit_code == 0, result.output
    assert "no difference found: p = 1;" in result.output
    assert "FID         0 between 300 and 300 images" in result.output
    assert "300 of the same key and seed, 300 of them equal; pixels differ by 0 of 255" in result.output
    assert "1 % are called different" in result.output


def test_other_images_of_the_same_kind_and_of_another(first: Storage, tmp_path: Path) -> None:
    """The keys are the same, as of two runs of one job; the pictures have nothing in common."""
    order = np.argsort(LABELS[300:600], kind="stable")
    other = described(tmp_path / "other", IMAGES[300:600][order], LABELS[300:600][order])
    assert compared(first, other).exit_code == 0
    noise = np.random.default_rng(0).normal(0, 12, IMAGES[:300].shape)
    noisy = described(tmp_path / "noisy", np.clip(IMAGES[:300] + noise, 0, 255).round().astype(np.uint8), LABELS[:300])
    result = compared(first, noisy)
    assert result.exit_code == 1
    assert "NOT ONE LAW: p = 0.01" in result.output
    assert "300 of the same key and seed, 0 of them equal; pixels differ by" in result.output


def test_sets_of_other_lengths_formats_and_classes(first: Storage, tmp_path: Path) -> None:
    longer = described(tmp_path / "longer", IMAGES[300:1200], LABELS[300:1200])
    result = compared(first, longer)
    assert result.exit_code == 0, result.output
    assert "between 300 and 900 images" in result.output
    assert "random splits of all these images" in result.output
    some = LABELS[:900] < 5
    half = described(tmp_path / "half", IMAGES[:900][some], LABELS[:900][some], image_format="jpeg")
    result = compared(first, half)
    assert result.exit_code == 1
    assert "A's images are 28×28 PNG, B's 28×28 JPEG" in result.output
    assert "not of the same classes" in result.output


def test_throughput_stands_side_by_side_and_nothing_is_written(first: Storage, tmp_path: Path) -> None:
    quick = described(tmp_path / "quick", IMAGES[:300], LABELS[:300])
    sampler = {"samples": 300, "sequential_speedup": 2.5, "evaluations_per_image": 80.0}
    throughput = {"images_per_s": 12.5, "workers": 2}
    quick.replace("report/report.json", json.dumps({"sampler": sampler, "throughput": throughput}).encode())
    before = {storage.uri: storage.list() for storage in (first, quick)}
    with Lease(first, 120.0):
        result = compared(first, quick)
    assert result.exit_code == 0, "a driver at work is no hindrance"
    assert "no report of a run" in result.output
    assert "12.5 images/s by 2 workers, sequential speed-up 2.5, 80 evaluations an image" in result.output
    lease = [path for path in first.list() if path.startswith("lease/")]
    assert {storage.uri: storage.list() for storage in (first, quick)} == {
        first.uri: sorted(before[first.uri] + lease),
        quick.uri: before[quick.uri],
    }


def test_what_cannot_be_compared_is_refused(first: Storage, tmp_path: Path) -> None:
    result = compared(first, Storage(str(tmp_path)))
    assert result.exit_code == 2
    assert "there is no job.json" in result.output
    one = described(tmp_path / "one", IMAGES[:3], LABELS[:3])
    for path in one.list("commits/")[1:]:
        one.remove(path)
    result = compared(first, one)
    assert result.exit_code == 1
    assert "compared by two images at least, and there are 1" in result.output
    silent = write_set(tmp_path / "silent", IMAGES[:30])
    write_job(silent, job().model_copy(update={"evaluate": None}), 30)
    result = compared(silent, silent)
    assert result.exit_code == 2
    assert "--extractor" in result.output
    assert compared(silent, silent, "--extractor", "fashion-mnist").exit_code == 0
