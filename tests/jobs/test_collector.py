"""From something odd to a replay that can start: a running pipeline, a collector, a real database."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64decode
from pathlib import Path

import psycopg
import pytest

from app.demo.broker import EmbeddedBroker
from app.incidents import live, live_repository, opening, service
from app.incidents.changes import Changes
from app.incidents.service import Store
from app.jobs.decoding import HookRunner
from app.jobs.worker import Worker
from app.kafka.errors import BrokerError
from app.replay.verdict import Outcome
from app.runtime.batching import BatchPolicy
from app.settings import Build
from app.wire import identity
from app.wire.framing import read_frames
from app.wire.records import AgentEnvelope, serialize
from tests.fixtures.postgres import Database
from tests.incidents.tracing import attempt
from tests.jobs.conftest import ScriptedReplayer
from tests.jobs.live import ON_BOTH_BROKERS, World, evidence, pipeline_of, reproduce
from tests.pipeline import scripted
from tests.waiting import PATIENCE_S

NOW = time.time_ns() // 1_000_000


def start(key: bytes, *operations: tuple[object, ...], at: int = NOW) -> AgentEnvelope:
    envelope = scripted.start(*operations, at=at)
    envelope.entity_key = key
    return envelope


@ON_BOTH_BROKERS
async def test_from_a_row_to_a_replay_that_reproduces(world: World, store: Store) -> None:
    with world.host():
        async with world.collecting():
            world.send(
                start(b"customer-42", ("ask", "hi"), ("act", "refund"), ("out", "done")),
                start(b"customer-7", ("ask", "hello"), ("fail", "no"), at=NOW + 1),
            )
            rows = await world.activations(2)
            (row,) = [one for one in rows if one.entity_key == b"customer-42"]
            assert (row.status, row.tools) == ("completed", ("refund",))
            async with store.write() as session:
                incident = await live.open_incident(session, who="ada", known=["desk"], activation=row.id)
            export = await world.export(incident)
            await world.gathered(incident)
            status = await world.ready(incident)
    assert status.exports[0].as_json()["state"] == "answered"
    assert status.exports[0].export.request_id == export.request_id
    assert status.gatherings[0].gathering.state == "found"
    assert status.row is not None
    now, files = await evidence(store, incident)
    assert (now.problem, now.kind, now.seq, now.recorded_status) == (None, "start", 0, "completed")
    assert (await reproduce(files)).outcome is Outcome.REPRODUCED


async def test_a_pipeline_is_said_to_be_followed_as_soon_as_it_is(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.jobs.collector._BEAT_S", 3600.0)
    for _ in range(2):
        async with world.collecting() as collector:

            async def followed(name: str = collector.name) -> bool:
                async with store.read() as session:
                    statuses = await live.collector_statuses(session)
                return any(one.alive and one.name == name for one in statuses)

            await world.until(followed)


async def test_outputs_become_evidence_once_none_can_be_under_way(world: World, store: Store) -> None:
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done")))
            (row,) = await world.activations(1)
            incident = await world.open(b"k")
            await world.export(incident)
            await world.ready(incident)

            async def has_outputs() -> bool:
                return any(file.role == "outputs" for file in (await evidence(store, incident))[1])

            await world.until(has_outputs)
    async with store.read() as session:
        stored = await live_repository.stored_at(session, row.ranges)
        (outputs,) = [file for file in await service.evidence_of(session, incident) if file.role == "outputs"]
    assert stored is not None
    assert outputs.added_at >= stored + opening.SETTLE_MS  # by the database's clock, however slow the machine
    _, files = await evidence(store, incident)
    assert [file.data for file in files if file.role == "outputs"] == [b"\x04done"]
    verdict = await reproduce(files)
    assert verdict.outcome is Outcome.REPRODUCED
    assert {one.name for one in verdict.surfaces if one.compared} >= {"trace events", "outputs"}


@ON_BOTH_BROKERS
async def test_a_resume_is_found_by_the_intent_that_it_answers(world: World, store: Store) -> None:
    intent = identity.intent_id(b"k", 0, 0)
    answer = scripted.approval(intent, at=NOW + 50)
    other = scripted.approval(identity.intent_id(b"k", 0, 9), at=NOW + 50)
    answer.entity_key = other.entity_key = b"k"
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("approve",), ("suspend", None, [("out", "approved")])))
            first = await world.open_when(b"k", 1)  # the state while it waits is what the resume will load
            await world.export(first)
            await world.ready(first)
            world.send(other, answer)
            await world.activations(3)
            async with store.read() as session:
                page = await live.list_activations(session, live.ActivationFilter(kind="resume"))
            async with store.write() as session:
                incident = await live.open_incident(session, who="ada", known=["desk"], activation=page.items[0].id)
            await world.gathered(incident)
            status = await world.ready(incident)
    now, files = await evidence(store, incident)
    assert (now.kind, now.seq, now.recorded_status) == ("resume", 0, "completed")
    assert [file.data for file in files if file.role == "event"] == [serialize(answer)]
    assert "intent" in status.gatherings[0].topics[0].looking_for
    verdict = await reproduce(files)
    assert verdict.outcome is Outcome.REPRODUCED, verdict.headline


async def test_a_bare_answer_is_wrapped_again_and_marked_as_rebuilt(world: World, store: Store) -> None:
    intent = identity.intent_id(b"k", 0, 0)
    wrapped = scripted.result(intent, at=NOW + 50)
    wrapped.entity_key = wrapped.tool_result.entity_key = b"k"
    bare = serialize(wrapped.tool_result)
    world.broker.create("desk.results", 1)
    hidden = pipeline_of(world.broker.address, topics={"events": ["desk.other"], "results": "desk.results"})
    world.broker.create("desk.other", 1)
    with world.host():
        async with world.collecting(pipelines=[hidden]):
            world.send(start(b"k", ("act", "refund"), ("suspend", None, [("out", "paid")])))
            world.send_bytes("desk.results", b"k", b"\xff poison about " + intent.encode())
            world.send_bytes("desk.results", b"k", bare)
            await world.activations(1)
            world.send(wrapped)
            await world.activations(2)
            incident = await world.open(b"k")
            gathering = await world.gathered(incident)
    assert gathering.gathering.state == "found"
    assert any("rebuilt" in note for note in gathering.notes)
    _, files = await evidence(store, incident)
    (event,) = [file for file in files if file.role == "event"]
    assert event.data == serialize(wrapped)
    assert event.name.startswith("rebuilt-")
    async with store.read() as session:
        (kept,) = [file for file in await service.evidence_of(session, incident) if file.role == "event"]
    assert (kept.source["rebuilt_from"], b64decode(kept.source["original"])) == ("tool_result", bare)
    results = gathering.topics[-1]
    assert (results.topic, results.undecodable, results.partitions[0].undecodable) == ("desk.results", 1, 1)


@ON_BOTH_BROKERS
async def test_all_envelopes_of_a_batch_are_gathered_in_the_order_of_their_arrival(world: World, store: Store) -> None:
    sent = [start(b"k", ("ask", f"event {number}"), at=NOW + number) for number in (3, 1, 2, 9, 8, 7)]
    with world.host(batch_policy=BatchPolicy.ADAPTIVE, max_batch_size=3, max_wait_ms=60_000):
        async with world.collecting():
            for envelope in sent:
                world.send(envelope, start(b"other", ("out", "x"), at=NOW))
            await world.activations(2, entity_key=b"k")
            incident = await world.open(b"k", seq=1)
            await world.export(incident)
            status = await world.ready(incident)
    assert status.about is not None
    assert (status.about.shape.batch_size, status.about.clock_ms) == (3, NOW + 9)
    _, files = await evidence(store, incident)
    (events,) = [file for file in files if file.role == "events"]
    assert [serialize(one) for one in sent] == read_frames(events.data).payloads
    verdict = await reproduce(files)
    assert verdict.outcome is Outcome.REPRODUCED, verdict.headline


async def test_a_failed_attempt_is_found_and_told_what_it_replays_to(world: World, store: Store) -> None:
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("get", "x"), ("fail", "no")))
            await world.activations(1)
            incident = await world.open(b"k")
            await world.export(incident)
            status = await world.ready(incident)
    assert status.row is not None
    assert status.row.target == "failed"
    now, files = await evidence(store, incident)
    assert (now.recorded_status, now.problem) == ("failed", None)
    assert (await reproduce(files)).outcome is Outcome.REPRODUCED


@ON_BOTH_BROKERS
async def test_not_found_is_said_only_when_everything_was_read(world: World, store: Store) -> None:  # complaint 26
    told = attempt(b"k", 0, NOW, intents=["refund"])  # nobody ever sent what triggered it
    async with world.collecting():
        world.send(*[start(b"k", ("out", "x"), at=NOW + number) for number in range(1, 50)])
        for value in told.values:
            world.send_bytes(world.topics.traces, b"k", value)
        await world.activations(1)
        incident = await world.open(b"k")
        gathering = await world.gathered(incident)
    assert gathering.gathering.state == "not_found"
    (topic,) = gathering.topics
    (partition,) = topic.partitions
    assert (topic.outcome, topic.scanned, partition.complete) == ("not_found", 49, True)
    assert (partition.low, partition.start, partition.end, partition.high) == (0, 0, 49, 49)
    status = await world.status(incident)
    assert (status.state, status.ready) == ("incomplete", False)
    assert [(one.what, one.blocks) for one in status.missing][:2] == [("triggering envelope", True), ("snapshot", True)]
    assert "Search again" in status.missing[0].remedy


async def test_what_intake_never_saw_is_searched_for_in_every_topic(world: World, store: Store) -> None:
    with world.host():
        world.send(start(b"k", ("ask", "hi"), ("act", "refund"), ("out", "done")))
        async with world.collecting():
            await world.activations(1)
        with psycopg.connect(world.database.owner) as connection:  # as if it had been dropped long ago
            connection.execute("DELETE FROM attempts")
            connection.execute("DELETE FROM keyed_records")
        async with world.collecting():
            incident = await world.open(b"k")
            assert incident.clock_ms is None
            await world.export(incident)
            await world.gathered(incident)
            status = await world.ready(incident)
    assert [topic.topic for topic in status.gatherings[0].topics] == [
        "desk.traces", "desk.intents", "desk.errors", "desk.snapshots", "desk.events",
    ]  # fmt: skip
    now, files = await evidence(store, incident)
    assert (now.seq, now.kind, now.recorded_status) == (0, "start", "completed")
    assert (await reproduce(files)).outcome is Outcome.REPRODUCED


async def test_a_search_can_be_cancelled_and_asked_for_again(
    world: World, store: Store, embedded: EmbeddedBroker
) -> None:
    told = attempt(b"k", 0, NOW)
    async with world.collecting():
        for value in told.values:
            world.send_bytes(world.topics.traces, b"k", value)
        await world.activations(1)
        embedded.slow_down(1000)  # it asks many questions, and is not done before it is cancelled
        incident = await world.open(b"k")
        (view,) = (await world.status(incident)).gatherings
        async with store.write() as session:
            assert (await live.request_gathering(session, incident, who="ada")).id == view.gathering.id
            await live.cancel_gathering(session, view.gathering.id, who="ada")
        ended = await world.gathered(incident)
        assert ended.gathering.state == "cancelled"
        async with store.write() as session:
            with pytest.raises(service.WrongState, match="cannot cancel a search that is cancelled"):
                await live.cancel_gathering(session, view.gathering.id, who="ada")
            again = await live.request_gathering(session, incident, who="ada")
        embedded.slow_down(0)
        assert (await world.gathered(incident)).gathering.id == again.id


@pytest.mark.parametrize("ends", ["cancelled", "queued"])
async def test_a_search_that_is_to_end_does_so_whatever_the_broker_says(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Cancelled by somebody, or given back by a collector that stops, while the broker gives out."""

    def gives_out(*_: object, cancelled: threading.Event, **__: object) -> None:
        assert cancelled.wait(PATIENCE_S)
        raise BrokerError("desk", "no answer in time", "", retriable=True)

    monkeypatch.setattr("app.jobs.scanning.scan", gives_out)
    async with world.collecting():
        for value in attempt(b"k", 0, NOW).values:
            world.send_bytes(world.topics.traces, b"k", value)
        incident = await world.open_when(b"k", 1)

        async def searching() -> bool:
            (view,) = (await world.status(incident)).gatherings
            return view.gathering.state == "running"

        await world.until(searching)
        if ends == "cancelled":
            async with store.write() as session:
                (view,) = await live.gatherings_of(session, incident)
                await live.cancel_gathering(session, view.gathering.id, who="ada")
            assert (await world.gathered(incident)).gathering.state == ends
    (view,) = (await world.status(incident)).gatherings
    assert (view.gathering.state, view.gathering.problem) == (ends, None)


