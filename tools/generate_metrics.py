"""docs/metrics.md: the table of all metrics, from their declarations."""

from __future__ import annotations

from pathlib import Path

from ottla.metrics import reader  # noqa: F401 - with the collectors come the declarations
from ottla.metrics.page import COUNTER, FAMILIES

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/metrics.md")
BEGIN, END = "<!-- generated: tools/generate_metrics.py -->", "<!-- end of what is generated -->"


def table() -> str:
    """Return the metrics by group, in the order of their declaration."""
    groups: dict[str, list[str]] = {}
    for family in FAMILIES.values():
        name = f"{family.name}_total" if family.kind == COUNTER else family.name
        labels = ", ".join(f"`{label}`" for label in family.labels)
        groups.setdefault(family.group, []).append(f"| `{name}` | {family.kind} | {labels} | {family.help} |")
    parts = []
    for group in sorted(groups):
        parts += [f"### {group}", "", "| Name | Type | Labels | |", "| --- | --- | --- | --- |", *groups[group], ""]
    return "\n".join(parts)


def generate() -> dict[Path, str]:
    """Return the page with its table."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return {PAGE: f"{before}{BEGIN}\n\n{table()}\n{END}{after}"}
