"""Job files as text: strict YAML, overrides by path, and errors that say where, what and what was meant instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.errors import UsageError

KeyPath = tuple[str | int, ...]
WhereFunction = Callable[[KeyPath], str]  # path of keys → how an error names that place

_SECRET_KEY = re.compile(r"access_?key|secret|token|passw|credential|api_?key|private_?key", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"^[a-z][a-z0-9+.-]*://[^/?#\s]*@"  # scheme://user:password@host
    r"|[?&](x-amz-signature|x-amz-credential|x-amz-security-token|sig|signature|token)="  # a signed link
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b",
    re.IGNORECASE,
)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """SafeLoader that also reads 1e-3 as a number, as YAML 1.2 does."""


_BRACES = re.compile(r"[^\s{]\{\w+\}")
_SCIENTIFIC = re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+0123456789"))


def read_yaml(path: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping that a job file holds, and the line of each of its keys.

    Raises UsageError for a file that cannot be read, is not YAML, repeats a key, or is not a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        lines = dict(_key_lines(root, (), path)) if root is not None else {}
        data = loader.construct_document(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        begun = f" ({error.context}, begun in line {error.context_mark.line + 1})" if error.context_mark else ""
        text_there = text.splitlines()[line - 1 : line]
        hint = "; text that holds braces needs quotes here" if any(map(_BRACES.search, text_there)) else ""
        raise UsageError(f"{path}:{line}: not valid YAML: {error.problem}{begun}{hint}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a job file is a mapping with keys such as `name:` and `target:`")
    return data, lines


def _key_lines(node: yaml.Node, at: KeyPath, path: str) -> Iterator[tuple[KeyPath, int]]:
    """(path of keys, line) of every key below a node. Raises UsageError for a key that its mapping holds twice."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{path}:{line}: a key must be plain text")
            if key.value in seen:
                raise UsageError(f"{path}:{line}: `{key.value}` is there twice, first in line {seen[key.value]}")
            seen[key.value] = line
            yield (*at, key.value), line
            yield from _key_lines(value, (*at, key.value), path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _key_lines(value, (*at, index), path)


def apply_overrides(data: dict[str, Any], overrides: Sequence[str], model: type[BaseModel]) -> dict[str, Any]:
    """A copy of `data` with each `a.b=value` put in; the value is read as YAML.

    Raises UsageError for text without `=`, an unknown path, or a value that is not YAML.
    """
    result: dict[str, Any] = {**data}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals:
            raise UsageError(f"--set {override}: expected key=value, as in --set sampler.lanes=32")
        keys = path.strip().split(".")
        refuse_unknown(_nested(keys, None), model, lambda at: f"--set {dotted(at)}")
        try:
            value = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {path}: the value is not valid YAML; put it in quotes if it is text") from error
        _put(result, keys, value)
    return result


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    return {keys[0]: _nested(keys[1:], value) if len(keys) > 1 else value}


def _put(data: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Sets data[keys[0]][keys[1]]…, copying the mappings on the way and making those that are absent."""
    for key in keys[:-1]:
        inner = data.get(key)
        data[key] = {**inner} if isinstance(inner, dict) else {}
        data = data[key]
    data[keys[-1]] = value


def refuse_secrets(data: Any, where: WhereFunction, at: KeyPath = ()) -> None:
    """Raises UsageError, without the value, where a key is named like a secret or a text holds one."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(key, str) and _SECRET_KEY.search(key):
                raise UsageError(f"{where((*at, key))}: {_NO_SECRETS}")
            refuse_secrets(value, where, (*at, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            refuse_secrets(value, where, (*at, index))
    elif isinstance(data, str) and _SECRET_VALUE.search(data):
        raise UsageError(f"{where(at)}: {_NO_SECRETS}")


_NO_SECRETS = (
    "a job file must not hold a secret (it is copied into the data set); take it out, and give credentials through the "
    "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …) or the machine's role"
)


def refuse_unknown(data: Any, model: type[BaseModel], where: WhereFunction) -> None:
    """Raises UsageError for the keys that no model on the way knows, with the nearest ones it does know."""
    problems = [f"{where(at)}: unknown key; {_suggestion(at, model)}" for at in _unknown(data, model, ())]
    if problems:
        raise UsageError("\n".join(problems))


def _unknown(data: Any, model: type[BaseModel], at: KeyPath) -> Iterator[KeyPath]:
    if not isinstance(data, Mapping):
        return
    for key, value in data.items():
        if key not in model.model_fields:
            yield (*at, key)
        elif (inner := _section(model, key)) is not None:
            yield from _unknown(value, inner, (*at, key))
        elif isinstance(value, Mapping):
            yield from ((*at, key, below) for below in value)


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model behind a field that is a section of its own."""
    annotation = model.model_fields[key].annotation
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def known_paths(model: type[BaseModel], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every path of keys that a job file may hold, sections included."""
    paths: list[tuple[str, ...]] = []
    for key in model.model_fields:
        paths.append((*at, key))
        if (inner := _section(model, key)) is not None:
            paths += known_paths(inner, (*at, key))
    return paths


def _suggestion(at: KeyPath, model: type[BaseModel]) -> str:
    """The known key most like the last of `at`: the same name elsewhere, then a sibling, then any."""
    paths = known_paths(model)
    parent, name = at[:-1], str(at[-1])
    siblings = [path[-1] for path in paths if path[:-1] == parent]
    elsewhere = {path[-1]: path for path in reversed(paths)}
    if name in elsewhere:
        return f"did you mean `{dotted(elsewhere[name])}`?"
    if near := difflib.get_close_matches(name, siblings, 1):
        return f"did you mean `{dotted((*parent, near[0]))}`?"
    if near := difflib.get_close_matches(name, list(elsewhere), 1, cutoff=0.75):
        return f"did you mean `{dotted(elsewhere[near[0]])}`?"
    if not siblings:
        return f"`{dotted(parent)}` holds no keys of its own"
    return f"known here: {', '.join(siblings)}"


def describe(error: ValidationError, where: WhereFunction) -> str:
    """One line a problem, in words a reader of the job file knows."""
    return "\n".join(f"{where(each['loc'])}: {_sentence(each)}" for each in error.errors(include_url=False))


_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a finite number",
    "string": "must be text; if it is meant as text, put it in quotes",
    "bool": "must be true or false",
    "list": "must be a list, as in [a, b]",
    "model": "must be a section of keys",
}


def _sentence(error: Any) -> str:
    kind, context = str(error["type"]), error.get("ctx", {})
    got = f"got {shown(error['input'])}"
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"must be {str(context['expected']).replace(chr(39), '`')}; {got}"
    if kind in _BOUNDS:
        name, relation = _BOUNDS[kind]
        return f"must be {relation} {context[name]:g}; {got}"
    if kind.endswith("too_short"):
        return "must not be empty"
    return f"{_KINDS.get(kind.split('_')[0], error['msg'])}; {got}"


def shown(value: Any) -> str:
    """A value as an error shows it: on one line, and not longer than a reader wants."""
    return cut(repr(value))


def cut(text: str) -> str:
    """A text, shortened to 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}…"


def dotted(at: Sequence[str | int]) -> str:
    """('evaluate', 'metrics', 0) → 'evaluate.metrics.0'."""
    return ".".join(str(each) for each in at)
