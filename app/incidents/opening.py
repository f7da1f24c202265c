"""Opening an incident on a live pipeline: what intake holds becomes evidence at once, the rest is sent for.

Raw evidence is copied when the incident opens, so that retention cannot take it away. Functions take the caller's
session and never commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Final

from app.incidents import live_repository as live
from app.incidents.activations import (
    Activation,
    ActivationFilter,
    attempts_of_key,
    get_activation,
    list_activations,
)
from app.incidents.audit import Action, record_event
from app.incidents.deliveries import OUTPUTS
from app.incidents.errors import IncidentError, UnknownPipeline
from app.incidents.exports import DEFAULT_TIMEOUT_S, request_export
from app.incidents.gathering import request_gathering
from app.incidents.live_evidence import add_evidence, collected_evidence
from app.incidents.live_models import Freeze
from app.incidents.models import Evidence, Incident
from app.incidents.store import ReadSession, WriteSession
from app.replay.verdict import key_text

# New records of the key still become evidence for so long: what is late, and what others ask for.
COLLECT_S: Final = 3600.0
# Streams of one bundle arrive apart; an output that has not come by then is taken for one that was not sent.
SETTLE_MS: Final = 3000


async def open_incident(
    session: WriteSession,
    *,
    who: str,
    known: Collection[str],
    activation: str | None = None,
    pipeline: str | None = None,
    entity_key: bytes | None = None,
    seq: int | None = None,
    title: str | None = None,
) -> Incident:
    """Open an incident from a row of the activations (`activation`), or from a pipeline, a key and perhaps a seq.

    `known` names the pipelines of the configuration. Of several attempts of a seq the latest that ran is taken; without
    seq, the latest of the key. A key of which nothing was collected is searched for. Raises `NotFound` for an
    activation that is gone, `UnknownPipeline`, `IncidentError` where nothing is named.
    """
    about = None if activation is None else await get_activation(session, activation)
    if about is not None:
        pipeline, entity_key, seq = about.pipeline, about.entity_key, about.seq
    if pipeline is None or entity_key is None:
        raise IncidentError("name an activation, or a pipeline and a key")
    if pipeline not in known:
        raise UnknownPipeline(pipeline, sorted(known))
    if about is None:
        about = await choose_attempt(session, pipeline, entity_key, seq)
    incident = _incident(who, pipeline, entity_key, about, seq, title)
    session.add(incident)
    await session.flush()
    incident.collect_until = incident.created_at + round(COLLECT_S * 1000)
    # The trail is kept for good, so it names the key by its digest.
    detail = {
        "pipeline": pipeline,
        "key_sha256": hashlib.sha256(entity_key).hexdigest(),
        "seq": incident.seq,
        "clock_ms": incident.clock_ms,
    }
    record_event(session, Action.INCIDENT_OPENED, who=who, subject=incident.id, detail=detail)
    await refresh_incident(session, incident, about)
    await request_gathering(session, incident, who=who)
    return incident


async def choose_attempt(session: ReadSession, pipeline: str, entity_key: bytes, seq: int | None) -> Activation | None:
    """Find the attempt that is meant by a key and a seq: the latest one that ran; None where none was collected."""
    chosen = ActivationFilter(pipeline=pipeline, entity_key=entity_key, seq=seq)
    page = await list_activations(session, chosen, limit=200)
    ran = [one for one in page.items if one.replayable]
    return next(iter(ran or page.items), None)


async def refresh_incident(
    session: WriteSession, incident: Incident, about: Activation | None = None
) -> list[Evidence]:
    """Make evidence of what intake has got since; returns what was added."""
    if incident.pipeline is None or incident.entity_key is None:
        return []
    if about is None:
        about = await attempt_of(session, incident)
    outputs = await outputs_are_complete(session, incident, about)
    offered = await collected_evidence(session, incident, about, outputs=outputs)
    added, _ = await add_evidence(session, incident, offered)
    return added


async def attempt_of(session: ReadSession, incident: Incident) -> Activation | None:
    """Find the collected attempt that an incident is about."""
    if incident.pipeline is None or incident.entity_key is None:
        return None
    if incident.clock_ms is None:
        return await choose_attempt(session, incident.pipeline, incident.entity_key, incident.wanted_seq)
    seqs = None if incident.seq is None else (incident.seq, incident.seq)
    found = await attempts_of_key(
        session, incident.pipeline, incident.entity_key, seqs=seqs, near_ms=incident.clock_ms, limit=20
    )
    at_clock = [one for one in found if one.clock_ms == incident.clock_ms and one.replayable]
    fitting = [one for one in at_clock if incident.kind in (None, "", one.kind) or not one.kind]
    return next(iter(fitting or at_clock), None)


async def outputs_are_complete(session: ReadSession, incident: Incident, about: Activation | None) -> bool:
    """Whether an output of the attempt would be there if it had been sent.

    The collector must have read all there was, some time after the attempt came; until then no output is evidence.
    """
    assert incident.pipeline is not None
    if about is None:
        return False
    streams = await live.streams(session, incident.pipeline)
    logs = [number for number, stream in streams.items() if stream.stream == OUTPUTS]
    if not logs:
        return False
    stored = await live.stored_at(session, about.ranges)
    read = [one.caught_up_at for one, _ in await live.collectors(session) if one.pipeline == incident.pipeline]
    if stored is not None and any(at is not None and at >= stored + SETTLE_MS for at in read):
        return True
    # Under load it never has read everything; then later outputs of every partition say that none is under way.
    records = await live.raw_records(session, about.ranges)
    sent = max((raw.timestamp_ms or 0 for run in records.values() for raw in run), default=0)
    past = await live.read_past(session, logs)
    return bool(sent) and past is not None and past >= sent + SETTLE_MS


async def incidents_about(session: ReadSession, pipeline: str, entity_key: bytes) -> Sequence[Incident]:
    """List the incidents of a key, newest first, so that nobody opens a second one unknowingly."""
    return await live.incidents_about(session, pipeline, entity_key, 20)


# What rules froze ----------------------------------------------------------------------------------------------------


async def open_frozen(
    session: WriteSession, freeze_id: int, *, known: Collection[str], timeout_s: float = DEFAULT_TIMEOUT_S
) -> Incident | None:
    """Open the incident of a freeze and ask for its key's state; None where that was done already.

    The attempt is the one that the rule saw, or what became of it since.
    """
    freeze = await live.freeze(session, freeze_id)
    if freeze is None or freeze.incident_id is not None or freeze.problem is not None:
        return None
    who = f"rule {freeze.rule}"
    about = await _frozen_attempt(session, freeze)
    key = key_text(freeze.entity_key) or freeze.entity_key.hex() or "(empty key)"
    incident = await open_incident(
        session,
        who=who,
        known=known,
        activation=None if about is None else about.id,
        pipeline=freeze.pipeline,
        entity_key=freeze.entity_key,
        seq=freeze.seq,
        title=f"{freeze.rule}: {key}, seq {freeze.seq}",
    )
    await request_export(
        session, incident, who=who, reason=freeze.why, rule=freeze.rule, known=known, timeout_s=timeout_s
    )
    freeze.incident_id = incident.id
    await session.flush()
    return incident


async def _frozen_attempt(session: ReadSession, freeze: Freeze) -> Activation | None:
    found = await attempts_of_key(
        session,
        freeze.pipeline,
        freeze.entity_key,
        seqs=(freeze.seq, freeze.seq),
        near_ms=freeze.clock_ms,
        limit=20,
    )
    at_clock = [one for one in found if one.clock_ms == freeze.clock_ms]
    same = [one for one in at_clock if (one.kind or one.category) == freeze.kind]
    return next(iter(same or at_clock), None)


def _incident(
    who: str, pipeline: str, entity_key: bytes, about: Activation | None, seq: int | None, title: str | None
) -> Incident:
    key = key_text(entity_key) or entity_key.hex() or "(empty key)"
    seq = about.seq if about is not None else seq
    return Incident(
        title=title or (key if seq is None else f"{key}, seq {seq}"),
        created_by=who,
        pipeline=pipeline,
        entity_key=entity_key,
        seq=seq,
        kind=None if about is None else about.kind or None,
        clock_ms=None if about is None else about.clock_ms,
        recorded_status=None if about is None else about.status,
        wanted_seq=seq,
        problem="the triggering envelope has not been found yet",
    )
