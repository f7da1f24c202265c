"""Opening an incident on a live pipeline: what intake holds is copied, what is late is added, nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest

from app.incidents import live, service
from app.incidents.collecting import Intake
from app.incidents.errors import IncidentError, NotFound, UnknownPipeline
from app.incidents.models import AuditEvent
from app.incidents.service import EvidenceFile, Incident, Store
from app.wire import identity
from app.wire.framing import read_frames
from app.wire.records import ActivationErrorRecord, AgentEnvelope, ToolIntent, serialize
from tests.fixtures.postgres import Database
from tests.incidents.live import Topics
from tests.incidents.tracing import Told, attempt, failure

KNOWN = ["p"]


@pytest.fixture
def intake(database: Database) -> Iterator[Intake]:
    made = Intake(database.app, "p")
    made.positions()
    yield made
    made.close()


@pytest.fixture
def topics() -> Topics:
    return Topics()


def send(intake: Intake, topics: Topics, *told: Told) -> None:
    intake.store([topics.batch("traces", [(one.key, value) for one in told for value in one.values])])


async def open_on(store: Store, **more: object) -> Incident:
    async with store.write() as session:
        return await live.open_incident(session, who="ada", known=KNOWN, **more)  # type: ignore[arg-type]


async def files(store: Store, incident: Incident) -> dict[str, list[EvidenceFile]]:
    async with store.read() as session:
        kept = await service.evidence_of(session, incident)
        read = await service.evidence_files(session, incident, [file.id for file in kept])
    found: dict[str, list[EvidenceFile]] = {}
    for file in read:
        found.setdefault(str(file.role), []).append(file)
    return found


def frames(found: list[EvidenceFile]) -> list[bytes]:
    return [payload for file in found for payload in read_frames(file.data).payloads]


async def test_it_takes_the_events_of_its_key_and_of_nobody_else(intake: Intake, topics: Topics, store: Store) -> None:
    mine = [attempt(b"k", seq, 1000 + seq, intents=["refund"]) for seq in range(4)]
    other = [attempt(b"other", seq, 1000 + seq) for seq in range(4)]
    woven = [
        value
        for pair in zip(mine, other, strict=True)
        for told in pair
        for value in ((told.key, v) for v in told.values)
    ]
    intake.store([topics.batch("traces", woven, at_ms=2000)])
    incident = await open_on(store, pipeline="p", entity_key=b"k", seq=2)
    assert (incident.title, incident.seq, incident.kind, incident.clock_ms, incident.recorded_status) == (
        "k, seq 2", 2, "start", 1002, "completed")  # fmt: skip
    assert incident.problem is not None
    found = await files(store, incident)
    assert frames(found["traces"]) == [value for told in mine for value in told.values]
    async with store.read() as session:
        (kept,) = await service.evidence_of(session, incident)
        (event,) = (
            await session.execute(AuditEvent.__table__.select().where(AuditEvent.what == "incident.opened"))
        ).all()
    assert (kept.source["topic"], kept.source["offset"], kept.source["timestamp_ms"]) == ("t.traces", 0, 2000)
    assert (event.subject, event.who, event.detail["key_sha256"]) == (incident.id, "ada", sha256(b"k").hexdigest())


async def test_intents_and_errors_of_the_key_come_along(intake: Intake, topics: Topics, store: Store) -> None:
    failed = failure(b"k", 1, 2000, "activation_error", "ValueError")
    send(intake, topics, attempt(b"k", 0, 1000, intents=["refund"]), failed)
    intent = ToolIntent(intent_id=identity.intent_id(b"k", 0, 1), entity_key=b"k", tool_name="refund", args_json="{}")
    letter = ActivationErrorRecord(entity_key=b"k", reason="activation_error", detail="no", event_time_ms=2000)
    envelope = AgentEnvelope(entity_key=b"k", event_time_ms=2000, external_event=serialize(letter))
    intake.store(
        [
            topics.batch("intents", [(b"k", serialize(intent)), (b"x", serialize(ToolIntent(entity_key=b"x")))]),
            topics.batch("errors", [(b"k", serialize(envelope))]),
            topics.batch("outputs", [(b"k", b"out")]),
        ]
    )
    incident = await open_on(store, pipeline="p", entity_key=b"k")
    assert (incident.seq, incident.recorded_status) == (1, "failed")
    found = await files(store, incident)
    assert frames(found["intents"]) == [serialize(intent)]
    assert frames(found["errors"]) == [serialize(envelope)]
    assert "outputs" not in found  # nobody has said yet that all of them were read


async def test_what_comes_later_is_added_and_nothing_twice(intake: Intake, topics: Topics, store: Store) -> None:
    told = attempt(b"k", 0, 1000, intents=["refund"])
    send(intake, topics, Told(told.key, told.values[:2]))
    incident = await open_on(store, pipeline="p", entity_key=b"k")
    assert incident.recorded_status == "incomplete"
    send(intake, topics, Told(told.key, told.values[2:]), attempt(b"k", 1, 2000), attempt(b"z", 1, 2000))
    for added in (1, 0):
        async with store.write() as session:
            now = await service.get_incident(session, incident.id)
            before = now.version
            assert len(await live.refresh_incident(session, now)) == added
            assert (now.version > before) == bool(added)
    assert frames((await files(store, incident))["traces"]) == [*told.values, *attempt(b"k", 1, 2000).values]


async def test_the_attempt_that_is_meant(intake: Intake, topics: Topics, store: Store) -> None:
    send(
        intake,
        topics,
        attempt(b"k", 0, 1000, status="suspended", intents=["ask"]),
        attempt(b"k", 0, 2000, kind="resume", entry=2),
        failure(b"k", 2, 3000, "orphaned_result", "no_continuation"),
    )
    latest = await open_on(store, pipeline="p", entity_key=b"k")
    assert (latest.seq, latest.kind, latest.clock_ms) == (0, "resume", 2000)  # an orphan never ran
    async with store.read() as session:
        rows = (await live.list_activations(session, live.ActivationFilter(kind="start"))).items
        about = await live.incidents_about(session, "p", b"k")
    assert [one.id for one in about] == [latest.id]
    start = await open_on(store, activation=rows[0].id)
    assert (start.kind, start.clock_ms) == ("start", 1000)  # complaint 10


async def test_a_key_of_which_nothing_was_collected_is_searched_for(store: Store) -> None:
    incident = await open_on(store, pipeline="p", entity_key=b"\xff\x00", seq=5)
    assert (incident.title, incident.clock_ms, incident.kind) == ("ff00, seq 5", None, None)
    async with store.read() as session:
        status = await live.live_status(session, incident)
    assert (status.state, status.ready, status.row) == ("gathering", False, None)
    assert status.as_json()["missing"][0]["what"] == "traces"


async def test_what_makes_no_sense_is_refused(store: Store) -> None:
    for given, error, problem in (
        ({"pipeline": "q", "entity_key": b"k"}, UnknownPipeline, "no pipeline 'q'"),
        ({"pipeline": "p"}, IncidentError, "name an activation"),
        ({"activation": "1-1"}, NotFound, "no activation"),
    ):
        with pytest.raises(error, match=problem):
            await open_on(store, **given)
    async with store.read() as session:
        assert (await service.list_incidents(session)).items == ()


async def test_a_bundle_of_it_opens_elsewhere(intake: Intake, topics: Topics, store: Store) -> None:
    send(intake, topics, attempt(b"k", 0, 1000))
    incident = await open_on(store, pipeline="p", entity_key=b"k")
    async with store.write() as session:
        data = await service.export_bundle(session, await service.get_incident(session, incident.id))
        again = await service.import_bundle(session, data, name="b.zip", who="bob")
        assert await service.export_bundle(session, again) == data
    assert again.pipeline is None
    async with store.read() as session:
        status = await live.live_status(session, again)
    assert (status.exports, status.gatherings, status.collector) == ((), (), None)


async def test_event_times_at_both_ends_of_the_world(intake: Intake, topics: Topics, store: Store) -> None:
    most, least = (1 << 63) - 1, -(1 << 63)
    send(intake, topics, attempt(b"k", 0, most), attempt(b"k", 1, least), attempt(b"k", most, 0))
    for seq, clock in ((0, most), (1, least), (most, 0)):
        incident = await open_on(store, pipeline="p", entity_key=b"k", seq=seq)
        assert incident.clock_ms == clock
        async with store.read() as session:
            status = await live.live_status(session, incident)
        assert status.about is not None
        assert status.as_json()["cache_window"]["closes_at_ms"] == clock + 21_600_000
