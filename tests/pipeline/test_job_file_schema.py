"""docs/job-file.schema.json takes the job files that the reader takes, and refuses what no section declares."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline.job_file.job import SECTIONS
from ottla.pipeline.job_file.json_schema import json_schema

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/job-file.schema.json").read_text())
TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
MINIMAL = '[brokers]\nbootstrap = "b:9092"\n[lake]\npath = "lake"\n'


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    """Validate by the words of JSON schema that the document uses."""
    if "oneOf" in schema and sum(is_valid(one, value) for one in schema["oneOf"]) != 1:
        return False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(
        isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds
    ):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str):
        return len(value) >= schema.get("minLength", 0) and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        return all(is_valid(schema.get("items", {}), one) for one in value)
    if isinstance(value, dict):
        more = schema.get("additionalProperties")
        return set(schema.get("required", ())) <= set(value) and all(
            is_valid(schema["properties"][name], one)
            if name in schema["properties"]
            else isinstance(more, dict) and is_valid(more, one)
            for name, one in value.items()
        )
    return not isinstance(value, int) or value >= schema.get("minimum", value)


def test_the_page_is_generated_from_the_declared_sections() -> None:
    assert json_schema(SECTIONS) == SCHEMA
    assert set(SCHEMA["properties"]) == {section.name for section in SECTIONS}


def test_the_example_of_every_key_is_valid() -> None:
    text = (ROOT / "src/ottla/pipeline/job_file/example.toml").read_text()
    lines = (line.removeprefix("#") if re.match(r"#(\[|\w+ = (?!\"\"$))", line) else line for line in text.splitlines())
    assert is_valid(SCHEMA, tomllib.loads("\n".join(lines)))


@pytest.mark.parametrize(
    ("more", "valid"),
    [
        ("", True),
        ('[[load]]\ntopics = "a"\nquarantine_max = "5%"\nfile_size = 5\nstart = -1\n', True),
        ('[[load]]\ntopics = ["a"]\n[load.columns]\nid = "long"\n', True),
        ('[[load]]\ntopic = "a"\n', False),
        ('[[load]]\nformat = "xml"\n', False),
        ("[[load]]\nquarantine_max = 5\n", False),
        ('[load]\ntopics = "a"\n', False),
        ("[other]\n", False),
        ("[[load]]\n[load.columns]\nid = 5\n", False),
        ("[[load]]\nchecksums = 1\n", False),
        ('[report]\ntitle = "without an output"\n', False),
    ],
)
def test_files_are_valid_or_not_as_for_the_reader(more: str, valid: bool) -> None:
    assert is_valid(SCHEMA, tomllib.loads(MINIMAL + more)) is valid
