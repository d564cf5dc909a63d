"""The causes that the rules of `ottla why` find, loaded beside what may not be well; and those of the whole cluster."""

from __future__ import annotations

from ottla.client.errors import CannotConnect
from ottla.console.pages.page import Page
from ottla.console.visit import Refused, Visit
from ottla.core.errors import KafkaError
from ottla.diagnosis.diagnose import NOTES, diagnose
from ottla.diagnosis.rule import Subject
from ottla.http.web import Response

_SUBJECTS = frozenset({Subject.TOPIC, Subject.GROUP, Subject.CLIENT, Subject.BROKER})


async def why(visit: Visit) -> Response:
    """Show why something is not well, as a part of its page."""
    try:
        subject = Subject(visit.path("subject"))
    except ValueError:
        subject = Subject.CONNECTION
    if subject not in _SUBJECTS:
        raise Refused(f"there are no rules about a {visit.path('subject')}", 404)
    name, problem, findings = visit.path("name"), "", []
    try:
        findings = (await diagnose(await visit.cluster(), subject, name, token=visit.options.http_token)).findings
    except (KafkaError, CannotConnect) as error:
        problem = str(error)
    return visit.page(
        "why.html", findings=findings, notes=NOTES, problem=problem, cli=visit.cli("why", str(subject), name)
    )


async def doctor(visit: Visit) -> Response:
    """Show everything that is not well in the cluster."""
    diagnosis = await diagnose(await visit.cluster(), Subject.CLUSTER, token=visit.options.http_token)
    return visit.page(
        "doctor.html",
        title="Doctor",
        findings=diagnosis.findings,
        notes=NOTES,
        unread=diagnosis.unread,
        has_events=diagnosis.has_events,
        cli=visit.cli("doctor"),
    )


PAGES = (Page("/why/{subject}/{name:path}", why), Page("/doctor", doctor))
