"""The bench counts right, disturbs nothing, and writes what it found."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from torch import Tensor
from toy import cosine, mixture

from pipeline.cli import main
from specdiff import Request, Sampler, Transitions
from specdiff.bench import Entry, PeakMemory, entries, measure, spread
from specdiff.bench_report import draw, table
from specdiff.claims import Checks, Gain, claims_table
from specdiff.clock import clocked
from specdiff.targets import GaussianMixture
from specdiff.testing import ToyChain, offset

CPU = torch.device("cpu")


def requests(count: int) -> list[Request]:
    return [Request(str(i), i) for i in range(count)]


def load(*, steps: int, eta: float = 1.0) -> GaussianMixture:
    plain = mixture(steps, 2, 3)
    transitions = Transitions.ddim(cosine(steps), eta)
    return GaussianMixture(plain._means, plain._variances.sqrt(), plain._weights, transitions)


class Brightness:
    """Distance of the mean grey level from 100: a quality that is quick."""

    name = "brightness"

    def features(self, images: NDArray[np.uint8]) -> Tensor:
        return torch.from_numpy(images).float().flatten(1)

    def score(self, features: Tensor) -> float:
        return abs(float(features.mean()) - 100)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return measure(
        load, entries(24, [4, 2]), requests(20), lanes=4, repeats=2, turn=0.01, quality=Brightness()
    )  # fmt: skip


def test_rows_are_those_that_are_always_compared(report: dict[str, Any]) -> None:
    assert [row["name"] for row in report["rows"]] == [
        "sequential", "sequential, half the steps", "sequential, a quarter", "token, free, γ = 4",
        "reflection, free, γ = 4", "block, free, γ = 2", "block, free, γ = 4", "block, frozen, γ = 2",
        "block, frozen, γ = 4",
    ]  # fmt: skip
    assert [row["steps"] for row in report["rows"][:4]] == [24, 12, 6, 24]
    first = report["rows"][0]
    assert (first["throughput_ratio"], first["latency_ratio"]) == (1, 1)


def test_counts_are_the_samplers_own(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        stats = Sampler(load(steps=row["steps"]), lanes=4, **row["settings"]).sample(requests(20)).stats
        assert row["sequential_speedup"] == stats.sequential_speedup
        assert row["block_efficiency"] == stats.block_efficiency
        assert row["calls_per_image"] * 20 == pytest.approx(stats.calls)
        assert row["evaluations_per_image"] * 20 == pytest.approx(stats.evaluations)
        assert row["quality"]["count"] == row["images"] == 20
        assert row["images_per_s"]["low"] <= row["images_per_s"]["median"] <= row["images_per_s"]["high"]
        assert row["latency_s"]["median"] > 0
        assert row["overhead"]["median"] > 0
    assert [row["calls_per_image"] for row in report["rows"][:3]] == [24, 12, 6]


def test_report_survives_json_and_names_machine_and_software(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report)) == report
    assert report["hardware"]["processor"]
    assert report["software"]["torch"] == torch.__version__


def test_table_is_aligned_and_has_every_row(report: dict[str, Any]) -> None:
    costs, drafts = table(report).split("\n\n")
    assert len(costs.splitlines()) == 1 + 9
    assert len(drafts.splitlines()) == 1 + 6
    assert len({len(line) for line in costs.splitlines()}) == 1
    assert "brightness (20)" in costs


def test_pictures(report: dict[str, Any], tmp_path: Path) -> None:
    assert {path.name for path in draw(report, tmp_path, ["png"])} == {"trajectory.png", "quality.png"}
    unjudged = report | {"rows": [row | {"quality": None} for row in report["rows"]]}
    assert [path.name for path in draw(unjudged, tmp_path, ["svg"])] == ["trajectory.svg"]
    assert "(20)" not in table(unjudged)


@pytest.mark.parametrize("drafter", ["free", "frozen"])
@pytest.mark.parametrize("verification", ["token", "reflection", "block"])
def test_counters_along_the_trajectory_add_up(verification: str, drafter: str) -> None:
    target = load(steps=20)
    sampler = Sampler(target, verification=verification, drafter=drafter, draft_length=4, lanes=3)
    stats = sampler.sample(requests(10)).stats
    assert sum(stats.drafts_by_part) == sum(stats.drafted_by_position)
    assert sum(stats.rounds_by_part) == stats.drafted_by_position[0]
    undrafted = 0 if drafter == "frozen" else 10  # a first round of an image has nothing to go by
    assert sum(stats.rounds_by_part) <= stats.rounds - undrafted
    alone = stats.rounds - sum(stats.rounds_by_part)  # rounds that drafted nothing took a step each
    assert sum(stats.advanced_by_part) + alone == stats.steps
    assert stats.drafts_by_part[0] == 10 - undrafted
    assert all(delta >= 0 for delta in stats.delta_by_part)


def test_counters_along_the_trajectory_tell_how_far_off_drafts_were() -> None:
    sampler = Sampler(ToyChain(12), drafter=offset(0.5), draft_length=3, lanes=4, verification="token")
    along = sampler.sample(requests(20)).stats.along()
    assert along["at"] == pytest.approx([(i + 0.5) / 12 for i in range(12)])
    assert along["delta"][1:11] == pytest.approx([0.5] * 10, rel=1e-6)
    assert along["delta"][0] is None, "a first round has nothing to go by"
    assert along["delta"][11] is None, "the last step is deterministic"


def test_a_failed_image_leaves_no_mark_on_the_mean_distance() -> None:
    class Failing(ToyChain):
        def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
            answer = super().denoise(state, step, conditioning)
            return torch.where((step == 7)[:, None], torch.nan, answer)

    stats = Sampler(Failing(12), draft_length=3, lanes=4).sample(requests(4)).stats
    assert stats.failed == 4
    assert np.isfinite(stats.delta_by_part).all()
    assert 0 < sum(stats.drafts_by_part) < sum(stats.drafted_by_position)


def test_clock_is_the_networks() -> None:
    class Slow(ToyChain):
        def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
            time.sleep(0.005)
            return super().denoise(state, step, conditioning)

    target = clocked(Slow(6))
    assert target.shape == (2,)
    Sampler(target, lanes=2, verification="none").sample(requests(2))
    assert 0.03 <= target.taken() < 0.3
    assert target.taken() == 0


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2, "low": 1.5, "high": 2.5}
    assert spread([3.0]) == {"median": 3, "low": 3, "high": 3}


def test_peak_memory_is_that_of_its_own_stretch() -> None:
    megabytes = 200
    idle = PeakMemory(CPU).peak()
    watch = PeakMemory(CPU)
    held = torch.ones(megabytes * 2**18)
    busy = watch.peak()
    del held
    if idle is None or busy is None:
        pytest.skip("this system does not tell")
    assert busy > idle + megabytes * 2**20 * 0.8
    assert (PeakMemory(CPU).peak() or 0) < busy


def test_images_that_fail_are_no_benchmark() -> None:
    class Broken(ToyChain):
        def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
            return torch.full_like(state, torch.nan)

    with pytest.raises(ValueError, match="NaN or infinity"):
        measure(lambda steps: Broken(steps), [Entry("a", 4, {"verification": "none"})], requests(2), lanes=2)


def test_claims() -> None:
    found = Checks(load, requests(40), steps=40, draft_length=5, images=20, paths=2000, quality=Brightness()).run()
    by_name = {claim["claim"]: claim for claim in found["claims"]}
    assert len(by_name) == len(found["claims"]) == 12
    laws = [claim for claim in found["claims"] if claim["law"]]
    assert [claim["holds"] for claim in laws] == [True, True]
    assert found["settings"]["images"] == {"40": 3, "10": 5, "4": 20}
    assert claims_table(found).count("paper  ") == 12
    with pytest.raises(ValueError, match="twice as many rows"):
        Checks(load, requests(30), steps=40, draft_length=5, images=20)


def test_gains_are_compared_by_their_errors() -> None:
    small, large, vague = Gain(0.02, 0.005, 3.0), Gain(0.06, 0.005, 3.0), Gain(0.03, 0.02, 3.0)
    assert large.exceeds(small)
    assert small.exceeds(large) is False
    assert vague.exceeds(small) is None


def test_command(tmp_path: Path) -> None:
    quick = ["--set", "target.steps=8", "--set", "sampler.lanes=2", "--set", "sampler.draft_length=3"]
    quick += ["--set", "sampler.drafter=picard", "--set", "sampler.verification=reflection"]
    quick += ["--images", "4", "--repeats", "1", "--turn", "0", "--draft-length", "2", "--output", str(tmp_path)]
    done = CliRunner().invoke(main, ["bench", "jobs/fashion.yaml", *quick])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["job"] == "fashion"
    assert [row["name"] for row in report["rows"][3:7]] == [
        "token, free, γ = 3", "reflection, free, γ = 3", "block, free, γ = 2", "block, free, γ = 3",
    ]  # fmt: skip
    assert report["rows"][-1]["name"] == "reflection, picard, γ = 3"  # the job's own
    assert (tmp_path / "trajectory.png").stat().st_size > 10_000
    assert (tmp_path / "quality.svg").exists()
    assert "images/s" in (tmp_path / "bench.txt").read_text()


def test_command_wants_enough_rows(tmp_path: Path) -> None:
    few = ["--set", "manifest.range.count=3", "--images", "4", "--output", str(tmp_path)]
    done = CliRunner().invoke(main, ["bench", "jobs/fashion.yaml", *few])
    assert done.exit_code == 2
    assert "3 good rows, and this needs 4" in done.output
