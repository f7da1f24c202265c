"""Exports: asked for once, answered by request id, and nothing that came back is lost or taken for something else."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from app.incidents import exports, live, opening, service
from app.incidents.changes import Changes
from app.incidents.collecting import Intake
from app.incidents.errors import IncidentError, NotFound, UnknownPipeline, WrongState
from app.incidents.live import Export, ExportView
from app.incidents.models import AuditEvent
from app.incidents.service import Incident, Store
from app.wire.records import StateSnapshot, serialize
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording
from tests.incidents.live import Topics
from tests.incidents.tracing import attempt
from tests.waiting import PATIENCE_S

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


@pytest.fixture
async def incident(intake: Intake, topics: Topics, store: Store) -> Incident:
    told = attempt(b"k", 3, 5000, intents=["refund"])
    intake.store([topics.batch("traces", [(b"k", value) for value in told.values])])
    async with store.write() as session:
        return await live.open_incident(session, who="ada", known=KNOWN, pipeline="p", entity_key=b"k")


async def ask(store: Store, incident: Incident, *, reason: str = "odd refund", timeout_s: float = 60) -> Export:
    async with store.write() as session:
        return await live.request_export(session, incident, who="ada", reason=reason, known=KNOWN, timeout_s=timeout_s)


async def view(store: Store, export: Export) -> ExportView:
    async with store.read() as session:
        return await live.get_export(session, export.id)


def snapshot(request_id: str, *, key: bytes = b"k", seq: int = 4, note: str = "") -> bytes:
    made = StateSnapshot(state_schema_version=1, entity_key=key, seq=seq, snapshot_at_ms=6000, request_id=request_id)
    if note:
        made.memory.entries.add(key="note", value=note.encode(), last_access_ms=5000)
    return serialize(made)


async def settle(store: Store) -> list[str]:
    async with store.write() as session:
        return await exports.settle_answers(session, "p")


async def roles(store: Store, incident: Incident) -> list[str]:
    async with store.read() as session:
        return [file.role for file in await service.evidence_of(session, incident)]


async def test_a_request_says_who_why_and_for_what(store: Store, incident: Incident) -> None:
    export = await ask(store, incident, reason="  odd refund ")
    assert (export.state, export.due, export.pipeline, export.entity_key) == ("requested", True, "p", b"k")
    assert (export.created_by, export.reason) == ("ada", "odd refund")
    assert len(export.request_id) == 32
    assert export.request_id != (await ask(store, incident)).request_id
    async with store.read() as session:
        told = [one for one in (await session.execute(AuditEvent.__table__.select())).all() if one.subject == export.id]
    assert [(one.what, one.who, one.detail["reason"]) for one in told] == [("state.requested", "ada", "odd refund")]


async def test_what_cannot_be_asked_for_is_refused(store: Store, incident: Incident) -> None:
    for reason, problem in (("  ", "say why"), ("x" * 1001, "1000 are enough")):
        with pytest.raises(IncidentError, match=problem):
            await ask(store, incident, reason=reason)
    async with store.write() as session:
        with pytest.raises(UnknownPipeline, match="names no pipeline 'p'; known pipelines: q"):
            await live.request_export(session, incident, who="ada", reason="r", known=["q"])
        imported = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
        with pytest.raises(IncidentError, match="came from files"):
            await live.request_export(session, imported, who="ada", reason="r", known=KNOWN)
        with pytest.raises(IncidentError, match="came from files"):
            await live.request_gathering(session, imported, who="ada")
        with pytest.raises(NotFound):
            await live.get_export(session, "exp_none")


async def test_an_answer_is_known_by_its_request_and_becomes_evidence(
    store: Store, incident: Incident, intake: Intake, topics: Topics
) -> None:
    export, other = await ask(store, incident), await ask(store, incident)
    async with store.write() as session:
        assert [one.id for one in await exports.due_exports(session, "p")] == [export.id, other.id]
        await exports.note_target(session, export, {"event_time_ms": 4999, "lag_ms": 120_000, "behind": None})
        await exports.note_published(session, export, topic="events", partition=2, offset=77, timeout_s=60)
    intake.store([topics.batch("snapshots", [(b"k", snapshot(export.request_id))])])
    assert await settle(store) == [export.id]
    assert await settle(store) == []
    told = (await view(store, export)).as_json()
    assert told["state"] == "answered"
    assert told["published"] == {"topic": "events", "partition": 2, "offset": 77}
    assert (told["event_time_ms"], told["lag_ms"]) == (4999, 120_000)
    assert [(one["counter"], one["late"], one["problem"]) for one in told["answers"]] == [(4, False, None)]
    assert (await view(store, other)).export.state == "requested"
    assert (await roles(store, incident)).count("snapshot") == 1


async def test_equal_answers_are_one_and_different_ones_are_all_kept(
    store: Store, incident: Incident, intake: Intake, topics: Topics
) -> None:  # two states can carry one request id
    export = await ask(store, incident)
    first, second = snapshot(export.request_id), snapshot(export.request_id, seq=5, note="later")
    for value in (first, first, second, first):
        intake.store([topics.batch("snapshots", [(b"k", value)])])
        await settle(store)
    answers = (await view(store, export)).answers
    assert [one.seq for one in answers] == [4, 5]
    assert (await roles(store, incident)).count("snapshot") == 2


async def test_a_snapshot_of_another_key_under_our_request_is_told_and_not_used(
    store: Store, incident: Incident, intake: Intake, topics: Topics
) -> None:
    export = await ask(store, incident)
    intake.store([topics.batch("snapshots", [(b"x", snapshot(export.request_id, key=b"x"))])])
    assert await settle(store) == []
    told = await view(store, export)
    assert told.export.state == "requested"
    assert [(one.foreign_key, one.entity_key, one.problem) for one in told.answers] == [
        (True, b"x", "it is of another key than the one asked for")
    ]
    assert "snapshot" not in await roles(store, incident)
    intake.store([topics.batch("snapshots", [(b"k", snapshot(export.request_id))])])
    assert await settle(store) == [export.id]
    assert (await view(store, export)).export.state == "answered"


async def test_another_pipeline_cannot_answer(store: Store, incident: Incident, database: Database) -> None:
    export = await ask(store, incident)
    other = Intake(database.app, "q")
    other.positions()
    other.store([Topics().batch("snapshots", [(b"k", snapshot(export.request_id))])])
    other.close()
    assert await settle(store) == []
    assert (await view(store, export)).export.state == "requested"


async def test_no_answer_is_a_time_out_that_says_why_and_a_late_one_is_kept(
    store: Store, incident: Incident, intake: Intake, topics: Topics
) -> None:
    silent, unsent, broken = [await ask(store, incident, timeout_s=0.01) for _ in range(3)]
    async with store.write() as session:
        await exports.note_published(session, silent, topic="events", partition=0, offset=1, timeout_s=0.01)
        await exports.note_unpublished(session, broken, "pipeline 'p': no answer from b:9092")
    async with store.write() as session:
        timed_out = []
        while len(timed_out) < 3:
            timed_out += await exports.time_out_exports(session)
    assert set(timed_out) == {silent.id, unsent.id, broken.id}
    problems = [(await view(store, one)).export.problem or "" for one in (silent, unsent, broken)]
    assert "drained or crashed pipeline never answers" in problems[0]
    assert "never published" in problems[1]
    assert problems[2] == "pipeline 'p': no answer from b:9092"
    intake.store([topics.batch("snapshots", [(b"k", snapshot(silent.request_id))])])
    assert await settle(store) == [silent.id]
    late = await view(store, silent)
    assert (late.export.state, late.export.problem, late.answers[0].late) == ("answered", None, True)


async def test_a_timed_out_request_can_be_repeated_under_its_id(store: Store, incident: Incident) -> None:
    export = await ask(store, incident, timeout_s=0.01)
    async with store.write() as session:
        with pytest.raises(WrongState, match="cannot repeat an export that is requested; it must be timed out"):
            await live.retry_export(session, export.id, who="bob")
        await exports.note_published(session, export, topic="events", partition=0, offset=1, timeout_s=0.0)
        while not await exports.time_out_exports(session):
            pass
        again = await live.retry_export(session, export.id, who="bob", timeout_s=60)
    assert (again.request_id, again.state, again.due, again.attempt) == (export.request_id, "requested", True, 2)
    assert again.offset is None
    async with store.write() as session:  # what the first attempt still has to say comes too late
        assert not await exports.note_published(session, export, topic="events", partition=0, offset=1, timeout_s=60)
        assert [one.id for one in await exports.due_exports(session, "p")] == [export.id]


async def test_two_operators_may_export_one_key_at_once(
    store: Store, incident: Incident, intake: Intake, topics: Topics
) -> None:
    async with store.write() as session:
        other = await live.open_incident(session, who="bob", known=KNOWN, pipeline="p", entity_key=b"k")
    mine, theirs = await ask(store, incident, reason="mine"), await ask(store, other, reason="theirs")
    values = [(b"k", snapshot(one.request_id)) for one in (theirs, mine)]
    intake.store([topics.batch("snapshots", values)])
    assert set(await settle(store)) == {mine.id, theirs.id}
    for asked, of in ((mine, incident), (theirs, other)):
        answered = await view(store, asked)
        assert (answered.export.state, len(answered.answers)) == ("answered", 1)
        assert "snapshot" in await roles(store, of)


async def test_snapshots_that_others_asked_for_become_evidence_of_the_key(
    store: Store, incident: Incident, intake: Intake, topics: Topics
) -> None:
    values = [(b"k", snapshot("theirs", seq=2)), (b"k", snapshot("", seq=9)), (b"other", snapshot("", key=b"other"))]
    intake.store([topics.batch("snapshots", values)])
    async with store.write() as session:
        added = await live.refresh_incident(session, await service.get_incident(session, incident.id))
    assert [file.role for file in added] == ["snapshot", "snapshot"]
    async with store.write() as session:
        assert await live.refresh_incident(session, await service.get_incident(session, incident.id)) == []
        later = await live.open_incident(session, who="bob", known=KNOWN, pipeline="p", entity_key=b"k")
    assert (await roles(store, later)).count("snapshot") == 2


async def test_an_answer_that_cannot_be_read_says_so_and_stops_nothing(
    store: Store, incident: Incident, intake: Intake, topics: Topics
) -> None:
    newer, sound = await ask(store, incident), await ask(store, incident)
    value = StateSnapshot(state_schema_version=99, entity_key=b"k", seq=4, request_id=newer.request_id)
    intake.store([topics.batch("snapshots", [(b"k", serialize(value)), (b"k", snapshot(sound.request_id))])])
    await settle(store)
    told = await view(store, newer)
    assert "state schema version 99" in (told.answers[0].problem or "")
    assert (await view(store, sound)).answers[0].problem is None


async def test_the_page_hears_of_every_step(store: Store, incident: Incident, database: Database) -> None:
    async with Changes(database.app) as changes, changes.subscribe(incident.id) as subscription:
        await subscription.wait(PATIENCE_S)
        export = await ask(store, incident)
        assert await subscription.wait(PATIENCE_S)
        async with store.write() as session:
            await exports.note_published(session, export, topic="events", partition=0, offset=1, timeout_s=60)
        assert await subscription.wait(PATIENCE_S)
        assert not await subscription.wait(0.1)


def test_lag_is_told_in_words() -> None:
    assert live.lag_warning(None) is None
    assert live.lag_warning({"lag_ms": 1000, "behind": 0}) is None
    assert "1 record of this partition" in (live.lag_warning({"lag_ms": 0, "behind": 1}) or "")
    assert "90 s old" in (live.lag_warning({"lag_ms": 90_000, "behind": None}) or "")


def test_the_database_holds_exports_to_their_states(database: Database) -> None:
    with psycopg.connect(database.app) as connection, pytest.raises(psycopg.errors.ForeignKeyViolation):
        connection.execute(
            "INSERT INTO exports (id, incident_id, pipeline, entity_key, request_id, reason, created_by, state,"
            " version, attempt, deadline_at, due) VALUES ('e', 'none', 'p', '', 'r', '', '', 'requested', 1, 1,"
            " now(), true)"
        )


async def test_an_answer_is_evidence_only_once_the_export_says_that_it_was_answered(
    store: Store, intake: Intake, topics: Topics, incident: Incident
) -> None:
    export = await ask(store, incident)
    others = snapshot("somebody else's")
    intake.store([topics.batch("snapshots", [(b"k", snapshot(export.request_id, note="ours")), (b"k", others)])])
    async with store.write() as session:
        await opening.refresh_incident(session, incident)
    assert (await view(store, export)).export.state == "requested"
    async with store.read() as session:
        kept = await service.evidence_files(
            session, incident, [file.id for file in await service.evidence_of(session, incident)]
        )
    assert [file.data for file in kept if file.role == "snapshot"] == [others]
    assert await settle(store) == [export.id]
    assert (await roles(store, incident)).count("snapshot") == 2
