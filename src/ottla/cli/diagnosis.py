"""Runs the rules for `ottla why` and `ottla doctor`, and prints what they find."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from ottla.cli.connection import ConnectionOptions, client_options_of
from ottla.cli.errors import CommandFailed, ExitCode, show_notice, usage_error
from ottla.cli.options import OutputFormat
from ottla.cli.output import alert, show_json
from ottla.client.broker_http import TOKEN_VARIABLE
from ottla.client.cluster import Cluster
from ottla.client.connection import is_http_server
from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError
from ottla.diagnosis.connection_rules import named, of_refused_sign_in, why_not_connected
from ottla.diagnosis.diagnose import Diagnosis, diagnose
from ottla.diagnosis.rule import Finding, Subject

_CONNECT_S, _HTTP_S = 3.0, 3.0


def explain(subject: Subject, name: str, shape: OutputFormat, target: ConnectionOptions) -> None:
    """Print what is found. Raises CommandFailed with exit code 1 if that is something, 3 without a connection."""
    diagnosis = asyncio.run(find(subject, name, target))
    print_findings(diagnosis, shape)
    if diagnosis.findings:
        code = ExitCode.FAILED
        if diagnosis.findings[0].subject is Subject.CONNECTION:
            code = ExitCode.CANNOT_CONNECT
        elif diagnosis.findings[0].rule.startswith("no such"):
            code = ExitCode.NOT_FOUND
        count = len(diagnosis.findings)
        raise CommandFailed(f"{count} {'thing is' if count == 1 else 'things are'} not well", code=code)


async def find(subject: Subject, name: str, target: ConnectionOptions, *, now_ms: int | None = None) -> Diagnosis:
    """Connect and apply the rules; what prevents the connection is a finding, too."""
    from ottla.security.key_stores import InvalidKeyStore

    options, addresses = client_options_of(target), target.addresses()
    token = os.environ.get(TOKEN_VARIABLE, "")
    try:
        async with await Cluster.connect(addresses, options=options) as cluster:
            return await diagnose(cluster, subject, name, token=token, now_ms=now_ms)
    except InvalidKeyStore as error:
        raise usage_error(f"-X {error}") from None
    except CannotConnect as error:
        reason = error.reason
        if options.security.tls is None:
            asked = await asyncio.gather(*(is_http_server(address, timeout_s=_HTTP_S) for address in addresses))
            reason = "it is an HTTP server" if all(asked) else reason
        findings = await why_not_connected(addresses, reason, uses_tls=options.security.tls is not None)
        return Diagnosis(findings, {}, has_events=False)
    except KafkaError as error:
        refused = of_refused_sign_in(error, named(addresses), signs_in=options.security.sasl is not None)
        if refused is None:
            raise
        return Diagnosis([refused], {}, has_events=False)


def print_findings(diagnosis: Diagnosis, shape: OutputFormat) -> None:
    """Print the findings: two lines each, or JSON."""
    if shape is OutputFormat.JSON:
        show_json(
            {
                "findings": [_fields(finding) for finding in diagnosis.findings],
                "unread": diagnosis.unread,
                "has_events": diagnosis.has_events,
            }
        )
        return
    for line in lines_of(diagnosis.findings):
        print(alert(line) if not line.startswith(" ") else line)
    if not diagnosis.findings:
        print("nothing is found that is not well")
    for what, why in diagnosis.unread.items():
        show_notice(f"could not read {what}: {why}")
    if not diagnosis.has_events and (not diagnosis.findings or diagnosis.findings[0].subject is not Subject.CONNECTION):
        show_notice(
            "no events of brokers can be read, so that less is known: set ottla.http.listener or "
            "ottla.events.topic.enable on them"
        )


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Return the lines of findings: what is not well and why, and below it what to do."""
    lines = []
    for finding in findings:
        lines += [f"{finding.about}: {finding.cause}", f"  fix: {finding.fix}"]
    return lines


def _fields(finding: Finding) -> dict[str, Any]:
    return {**finding._asdict(), "subject": str(finding.subject)}