async def test_a_search_tells_the_page_how_far_it_has_come(world: World, store: Store, database: Database) -> None:
    told = attempt(b"k", 0, NOW)
    async with world.collecting():
        for value in told.values:
            world.send_bytes(world.topics.traces, b"k", value)
        await world.activations(1)
        async with Changes(database.app) as changes:
            incident = await world.open(b"k")
            versions = []
            async with changes.subscribe(incident.id) as subscription:
                while True:
                    status = await world.status(incident)
                    versions.append(status.version)
                    if status.gatherings[0].gathering.gathering_state.finished:
                        break
                    assert await subscription.wait(PATIENCE_S)
    assert versions == sorted(versions)
    assert len(set(versions)) >= 2
    assert status.outlook is not None
    assert status.outlook["topic"] == "desk.events"


HOOK = """
import json
from beam_agents._protos import AgentEnvelope

def decode(value, key):
    told = json.loads(value)
    if told["kind"] != "event":
        return None
    return AgentEnvelope(entity_key=key, event_time_ms=told["at"], external_event=told["body"].encode())
"""


def build(folder: Path) -> Build:
    return Build(name="desk-v1", agent="desk:AGENT", paths=(folder,))


async def test_records_of_another_form_are_decoded_by_a_hook_in_the_sandbox(
    world: World, store: Store, database: Database, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "deskhook.py").write_text(HOOK)
    topics = {"events": [{"topic": "desk.json", "records": "deskhook:decode"}]}
    hidden = pipeline_of(world.broker.address, topics=topics, builds=["desk-v1"])
    world.broker.create("desk.json", 1)
    event = start(b"k", ("ask", "hi"), ("out", "done"))
    lines = [
        {"kind": "event", "at": NOW - 5, "body": "[]"},
        {"kind": "heartbeat", "at": NOW},
        {"kind": "event", "at": NOW, "body": event.external_event.decode()},
    ]
    hooks = HookRunner([build(code)])
    worker = Worker(database.app, ScriptedReplayer(), hooks=hooks)
    working = asyncio.create_task(worker.run())
    with world.host():
        async with world.collecting(pipelines=[hidden]):
            for line in lines:
                world.send_bytes("desk.json", b"k", json.dumps(line).encode())
            world.send_bytes("desk.json", b"k", b"no JSON")
            world.send(event)
            incident = await world.open_when(b"k", 1)
            gathering = await world.gathered(incident)
    worker.stop()
    await working
    hooks.close()
    assert gathering.gathering.state == "found", gathering
    (topic,) = gathering.topics
    assert (topic.matched, topic.undecodable, topic.outcome) == (1, 1, "found")
    assert "JSONDecodeError" in (topic.problem or "")
    _, files = await evidence(store, incident)
    assert [file.data for file in files if file.role == "event"] == [serialize(event)]
    assert any("a hook decoded it" in note for note in gathering.notes)
    with psycopg.connect(database.app) as connection:
        assert connection.execute("SELECT count(*) FROM decodings").fetchone() == (0,)


async def test_a_hook_that_cannot_be_loaded_is_told(world: World, database: Database, tmp_path: Path) -> None:
    topics = {"events": [{"topic": "desk.json", "records": "nowhere:decode"}]}
    hidden = pipeline_of(world.broker.address, topics=topics, builds=["desk-v1"])
    world.broker.create("desk.json", 1)
    hooks = HookRunner([build(tmp_path)])
    worker = Worker(database.app, ScriptedReplayer(), hooks=hooks)
    working = asyncio.create_task(worker.run())
    async with world.collecting(pipelines=[hidden]):
        world.send_bytes("desk.json", b"k", b"{}")
        for value in attempt(b"k", 0, NOW).values:
            world.send_bytes(world.topics.traces, b"k", value)
        incident = await world.open_when(b"k", 1)
        gathering = await world.gathered(incident)
    worker.stop()
    await working
    hooks.close()
    assert gathering.gathering.state == "incomplete"
    assert "no module 'nowhere'" in (gathering.topics[0].problem or "")
