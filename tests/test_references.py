"""What a set may be scored against: every form of reference, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from clothes import clothes, write_pictures
from committed_set import job, write_set
from PIL import Image

from pipeline.aggregate import Aggregate
from pipeline.cli import main
from pipeline.encoding import encode
from pipeline.errors import PipelineError, UsageError
from pipeline.evaluation import evaluate
from pipeline.extractors import Extractor, load_extractor
from pipeline.features import extracted
from pipeline.metrics import mismatches
from pipeline.picture_sources import open_source
from pipeline.pictures import rgb
from pipeline.references import Reference, load_reference, make_reference
from pipeline.storage import Storage

IMAGES, LABELS = clothes(400)


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return load_extractor("fashion-mnist", None, "cpu")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return write_set(tmp_path_factory.mktemp("scored"), IMAGES[:100])


def score(storage: Storage, reference: str, **settings: Any) -> dict[str, Any]:
    return evaluate(storage, job(reference=reference, **settings), partial=False, threads=1, device="cpu")["fid"]


def folder(at: Path) -> str:
    return write_pictures(at / "pictures", IMAGES[100:])


def tables(at: Path) -> str:
    """Two Parquet files in a sub-folder, as `datasets` writes them, one of them with bare bytes."""
    (at / "tables" / "train").mkdir(parents=True)
    encoded = [encode(image, "png") for image in IMAGES[100:]]
    structs = pa.table({"image": [{"bytes": data, "path": None} for data in encoded[:200]]})
    pq.write_table(structs, at / "tables" / "train" / "0.parquet")
    pq.write_table(pa.table({"img": encoded[200:]}), at / "tables" / "train" / "1.parquet")
    return str(at / "tables")


def one_table(at: Path) -> str:
    encoded = [encode(image, "png") for image in IMAGES[100:]]
    pq.write_table(pa.table({"img": encoded, "label": LABELS[100:]}), at / "all.parquet")
    return str(at / "all.parquet")


def data_set(at: Path) -> str:
    made = write_set(at / "other", IMAGES[100:], files=3)
    made.upload(str(at / "other" / "part.parquet"), "data/part-00009.parquet")  # debris
    return made.uri


def statistics(at: Path) -> str:
    output = str(at / "statistics.npz")
    done = CliRunner().invoke(
        main, ["stats", folder(at), "--extractor", "fashion-mnist", "--output", output], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "300: 300 PNG, 28×28 pixels" in done.output
    return output


@pytest.mark.parametrize("form", [folder, tables, one_table, data_set, statistics])
def test_the_same_images_in_any_form_give_the_same_score(
    tmp_path: Path, storage: Storage, form: Callable[[Path], str]
) -> None:
    right = score(storage, write_pictures(tmp_path / "right", IMAGES[100:]))
    found = score(storage, form(tmp_path))
    assert found["value"] == pytest.approx(right["value"], rel=1e-9)
    assert found["reference_images"] == right["reference_images"]
    assert found["warnings"] == []
    assert found["noise_floor"] is not None


def test_a_reference_of_images_is_computed_once(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = folder(tmp_path)
    right = score(storage, name)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.references.make_reference", None)
        assert score(storage, name) == right
    (tmp_path / "pictures" / "0000.png").unlink()
    assert score(storage, name)["reference_count"] == 299


def test_case_21_npz_of_mu_and_sigma_alone(tmp_path: Path, storage: Storage, extractor: Extractor) -> None:
    """EDM's and pytorch-fid's layout."""
    whole = make_reference(open_source(folder(tmp_path)), extractor)
    np.savez(tmp_path / "bare.npz", mu=whole.gaussian.mu, sigma=whole.gaussian.sigma)
    found = score(storage, str(tmp_path / "bare.npz"))
    assert found["value"] == pytest.approx(score(storage, str(tmp_path / "pictures"))["value"], rel=1e-12)
    assert found["reference_count"] is None
    assert found["noise_floor"] is None
    (warning,) = found["warnings"]
    assert "does not say of what size and format its images are; the set's are 28×28 PNG" in warning
    with pytest.raises(UsageError, match="kid needs features of the reference's images"):
        score(storage, str(tmp_path / "bare.npz"), metrics=["kid"])


def test_statistics_are_read_as_they_were_written(tmp_path: Path, extractor: Extractor) -> None:
    written = make_reference(open_source(one_table(tmp_path)), extractor)
    read = Reference.from_bytes(written.to_bytes(), written.name)
    assert sorted(read.classes) == sorted(set(LABELS[100:].tolist()))
    for field in ("name", "extractor", "weights_sha256", "resize", "facts"):
        assert getattr(read, field) == getattr(written, field) is not None
    assert np.array_equal(read.features, written.features)
    ours, others = ([each.gaussian, *each.classes.values()] for each in (read, written))
    for one, other in zip(ours, others, strict=True):
        assert one.count == other.count
        assert np.array_equal(one.mu, other.mu)
        assert np.array_equal(one.sigma, other.sigma)


def test_case_20_jpeg_references_are_read_and_the_mismatch_is_named(tmp_path: Path, storage: Storage) -> None:
    reference = write_pictures(tmp_path / "jpeg", IMAGES[100:], "jpeg")
    found = score(storage, reference)
    assert found["reference_images"]["formats"] == "JPEG"
    assert found["warnings"] == [
        f"the images are PNG, those of {reference} JPEG: JPEG loses detail, and that counts as distance"
    ]


def test_case_20_grey_references_are_converted(tmp_path: Path, storage: Storage) -> None:
    grey = score(storage, write_pictures(tmp_path / "grey", IMAGES[100:]))
    colour = score(storage, write_pictures(tmp_path / "colour", IMAGES[100:].repeat(3, axis=3)))
    assert colour["value"] == grey["value"]


MODES = {"RGBA": "a.png", "P": "p.png", "LA": "l.png", "CMYK": "c.jpg", "I;16": "i.png", "1": "b.png"}


@pytest.mark.parametrize(("mode", "name"), MODES.items())
def test_case_20_references_without_one_right_conversion_are_refused_by_name(
    tmp_path: Path, storage: Storage, mode: str, name: str
) -> None:
    reference = write_pictures(tmp_path / "pictures", IMAGES[100:103])
    Image.new(mode, (28, 28)).save(Path(reference) / name)
    with pytest.raises(PipelineError, match=rf"pictures/{name}: a picture of mode {mode}; only 8-bit grey and RGB"):
        score(storage, reference)


WHOLE = encode(np.random.default_rng(0).integers(256, size=(28, 28, 1), dtype=np.uint8), "png")


@pytest.mark.parametrize("data", [b"", b"no picture", WHOLE[:-100]], ids=["empty", "text", "cut short"])
def test_broken_images_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(PipelineError, match="file: key: the picture cannot be read"):
        rgb(data, "file: key")


def test_other_sizes_are_warned_of(tmp_path: Path, extractor: Extractor) -> None:
    """By an extractor that takes any size, as all but ours do."""
    any_size = Extractor("any", "0", "64", None, "by itself", lambda x: (x.float().mean(dim=(2, 3)),), "cpu")
    large = write_pictures(tmp_path / "large", np.ascontiguousarray(IMAGES[:4].repeat(2, axis=1)))
    small = write_pictures(tmp_path / "small", IMAGES[:4])
    (Path(large) / "x.png").write_bytes(encode(IMAGES[5], "png"))
    aggregate = Aggregate(any_size)
    for batch in extracted(open_source(large), any_size):
        aggregate.add(batch)
    found = mismatches(aggregate.facts, make_reference(open_source(small), extractor), any_size)
    assert found == [
        "the images are of several sizes, 28×28 to 28×56",
        f"the images are 28×28 to 28×56, those of {small} 28×28",
        f"the images were resized by itself, those of {small} none",
    ]


UNIT = {"mu": np.zeros(64), "sigma": np.eye(64)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mu": np.zeros(64)}, "not an npz file with mu and sigma"),
        ({"mu": np.zeros(64), "sigma": np.zeros((64, 32))}, "finite mean"),
        ({"mu": np.full(64, np.nan), "sigma": np.eye(64)}, "finite mean"),
        ({"mu": np.zeros(64), "sigma": -np.eye(64)}, "sigma is no covariance"),
        ({"mu": np.zeros(64), "sigma": np.triu(np.ones((64, 64)))}, "sigma is no covariance"),
        ({"mu": np.array(["a"]), "sigma": np.eye(1)}, "not an npz file"),
        ({"mu": np.array([{}], dtype=object), "sigma": np.eye(1)}, "not an npz file"),
        ({"mu": np.zeros(64), "sigma": np.eye(64), "said": '{"extractor": "other"}'}, "made by the extractor other"),
        (
            {"mu": np.zeros(64), "sigma": np.eye(64), "said": '{"extractor": "fashion-mnist", "weights_sha256": "0"}'},
            "other weights",
        ),
        ({"mu": np.zeros(64), "sigma": np.eye(64), "said": "nonsense"}, "not an npz file"),
        ({"mu": np.zeros(2048), "sigma": np.eye(2048)}, "2048 dimensions, and fashion-mnist computes 64"),
    ],
)
def test_references_that_are_refused(tmp_path: Path, storage: Storage, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "r.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        score(storage, str(tmp_path / "r.npz"))


def test_references_that_are_not_there(tmp_path: Path, extractor: Extractor) -> None:
    def load(name: str) -> Reference:
        return load_reference(name, extractor, ["fid"])

    with pytest.raises(UsageError, match="no file"):
        load(str(tmp_path / "r.npz"))
    with pytest.raises(UsageError, match="there is no such file"):
        load(str(tmp_path / "r.parquet"))
    with pytest.raises(UsageError, match="fashion_mnist: there is no folder with images"):
        load("fashion_mnist")
    (tmp_path / "text.npz").write_text("mu, sigma")
    with pytest.raises(UsageError, match="not an npz file"):
        load(str(tmp_path / "text.npz"))
    with pytest.raises(UsageError, match="has 1 images, and two are the fewest"):
        load(write_pictures(tmp_path / "one", IMAGES[:1]))
    pq.write_table(pa.table({"pixels": [1]}), tmp_path / "t.parquet")
    with pytest.raises(PipelineError, match=r"t\.parquet: no column of images \(image or img\) among \['pixels'\]"):
        load(str(tmp_path / "t.parquet"))
    pq.write_table(pa.table({"image": [b"", None]}), tmp_path / "t.parquet")
    with pytest.raises(PipelineError, match=r"t\.parquet: row 0: the picture cannot be read"):
        load(str(tmp_path / "t.parquet"))
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match=r"t\.parquet is damaged"):
        load(str(tmp_path / "t.parquet"))
