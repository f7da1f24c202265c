"""A live world with something broken in it: nothing is lost, nothing comes twice, and the page says what happened."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psycopg
import pytest

from app.demo.broker import EmbeddedBroker
from app.incidents import live, service
from app.incidents.rules import FreezeRule
from app.incidents.service import Store
from app.jobs.desk import Keeping
from app.kafka.client import Reader as LogReader
from app.kafka.client import Records
from app.wire.records import AgentEnvelope, StateSnapshot, parse, serialize
from tests.fixtures.postgres import Database
from tests.incidents.live import raw
from tests.jobs.live import NAME, ON_BOTH_BROKERS, TOPICS, World, pipeline_of
from tests.pipeline import scripted
from tests.pipeline.topics import Reader, make

NOW = time.time_ns() // 1_000_000
HOUR = 3_600_000


def start(key: bytes, *operations: tuple[object, ...], at: int = NOW) -> AgentEnvelope:
    envelope = scripted.start(*operations, at=at)
    envelope.entity_key = key
    return envelope


async def collector(store: Store) -> live.CollectorStatus | None:
    async with store.read() as session:
        return next(iter(await live.collector_statuses(session)), None)


@ON_BOTH_BROKERS
async def test_a_poisoned_record_in_every_topic_stops_nothing(world: World, store: Store) -> None:  # complaint 33
    poison = b"\xff\xff poison"
    with world.host():
        async with world.collecting():
            for topic in (
                world.topics.events,
                world.topics.traces,
                world.topics.snapshots,
                world.topics.intents,
                world.topics.outputs,
                world.topics.errors,
            ):
                world.send_bytes(topic, b"k", poison)
                world.send_bytes(topic, b"k", None)  # complaint 32
                world.send_bytes(topic, None, b"")
            world.send(start(b"k", ("ask", "hi"), ("act", "refund"), ("out", "done")))
            incident = await world.open_when(b"k", 1)
            await world.export(incident)
            await world.ready(incident)
    with psycopg.connect(world.database.app) as connection:
        told = dict(
            connection.execute(
                "SELECT s.stream, p.undecodable || '/' || p.tombstones FROM positions p"
                " JOIN streams s ON s.id = p.stream_id WHERE p.partition = 0"
            ).fetchall()
        )
    # An empty trace event or intent is one, if odd; an empty snapshot has no version, and an output may be anything.
    assert told == {"traces": "1/1", "snapshots": "2/1", "intents": "1/1", "outputs": "0/1", "errors": "1/1"}
    assert [one.value for _, one in raw(world.database, "traces")][:3] == [poison, None, b""]


async def test_a_broker_that_goes_down_and_comes_back(world: World, store: Store, embedded: EmbeddedBroker) -> None:
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done")))
            incident = await world.open_when(b"k", 1)
            await world.gathered(incident)
            embedded.take_down()

            async def troubled() -> bool:
                found = await collector(store)
                return found is not None and found.trouble is not None

            await world.until(troubled)
            export = await world.export(incident)

            async def lamented() -> str | None:
                async with store.read() as session:
                    return (await live.get_export(session, export.id)).export.problem

            problem = await world.until(lamented)
            assert "pipeline 'desk'" in problem
            async with store.write() as session:
                await live.request_gathering(session, incident, who="ada")
            gathering = await world.gathered(incident)
            assert gathering.gathering.state in ("incomplete", "found")
            embedded.bring_up()

            async def answered() -> bool:
                async with store.read() as session:
                    return (await live.get_export(session, export.id)).export.state == "answered"

            await world.until(answered)
            world.send(start(b"k", ("out", "again"), at=NOW + 1))
            await world.activations(2)

            async def well() -> bool:
                found = await collector(store)
                return found is not None and found.alive and found.trouble is None

            await world.until(well)


async def test_a_pipeline_that_never_answers_is_told_and_answers_late(world: World, store: Store) -> None:
    world.keeping = Keeping(export_timeout_s=0.5)
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done")))
            incident = await world.open_when(b"k", 1)
    async with world.collecting():  # the pipeline is gone now
        export = await world.export(incident)

        async def state(wanted: str) -> live.ExportView | None:
            async with store.read() as session:
                view = await live.get_export(session, export.id)
            return view if view.export.state == wanted else None

        silent = await world.until(lambda: state("timed_out"))
        assert silent.export.offset is not None
        assert "never answers" in silent.export.problem
        with world.host():
            late = await world.until(lambda: state("answered"))
    assert [one.late for one in late.answers] == [True]
    assert (await world.status(incident)).ready


async def test_requests_survive_a_collector_that_was_not_there(world: World, store: Store) -> None:
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done")))
            await world.activations(1)
        incident = await world.open(b"k")  # nobody collects: everything waits in the database
        await world.export(incident)
        status = await world.status(incident)
        assert (status.state, status.ready) == ("gathering", False)
        async with world.collecting():
            await world.ready(incident)


@ON_BOTH_BROKERS
async def test_a_request_of_unclear_fate_is_sent_again_and_is_still_one(world: World, store: Store) -> None:
    """The collector died between sending and noting it; the pipeline answers twice."""
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done")))
            incident = await world.open_when(b"k", 1)
    export = await world.export(incident)
    request = AgentEnvelope(entity_key=b"k", event_time_ms=NOW)
    request.export_request.request_id = export.request_id
    world.send(request)
    async with world.collecting():

        async def published() -> bool:
            async with store.read() as session:
                return (await live.get_export(session, export.id)).export.offset == 2

        await world.until(published)
        with world.host():
            await world.ready(incident)

            async def twice() -> bool:
                return len(raw(world.database, "snapshots")) == 2

            await world.until(twice)
    async with store.read() as session:
        view = await live.get_export(session, export.id)
    assert (view.export.state, len(view.answers)) == ("answered", 1)


@pytest.mark.parametrize("skew", [-2 * HOUR, HOUR])
async def test_clocks_that_are_an_hour_off_wipe_nothing_and_hide_nothing(  # complaint 30
    world: World, store: Store, skew: int
) -> None:
    """Event times far from the wall clock: an export stamped `now` would age the key, and lose what it asks for."""
    with world.host(ttl_ms=HOUR // 2):
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done"), at=NOW + skew))
            incident = await world.open_when(b"k", 1)
            await world.export(incident)
            status = await world.ready(incident)
            world.send(start(b"k", ("out", "still here"), at=NOW + skew + 1))
            rows = await world.activations(2)
    target = status.exports[0].export.target
    assert target is not None
    assert target["event_time_ms"] <= NOW + skew
    assert {one.seq for one in rows} == {0, 1}  # a wiped key would begin at 0 again
    assert [one.seq for one in status.exports[0].answers] == [1]
    if skew < 0:
        assert status.warning is not None
        assert "s old" in status.warning
    assert status.window is not None
    assert status.window.closes_at_ms == NOW + skew + 6 * HOUR


async def test_a_snapshot_of_another_key_under_our_request_id(world: World, store: Store) -> None:
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done")))
            incident = await world.open_when(b"k", 1)
            export = await world.export(incident)
            forged = StateSnapshot(state_schema_version=1, entity_key=b"x", seq=9, request_id=export.request_id)
            world.send_bytes(world.topics.snapshots, b"k", serialize(forged))
            await world.ready(incident)

            async def both() -> bool:
                async with store.read() as session:
                    return len((await live.get_export(session, export.id)).answers) == 2

            await world.until(both)
    async with store.read() as session:
        answers = (await live.get_export(session, export.id)).answers
        kept = [file for file in await service.evidence_of(session, incident) if file.role == "snapshot"]
    assert sorted((one.entity_key, one.foreign_key) for one in answers) == [(b"k", False), (b"x", True)]
    assert len(kept) == 1


async def test_a_second_collector_stands_by_and_takes_over(world: World, store: Store) -> None:
    with world.host():
        async with world.collecting(name="first"):
            world.send(start(b"k", ("out", "one")))
            await world.activations(1)
            async with world.collecting(name="second"):
                await asyncio.sleep(1)
                world.send(start(b"k", ("out", "two"), at=NOW + 1))
                await world.activations(2)
                found = await collector(store)
                assert found is not None
                assert found.name == "first"
        async with world.collecting(name="third"):
            world.send(start(b"k", ("out", "three"), at=NOW + 2))
            await world.activations(3)
    values = [one.value for _, one in raw(world.database, "traces")]
    assert len(values) == len(set(values)) == 6


async def test_connections_that_break_are_made_anew(world: World, store: Store, database: Database) -> None:
    with world.host():
        async with world.collecting():
            for number in range(4):
                world.send(start(b"k", ("out", str(number)), at=NOW + number))
                await world.activations(number + 1)
                with psycopg.connect(database.superuser, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
    assert len(raw(database, "outputs")) == 4


class SlowReader(LogReader):
    """Hears nothing for some seconds, as where the broker or this machine is busy."""

    def batch(self, most: int, wait_s: float) -> Records:
        self.silent = getattr(self, "silent", 0) + 1
        if self.silent <= 50:
            time.sleep(wait_s)
            return []
        return super().batch(most, wait_s)


@pytest.mark.parametrize("looks", [LogReader, SlowReader])
async def test_a_topic_made_anew_is_read_from_its_beginning(
    world: World, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: type[LogReader]
) -> None:
    monkeypatch.setattr("app.jobs.follow.Reader", looks)
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("out", "one")), start(b"k", ("out", "two"), at=NOW + 1))
            await world.activations(2)
    # The same names at another cluster, whose log has already grown beyond where the old one ended.
    with EmbeddedBroker() as fresh:
        make(fresh, TOPICS)
        other = World(fresh, world.database, store, tmp_path / "other")
        other.folder.mkdir()
        with other.host():
            other.send(*[start(b"j", ("out", f"{number}"), at=NOW + number) for number in range(5)])
            with_reader = Reader(fresh.address, TOPICS)
            with_reader.read_until(lambda: sum(map(len, with_reader.records.values())) >= 15)
            with_reader.close()
            async with other.collecting():
                rows = await other.activations(7)
    assert sorted(one.entity_key for one in rows) == [b"j"] * 5 + [b"k"] * 2


async def test_a_rule_freezes_while_people_sleep(world: World, store: Store) -> None:
    world.rules = [FreezeRule(name="refunds", tool="refund", per_hour=2)]
    with world.host():
        async with world.collecting():
            world.send(
                *[start(b"k%d" % n, ("ask", "hi"), ("act", "refund"), ("out", "x"), at=NOW + n) for n in range(5)]
            )

            async def both_ready() -> list[live.LiveStatus] | None:
                async with store.read() as session:
                    incidents = (await service.list_incidents(session)).items
                    found = [await live.live_status(session, one) for one in incidents]
                return found if len(found) == 2 and all(one.ready for one in found) else None

            statuses = await world.until(both_ready)
    assert {one.frozen.why for one in statuses} == {"it emitted an intent of refund at step 1"}
    async with store.read() as session:
        frozen = await live.freezes(session)
    assert sum(one.suppressed for one in frozen) == 3
    assert all(one.incident_id for one in frozen)


async def test_a_search_that_its_collector_could_not_end_is_begun_anew(
    world: World, store: Store, embedded: EmbeddedBroker
) -> None:
    with world.host():
        async with world.collecting():
            world.send(start(b"k", ("ask", "hi"), ("out", "done")))
            incident = await world.open_when(b"k", 1)
            await world.gathered(incident)
            embedded.slow_down(700)
            async with store.write() as session:
                stopped = await live.request_gathering(session, incident, who="ada")

            async def begun() -> bool:
                async with store.read() as session:
                    return (await live.get_gathering(session, stopped.id)).gathering.state == "running"

            await world.until(begun)
        embedded.slow_down(0)
        async with store.read() as session:
            assert (await live.get_gathering(session, stopped.id)).gathering.state == "queued"
        with psycopg.connect(world.database.app) as connection:  # as a collector leaves it that was killed
            connection.execute(
                "UPDATE gatherings SET state = 'running', attempt = 7, lease_until = now() - interval '1 s'"
                " WHERE id = %s",
                (stopped.id,),
            )
        async with world.collecting():
            ended = await world.gathered(incident)
    assert (ended.gathering.id, ended.gathering.state, ended.gathering.attempt) == (stopped.id, "found", 8)


async def test_a_partitioner_that_is_missing_is_told_at_once(world: World, store: Store) -> None:
    world.broker.create("wide", 3)
    pipeline = pipeline_of(world.broker.address, partitioner=None, topics={"events": "wide"})
    async with world.collecting(pipelines=[pipeline]):
        async with store.write() as session:
            incident = await live.open_incident(session, who="ada", known=[NAME], pipeline=NAME, entity_key=b"k")
        export = await world.export(incident)

        async def refused() -> live.ExportView | None:
            async with store.read() as session:
                view = await live.get_export(session, export.id)
            return view if view.export.state == "timed_out" else None

        view = await world.until(refused)
    assert "no partitioner is configured" in (view.export.problem or "")
    assert view.export.offset is None
    snapshots = [parse(StateSnapshot, one.value or b"") for _, one in raw(world.database, "snapshots")]
    assert snapshots == []
