"""The public names of `ottla.testing` and their signatures, which change with a version only: docs/testing.md.

A change of the list is a change that users see: it needs an entry in changes/. To write the list again:
`python -m tests.tidy.test_public_testing`.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest_ottla

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_name("public_testing.txt")
MODULES = ("ottla.testing", "ottla.testing.unittest", "ottla.testing.containers")
RETURNED = (
    "faults.fault.Fault faults.fault.RequestView faults.history.ClientRequest faults.disk.Disks assertions.topics.Topic "
    "assertions.topics.Record assertions.topics.Records assertions.topics.Offsets assertions.topics.PartitionInfo "
    "assertions.groups.Group assertions.groups.GroupDescription assertions.group_values.Member "
    "assertions.group_values.PartitionLag assertions.group_values.Delivery assertions.transactions.Transaction "
    "assertions.producing.RecordMetadata"
)
"""Classes of the objects that the methods of `Kafka` return or take, below ottla.testing.kit."""


def _signature(value: object) -> str:
    try:
        return str(inspect.signature(value)).replace("'", "")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def _members(name: str, cls: type) -> list[str]:
    found = []
    for member in sorted({member for kind in cls.__mro__[:-1] if _is_ours(kind) for member in vars(kind)}):
        value = inspect.getattr_static(cls, member)
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            found.append(f"{name}.{member}: property")
        elif inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
            function = value if inspect.isfunction(value) else value.__func__
            found.append(f"{name}.{member}{_signature(function)}")
        else:
            found.append(f"{name}.{member}")
    return found


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("ottla.")


def public() -> list[str]:
    """List the public names with their signatures."""
    found = []
    for module in MODULES:
        imported = importlib.import_module(module)
        for name in sorted(imported.__all__):
            value, path = getattr(imported, name), f"{module}.{name}"
            found.append(f"{path}{_signature(value)}")
            if isinstance(value, type) and _is_ours(value):
                found += _members(path, value)
    for path in RETURNED.split():
        module, _, name = path.rpartition(".")
        found += _members(path, getattr(importlib.import_module(f"ottla.testing.kit.{module}"), name))
    return [
        *found,
        *(f"pytest: fixture {name}" for name in ("kafka", "kafka_session")),
        f"pytest: {pytest_ottla._MARK}",
    ]


def test_the_public_names_and_signatures_are_those_that_are_written_down() -> None:
    assert public() == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def test_the_page_names_each_public_module() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    assert [module for module in MODULES if f"`{module}`" not in page] == []


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(public()) + "\n", encoding="utf-8")
