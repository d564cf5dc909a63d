"""docs/configuration.md and docs/protocol-support.md, from the code they describe."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from ottla.broker.config import SECTIONS
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS, Api
from ottla.core.settings import default_of, settings_of, text_of
from ottla.wire.apis import ApiKey

HANDLERS = Path(__file__).resolve().parent.parent / "src" / "ottla" / "broker" / "handlers"

CONFIGURATION_HEAD = """# Configuration

Generated from the declarations in the code by `make generate`; `make check` compares.

Ottla reads Kafka's own `server.properties`, with Kafka's names. A value comes from the first of these that has it:

1. for *live* settings, a change at run time: of this broker (`ottla config set broker/1`), then of all (`broker`);
2. the command line: `--port`, `--host`, `--data`, `-o name=value`;
3. environment variables: `OTTLA_` and the name in capitals with `_` for `.` (`OTTLA_LOG_SEGMENT_BYTES`);
4. the file given by `--config`;
5. the default below.

All invalid settings are reported together, each with its source. Unknown names in a file are listed in one warning; an
unknown name on the command line is an error. So is a setting of Kafka's security that Ottla does not have (Kerberos,
classes of Java): a start without it would look like one with it. Those of a KRaft quorum (`process.roles`) have no
effect, and are named in a warning, and so are settings of TLS, SASL and ACLs that no listener and no authorizer uses. A
duration or a size may have a unit: `log.retention.hours=7d`, `log.segment.bytes=512MiB`. `ottla server --check`
validates everything and starts nothing. *Live* settings change without a restart, by `ottla config set` or any Kafka
client's AlterConfigs. The column *Meaning* names the topic setting that overrides a setting of the broker, if there is
one ([topic settings](topic-settings.md)).

The log level is not a setting but the environment variable `OTTLA_LOG_LEVEL` ([operating](operating.md#logs)).

"""

PROTOCOL_HEAD = """# Protocol support

Generated from the table of APIs and the heads of the handlers by `make generate`; `make check` compares.

Ottla answers these APIs of Kafka's protocol, in every version from the oldest that Kafka 4 still serves to its newest.
Every claim is held by tests with foreign clients and by a comparison with Apache Kafka 4.4.0, field by field
(`tests/compat`, `tests/differential`). `make test-plain` repeats the comparison with 4.1.1, the oldest that is tried.

| Key | API | Versions |
| --- | --- | --- |
"""

BETWEEN_BROKERS = """## Between brokers

Served to the other brokers of a cluster. ApiVersions does not list them.

"""

NOT_SERVED = """## Not served

Answered as Kafka answers an API it does not know: the connection is closed, and ApiVersions does not list it.

| Key | API |
| --- | --- |
"""


def generate() -> dict[str, str]:
    """The pages by their path from the root of the repository."""
    return {"docs/configuration.md": configuration(), "docs/protocol-support.md": protocol_support()}


def configuration() -> str:
    """One table per section."""
    return CONFIGURATION_HEAD + "\n".join(markdown(title, section) for title, section in SECTIONS.values())


def markdown(title: str, section: type[Any]) -> str:
    """The table of a section."""
    rows = [f"## {title}", "", "| Setting | Default | Unit | Live | Meaning |", "| --- | --- | --- | --- | --- |"]
    for name, spec in settings_of(section).items():
        doc = spec.doc + (f" One of: {', '.join(spec.choices)}." if spec.choices else "")
        doc += f" Topics override it with `{spec.topic_key}`." if spec.topic_key else ""
        doc += f" Without effect: {spec.no_effect}." if spec.no_effect else ""
        doc += f" Also set by {', '.join(f'`{key}`' for key in spec.synonyms)}." if spec.synonyms else ""
        default = text_of(default_of(section, name)) or "(empty)"
        rows.append(f"| `{spec.key}` | {default} | {spec.unit} | {'yes' if spec.live else 'no'} | {doc} |")
    return "\n".join(rows) + "\n"


def protocol_support() -> str:
    """The table of what is served, each handler's own words, and what is not served."""
    rows = sorted(APIS.values(), key=lambda api: api.key)
    table = "".join(f"| {api.key.value} | [{title(api)}](#{anchor(api)}) | {versions(api)} |\n" for api in rows)
    details = "\n".join(f"### {title(api)}\n\n{body(api)}\n" for api in rows)
    brokers = sorted(INTER_BROKER_APIS.values(), key=lambda api: api.key)
    between = "".join(f"### {title(api)}\n\n{body(api)}\n" for api in brokers)
    served = {*APIS, *INTER_BROKER_APIS}
    missing = "".join(f"| {key.value} | {key.name} |\n" for key in ApiKey if key not in served)
    return (
        PROTOCOL_HEAD
        + table
        + "\n## In detail\n\n"
        + details
        + "\n"
        + BETWEEN_BROKERS
        + between
        + "\n"
        + NOT_SERVED
        + missing
    )


def head(api: Api) -> str:
    """A handler's docstring, without importing it."""
    found = ast.get_docstring(ast.parse((HANDLERS / f"{api.module}.py").read_text(encoding="utf-8")))
    assert found, f"{api.module} has no head"
    return found


def title(api: Api) -> str:
    """`Produce`, as Kafka writes it."""
    return head(api).split(" ", 1)[0]


def anchor(api: Api) -> str:
    """The title as a link within the page."""
    return title(api).lower()


def versions(api: Api) -> str:
    """The versions served, and what is advertised where that is more."""
    served = f"{api.min_version} to {api.max_version}" if api.min_version != api.max_version else f"{api.min_version}"
    return served if api.advertised_min_version is None else f"{served} (advertised from {api.advertised_min_version})"


def body(api: Api) -> str:
    """The head's paragraphs as Markdown: its headings bold, the versions a list."""
    lines, heading = [], ""
    for line in head(api).splitlines()[1:]:
        if line.startswith("Step "):
            break
        if line and not line.startswith(" "):
            heading = line
            lines += [f"**{line}**", ""]
        elif heading == "Versions" and line.startswith("  v"):
            lines.append("- " + line.strip())
        else:
            lines.append(line.strip())
    return "\n".join(lines).strip() + "\n"
