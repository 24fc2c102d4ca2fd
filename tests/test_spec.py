"""Job files: what is accepted, and that everything else is refused in words that help."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.run import checked
from pipeline.spec import Job, differences, identity, load_job
from specdiff import inspect_target
from specdiff.targets.base import TargetInfo

JOBS = Path(__file__).parents[1] / "jobs"

JOB = """\
name: test
target: {name: fashion-mnist, steps: 100}
sampler:
  draft_length: 5
  lanes: 8
manifest:
  range: {count: 20, labels: cycle}
output: {uri: out/test}
evaluate: {extractor: fashion-mnist, reference: fashion-mnist}
"""

INFO = TargetInfo(
    name="fashion-mnist",
    description="",
    shape=(1, 28, 28),
    num_classes=10,
    has_null_class=True,
    takes_prompts=False,
    steps=100,
    licence="MIT",
    weights_sha256="abc",
)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_job(str(path), overrides)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert "pydantic" not in message
    assert "https://" not in message
    return message


def test_values_and_defaults(job_file: Path) -> None:
    job = load_job(str(job_file))
    assert job.target.settings() == {"steps": 100}
    assert (job.sampler.draft_length, job.sampler.lanes, job.sampler.verification) == (5, 8, "block")
    assert job.manifest.range is not None
    assert (job.manifest.range.count, job.manifest.range.seed) == (20, 0)
    assert job.output.image_format == "png"
    assert job.workers.gpus is None
    assert pickle.loads(pickle.dumps(job)) == job
    assert Job.model_validate(json.loads(job.model_dump_json())) == job


@pytest.mark.parametrize("name", ["fashion", "fashion-50k", "nightly"])
def test_job_files_of_the_repository(name: str) -> None:
    assert load_job(str(JOBS / f"{name}.yaml")).name == name


def test_overrides_are_read_as_yaml(job_file: Path) -> None:
    job = load_job(
        str(job_file),
        [
            "sampler.lanes=32",
            "target.eta=5e-1",
            "manifest.range=null",
            "manifest.path=s3://bucket/rows.csv",
            "workers.count=3",
            "evaluate=null",
            "output.overwrite=true",
        ],
    )
    assert (job.sampler.lanes, job.sampler.draft_length, job.target.eta, job.workers.count) == (32, 5, 0.5, 3)
    assert job.manifest.path == "s3://bucket/rows.csv"
    assert job.evaluate is None
    assert job.output.overwrite is True


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  lanes: 8", "  lane: 8", ":5: sampler.lane: unknown key; did you mean `sampler.lanes`?"),
        ("sampler:", "sampling:", ":3: sampling: unknown key; did you mean `sampler`?"),
        ("name: test", "name: test\nlanes: 3", ":2: lanes: unknown key; did you mean `sampler.lanes`?"),
        ("labels: cycle", "lables: cycle", "manifest.range.lables: unknown key; did you mean `manifest.range.labels`?"),
        ("name: test", "name: test\nzzz: 3", "zzz: unknown key; known here: name, target,"),
        ("name: test", "name: {a: 1}", "name.a: unknown key; `name` holds no keys of its own"),
        ("  lanes: 8", "  lanes: 8\n  lanes: 9", ":6: `lanes` is there twice, first in line 5"),
        ("output: {", "output: {{", "begun in line 8"),
        ("uri: out/test", "uri: out/{date}", ":8: not valid YAML"),
        ("uri: out/test", "uri: out/{date}", "text that holds braces needs quotes here"),
        ("name: test", "name: [test", "not valid YAML"),
        ("name: test", "name: &a [*a]", "not valid YAML"),
        ("name: test\n", "", "name: is required"),
        ("name: test", "name: 7", ":1: name: must be text; if it is meant as text, put it in quotes; got 7"),
        ("lanes: 8", "lanes: many", "sampler.lanes: must be a whole number; got 'many'"),
        ("lanes: 8", "lanes: 8.0", "sampler.lanes: must be a whole number; got 8.0"),
        ("lanes: 8", "lanes: true", "sampler.lanes: must be a whole number; got True"),
        ("lanes: 8", "lanes: 0", "sampler.lanes: must be at least 1; got 0"),
        ("steps: 100", "steps: 100, eta: 2", "target.eta: must be at most 1; got 2"),
        ("steps: 100", "steps: 100, eta: .nan", "target.eta: must be a finite number"),
        ("lanes: 8", "held: y", "sampler.held: must be `x0`, `eps` or `v`; got 'y'"),
        ("sampler:\n", "sampler: 3\nx:\n", "x: unknown key"),
        ("labels: cycle", "labels: cycl", "must be `cycle` or a list of class numbers, as in [0, 3]; got 'cycl'"),
        ("labels: cycle", "labels: [1, x]", "must be `cycle` or a list of class numbers"),
        ("count: 20", f"count: 20, seed: {2**63 - 5}", "beyond the largest seed"),
        ("range:", "path: a.csv\n  range:", "needs exactly one of `path` (a file or glob) and `range`"),
        ("  range: {count: 20, labels: cycle}", "  on_bad_row: skip", "needs exactly one of `path`"),
        ("reference: fashion-mnist", "reference: fashion-mnist, metrics: []", "evaluate.metrics: must not be empty"),
        ("reference: fashion-mnist", "reference: fashion-mnist, metrics: fid", "must be a list, as in [a, b]"),
    ],
)
def test_refusals_name_place_and_remedy(job_file: Path, old: str, new: str, expected: str) -> None:
    assert old in JOB
    job_file.write_text(JOB.replace(old, new, 1))
    message = refusal(job_file)
    assert expected in message
    assert str(job_file) in message


def test_all_problems_are_told_at_once(job_file: Path) -> None:
    message = refusal(job_file, "sampler.lanes=0", "target.steps=x", "output.overwrite=1")
    assert len(message.splitlines()) == 3
    assert "--set target.steps: must be a whole number; got 'x'" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sampler.lanez=3", "--set sampler.lanez: unknown key; did you mean `sampler.lanes`?"),
        ("draft_length=3", "did you mean `sampler.draft_length`?"),
        ("sampler.lanes", "expected key=value"),
        ("sampler.lanes=[", "--set sampler.lanes: the value is not valid YAML"),
        ("sampler=3", "--set sampler: must be a section of keys; got 3"),
    ],
)
def test_refused_overrides(job_file: Path, override: str, expected: str) -> None:
    assert expected in refusal(job_file, override)


@pytest.mark.parametrize("content", ["", "- a", "name", "\x00"])
def test_files_that_are_no_mapping(job_file: Path, content: str) -> None:
    job_file.write_text(content)
    assert refusal(job_file).startswith(str(job_file))


def test_unreadable_files(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: café".encode("latin-1"))
    assert "not UTF-8 text (byte 9)" in refusal(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: test", "name: test\naws_secret_access_key: hunter2hunter2"),
        ("name: test", "name: test\ncredentials: {user: hunter2hunter2}"),
        ("name: fashion-mnist, steps", "name: fashion-mnist, hf_token: hunter2hunter2, steps"),
        ("uri: out/test", "uri: 's3://user:hunter2hunter2@host/bucket'"),
        ("uri: out/test", "uri: 's3://bucket/x?X-Amz-Signature=hunter2hunter2'"),
        ("reference: fashion-mnist", "reference: 'https://:hunter2hunter2@host/ref.npz'"),
        ("name: test", "name: AKIAHUNTER2HUNTER2HU"),
    ],
)
def test_secrets_are_refused_and_not_repeated(job_file: Path, old: str, new: str) -> None:
    assert old in JOB
    job_file.write_text(JOB.replace(old, new, 1))
    message = refusal(job_file)
    assert "must not hold a secret" in message
    assert "hunter2" not in message.lower()


def test_secrets_in_overrides_are_refused(job_file: Path) -> None:
    message = refusal(job_file, "output.uri=s3://user:hunter2@host/bucket")
    assert "must not hold a secret" in message
    assert "hunter2" not in message


def test_an_at_sign_in_a_path_is_no_secret(job_file: Path) -> None:
    assert load_job(str(job_file), ["output.uri=s3://bucket/sets@home"]).output.uri == "s3://bucket/sets@home"


def test_every_field_of_the_schema_is_described() -> None:
    schema = Job.model_json_schema()
    for name, definition in {"Job": schema, **schema["$defs"]}.items():
        assert definition["additionalProperties"] is False
        assert definition["description"], name
        for key, field in definition["properties"].items():
            assert "$ref" in field or field.get("description"), f"{name}.{key}"


def test_identity_and_differences(job_file: Path) -> None:
    job = load_job(str(job_file))
    old = identity(job, INFO, 48, "m1")
    assert json.loads(json.dumps(old)) == old
    free = ["name=other", "workers.count=4", "evaluate=null", "output.uri=elsewhere", "sampler.lanes=2"]
    assert differences(old, identity(load_job(str(job_file), free), INFO, 48, "m1")) == []
    # A longer manifest is no difference here: `manifest.normalise` compares its rows.
    assert differences(old, identity(job, INFO, 48, "m2")) == []
    changed = load_job(str(job_file), ["sampler.draft_length=7", "output.shard_size=5", "target.eta=0.5"])
    assert differences(old, identity(changed, replace(INFO, weights_sha256="def"), 64, "m1")) == [
        "output.shard_size: 256 there, 5 here",
        "sampler.batch_rows: 48 there, 64 here",
        "sampler.draft_length: 5 there, 7 here",
        "target.eta: 1.0 there, 0.5 here",
        "target.weights_sha256: abc there, def here",
    ]
    assert differences({"target": {"name": "a", "steps": None}}, {"target": {"name": "a"}, "x": 1}) == [
        "x: nothing there, 1 here"
    ]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["sampler.drafter=picard"], "biased under block"),
        (["sampler.verification=reflection", "sampler.correction=transport"], "its own correction"),
        (["sampler.gain=kalman", "sampler.held=v"], "corrects a held x0"),
        (["sampler.gain=kalman", "sampler.drafter=frozen"], "made where it is used"),
    ],
)
def test_settings_that_cannot_go_together_are_refused_with_the_reason(overrides: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        checked(load_job("jobs/fashion.yaml", overrides))


def test_the_gain_is_part_of_the_identity_by_its_hash() -> None:
    overrides = ["sampler.drafter=picard", "sampler.verification=reflection", "sampler.gain=kalman"]
    with_gain, without = load_job("jobs/fashion.yaml", overrides), load_job("jobs/fashion.yaml", overrides[:2])
    info = inspect_target("fashion-mnist")
    assert identity(with_gain, info, 128, "")["sampler"]["gain_sha256"] == info.gain_sha256
    assert "gain_sha256" not in identity(without, info, 128, "")["sampler"]
