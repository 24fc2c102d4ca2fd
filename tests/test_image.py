"""The container image: what it is made of is pinned, complete and let through, and it runs as nobody special."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from importlib.metadata import requires

from manifests import INFRA
from packaging.requirements import Requirement

ROOT = INFRA.parent
# One instruction a line.
DOCKERFILE = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (INFRA / "Dockerfile").read_text(), flags=re.MULTILINE))
LOCK = dict(line.split("==") for line in (INFRA / "requirements.lock").read_text().splitlines())


def _instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def test_bases_are_pinned_by_digest() -> None:
    own = {"${DEVICE}", "system"}
    bases = [each.partition(" AS ") for each in _instructions("FROM")]
    outside = {name: image for image, _, name in bases if image not in own}
    assert set(outside) == {"cuda", "cpu"}
    for image in outside.values():
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image)
    # The driver is asked for what torch's own CUDA needs.
    assert outside["cuda"].startswith(f"nvidia/cuda:{LOCK['cuda-toolkit'][:6]}-")


def test_it_runs_as_nobody_special() -> None:
    *_, last = _instructions("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last)  # a number: Kubernetes cannot tell whether a name is root
    after = DOCKERFILE[DOCKERFILE.rindex("USER") :]
    assert not re.search(r"^(RUN|COPY)", after, re.MULTILINE)


def test_it_takes_nothing_from_elsewhere_and_holds_no_secret() -> None:
    assert not _instructions("ADD")
    assert not re.search(r"curl|wget +-|sudo|--trusted-host|https?://", DOCKERFILE)
    assert not re.search(r"^(ARG|ENV).*(TOKEN|SECRET|PASSW|KEY)", DOCKERFILE, re.MULTILINE)
    for command in _instructions("RUN"):
        if "apt-get install" in command:
            assert "--no-install-recommends" in command
            assert "rm -rf /var/lib/apt/lists" in command
        for each in re.findall(r"pip install [^&;]*", command):
            assert "-c requirements.lock" in each or "--no-deps --no-build-isolation ." in each


def test_the_lock_has_every_dependency() -> None:
    for wanted in map(Requirement, requires("specdiff") or ()):
        if wanted.marker is None or wanted.marker.evaluate({"extra": "diffusers"}):
            assert wanted.specifier.contains(LOCK[wanted.name.replace("_", "-").lower()])


def test_the_lock_is_exact() -> None:
    assert all(re.fullmatch(r"[\d.]+(post\d+|[ab]\d+|rc\d+|b\d+)?", version) for version in LOCK.values())
    assert len(LOCK) > 80


def test_what_it_copies_is_let_through_and_nothing_else() -> None:
    first, *rest = (line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#"))
    assert first == "*"
    let = [line[1:] for line in rest if line.startswith("!")]
    copied = [name for each in _instructions("COPY") if "--from" not in each for name in each.split()[:-1]]
    copied = [name.replace("${WEIGHTS}", "infra/weights") for name in copied]
    assert sorted(copied) == sorted(let)
    assert all((ROOT / name).exists() for name in let)
    for private in (".git", ".venv", "out", "jobs", "shared", ".env", "infra/ray-token"):
        assert not any(fnmatch(private, pattern) for pattern in let)
