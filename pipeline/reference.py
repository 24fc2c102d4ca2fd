"""The job file's reference page, in Markdown, from its JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_HEAD = """\
# The job file

Made from the schema by `specdiff schema --markdown`; `specdiff schema` prints the schema. Unknown keys are refused,
with the nearest known one. `--set section.key=value` of `check`, `run` and `bench` overrides a setting for once.
"""


def markdown(schema: Schema) -> str:
    """The page: a table for the top, then one for each section, each setting once."""
    return "\n".join([_HEAD, *_table(schema, schema), *_sections(schema, schema, ())]) + "\n"


def _sections(node: Schema, root: Schema, at: tuple[str, ...]) -> Iterator[str]:
    for key, value in node["properties"].items():
        if (section := _section(value, root)) is not None:
            path = (*at, key)
            yield f"\n{'#' * (len(path) + 1)} `{'.'.join(path)}`\n\n{section['description']}\n"
            yield from _table(section, root)
            yield from _sections(section, root, path)


def _table(node: Schema, root: Schema) -> Iterator[str]:
    yield "| setting | value | default | |"
    yield "|---|---|---|---|"
    for key, value in node["properties"].items():
        section = _section(value, root)
        text = value.get("description") or (section or {}).get("description", "")
        yield f"| `{key}` | {_kind(value, root)} | {_default(key, value, node)} | {_cell(text)} |"


def _section(value: Schema, root: Schema) -> Schema | None:
    """What a setting refers to, if that is a section of its own."""
    for each in (value, *value.get("anyOf", ())):
        if "$ref" in each:
            found: Schema = root["$defs"][each["$ref"].rpartition("/")[2]]
            return found
    return None


def _kind(value: Schema, root: Schema) -> str:
    if _section(value, root) is not None:
        return "section"
    kinds = [each for each in value.get("anyOf", [value]) if each.get("type") != "null"]
    return " or ".join(_plain(each) for each in kinds)


def _plain(value: Schema) -> str:
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if value["type"] == "array":
        return f"list of {_plain(value['items'])}" + ("" if "enum" in value["items"] else "s")
    bounds = [
        f"{sign} {value[name]}"
        for name, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        # The largest seed is an integer's own end.
        if name in value and value[name] < 2**62
    ]
    names = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    return " ".join([names[value["type"]], ", ".join(bounds)]).strip()


def _default(key: str, value: Schema, node: Schema) -> str:
    if key in node.get("required", ()):
        return "required"
    if value.get("default") is None:
        return ""
    return f"`{json.dumps(value['default'], ensure_ascii=False)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
