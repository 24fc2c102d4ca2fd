"""The documentation tells of the code that is there: pages made from it are current, every command in them exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

from pipeline.cli import main
from pipeline.reference import markdown
from pipeline.spec import Job, load_job

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "infra" / "README.md", *sorted(DOCS.glob("*.md"))]


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_the_job_file_page_is_current() -> None:
    made = markdown(Job.model_json_schema())
    assert (DOCS / "job-file.md").read_text() == made, "make it anew: specdiff schema --markdown > docs/job-file.md"
    for section in Job.model_fields:
        assert f"`{section}`" in made


def test_the_lists_of_the_architecture_page_are_current() -> None:
    architecture = _script("architecture")
    assert architecture.PAGE.read_text() == architecture.page(), "make it anew: python docs/architecture.py"
    modules = {name.partition(".")[2] for name in architecture.modules()}
    patterns = [each for rooms in architecture.ROOMS.values() for _, names in rooms.values() for each in names.split()]
    assert [each for each in patterns if not any(fnmatch(name, each) for name in modules)] == []


def test_the_picture_of_the_architecture_is_the_code() -> None:
    architecture = _script("architecture")
    known = {name.partition(".")[2].rpartition(".")[2]: name for name in architecture.modules()}
    text = architecture.PAGE.read_text()
    picture = re.search(r"```mermaid\n(.*?)```", text, re.DOTALL)
    assert picture is not None
    arrows = re.findall(r'(\w+)(?:\["[^"]*"\])? --> (\w+)', picture[1])
    assert len(arrows) > 20
    for one, other in arrows:
        used = set(architecture.imports(architecture.modules()[known[one]]))
        # A package's own door stands for what is behind it.
        assert known[other] in used or (known[other].startswith("specdiff.") and "specdiff" in used), f"{one} → {other}"
    assert "pipeline" not in {each.partition(".")[0] for name, path in architecture.modules().items()
                              if name.startswith("specdiff.") for each in architecture.imports(path)}  # fmt: skip


def test_the_pictures_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = _script("figures")
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    for draw in (figures.trajectory, figures.coupling):
        draw()
        assert (tmp_path / f"{draw.__name__}.png").stat().st_size > 10_000
    assert {path.stem for path in (DOCS / "figures").iterdir()} == {"trajectory", "coupling", "along", "calls"}


def _commands() -> list[tuple[str, str]]:
    """Every command line of ours in a page, with the page's name."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|;|\|(?!\|)", line.partition(" #")[0]):
                    words = part.strip().removeprefix("$ ").split("specdiff ", 1)
                    if len(words) == 2 and re.fullmatch(r"([\w./-]*/|.*-- |[A-Z_]+=\S* )?", words[0]):
                        found.append((page.name, words[1]))
    return found


@pytest.mark.parametrize(("page", "line"), _commands())
def test_commands_in_the_pages_exist(page: str, line: str) -> None:
    name, *words = shlex.split(line)
    command = main.commands.get(name)
    assert command is not None, f"{page}: specdiff {line}"
    context = click.Context(command, info_name=name, resilient_parsing=False)
    command.make_parser(context).parse_args(words)  # raises for an option that it does not have


def test_a_command_that_is_not_there_is_seen() -> None:
    assert len(_commands()) > 15
    with pytest.raises(click.NoSuchOption):
        main.commands["run"].make_parser(click.Context(main.commands["run"])).parse_args(["job.yaml", "--lanes", "3"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_job_files_in_the_pages_are_valid(page: Path, tmp_path: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        if {"target", "manifest"} <= (yaml.safe_load(block) or {}).keys():
            (tmp_path / "job.yaml").write_text(block)
            load_job(str(tmp_path / "job.yaml"))


def _texts() -> str:
    """All string literals of the packages, the fixed parts of formatted ones among them."""
    trees = [
        ast.parse(path.read_text()) for package in ("pipeline", "specdiff") for path in (ROOT / package).rglob("*.py")
    ]
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(text for text in constants if isinstance(text, str))


def test_messages_in_the_troubleshooting_table_are_the_codes_own() -> None:
    table = (DOCS / "operations.md").read_text().partition("## Troubleshooting")[2]
    quoted = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(quoted) > 15
    texts = _texts()
    # A storage service's own word, and numbers that stand for others.
    fixed = {each: re.sub(r"^\d+ |^worker N (died): …$", r"\1", each) for each in quoted if each != "NoSuchBucket"}
    assert [each for each, part in fixed.items() if part not in texts] == []
