"""docs/metrics.md: the table of all metrics, from their declarations, and that of alerts, from their rules."""

from __future__ import annotations

import re
from pathlib import Path

from ottla.metrics import reader  # noqa: F401 - with the collectors come the declarations
from ottla.metrics.page import COUNTER, FAMILIES

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/metrics.md")
RULES = Path("packaging/prometheus/ottla.rules.yml")
BEGIN, END = "<!-- generated: tools/generate_metrics.py -->", "<!-- end of what is generated -->"
BEGIN_ALERTS, END_ALERTS = "<!-- generated from the rules -->", "<!-- end of the rules -->"
RULE = re.compile(
    r"- alert: (?P<name>\w+)\n.*?(?:for: (?P<wait>\w+)\n.*?)?severity: (?P<severity>\w+)"
    r'.*?summary: "(?P<summary>.*?)"\n.*?action: "(?P<action>.*?)"\n',
    re.DOTALL,
)


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


def alerts() -> str:
    """Return the alerts in the order of their rules."""
    rows = ["| Alert | Severity | After | Says | To do |", "| --- | --- | --- | --- | --- |"]
    for each in re.split(r"(?=- alert: )", (ROOT / RULES).read_text(encoding="utf-8"))[1:]:
        rule = RULE.match(each)
        assert rule is not None, f"a rule is not written as the others: {each}"
        shown = re.sub(r"{{ \$(?:labels\.)?(\w+).*?}}", lambda name: f"*{name[1].upper()}*", rule["summary"])
        action = rule["action"].replace('\\"', '"')
        rows.append(f"| `{rule['name']}` | {rule['severity']} | {rule['wait'] or 'at once'} | {shown} | {action} |")
    return "\n".join(rows)


def generate() -> dict[Path, str]:
    """Return the page with its tables."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for begin, end, content in ((BEGIN, END, table()), (BEGIN_ALERTS, END_ALERTS, f"{alerts()}\n")):
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n\n{content}\n{end}{after}"
    return {PAGE: text}
