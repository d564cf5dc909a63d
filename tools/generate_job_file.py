"""Generates the job file that `ottla pipeline init` writes, and docs/job-file.schema.json, which describes job files.

`init` copies the generated file, so that it works without the pipeline's libraries, which the declarations need.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.pipeline.job_file.schema import Key, SectionSchema

PATH = "src/ottla/pipeline/job_file/example.toml"
SCHEMA = "docs/job-file.schema.json"
_WIDTH = 110
_HEAD = """\
# A job of `ottla pipeline`. Lines that begin with #key show what a key is when it is left out, or what it may be.
# `ottla pipeline check --job FILE` says what is wrong in it, line by line; `ottla pipeline run --job FILE` runs it.
"""


def generate() -> dict[str, str]:
    """The files, by their paths in the repository."""
    from ottla.pipeline.job_file.job import SECTIONS
    from ottla.pipeline.job_file.json_schema import json_schema

    return {PATH: example(SECTIONS), SCHEMA: json.dumps(json_schema(SECTIONS), indent=2) + "\n"}


def example(sections: Iterable[SectionSchema]) -> str:
    """The text. It reads without a mistake as it is."""
    return "\n".join([_HEAD, *("\n".join(_lines(section, "")) for section in sections)])


def _lines(section: SectionSchema, above: str, *, off: bool = False) -> Iterator[str]:
    """`off`: all of it as a comment, where a job may well have none of it."""
    name = f"{above}{section.name}"
    off = off or not section.defaults_to_present
    yield from _comment(section.doc)
    live = not off and any(key.required or _shown(section, key) for key in section.keys)
    brackets = f"[[{name}]]" if section.many else f"[{name}]"
    yield brackets if live or (above == "" and not off) else f"#{brackets}"
    for key in section.keys:
        yield from _comment(f"{key.name}: {key.doc}" + (f" One of {', '.join(key.choices)}." if key.choices else ""))
        value = key.example or '""'
        shown = not off and (key.required or _shown(section, key))
        yield f"{key.name} = {value}" if shown else f"#{key.name} = {value}"
    if section.entries is not None:
        yield from _comment(section.entries.doc)
        if section.entries.example:
            yield f"#{section.entries.example}"
    yield ""
    for sub in section.sections:
        yield from _lines(sub, f"{name}.", off=off)


def _shown(section: SectionSchema, key: Key) -> bool:
    """Not commented out: what a person has to look at."""
    return (section.name, key.name) in {("brokers", "bootstrap"), ("load", "topics"), ("load", "format")}


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
