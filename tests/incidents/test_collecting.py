"""Intake: each record is stored once, and rows of attempts are those a replay would make, in any order of arrival."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from app.incidents import live
from app.incidents.collecting import Fenced, Intake
from app.incidents.errors import NotFound
from app.incidents.projection import IntentMark, intent_hash, intent_id_of
from app.incidents.segments import Raw
from app.incidents.service import Store
from app.replay.attempts import ATTRIBUTE_INTENT_ID, Attempt
from app.replay.evidence import TraceRecord
from app.replay.grouping import attempts_of
from app.wire.framing import read_frames
from app.wire.records import EventType, StateSnapshot, TraceEvent, parse, serialize
from tests.fixtures.postgres import Database
from tests.golden.scenarios import names, scenario
from tests.incidents.live import Batch, Gap, Topics, attempts, chunks, raw

SCENARIOS = [*names("corpus"), *names("corpus_multi")]


@pytest.fixture
def intake(database: Database) -> Iterator[Intake]:
    made = Intake(database.app, "p")
    made.positions()
    yield made
    made.close()


def traces(name: str) -> list[tuple[bytes | None, bytes | None]]:
    """Read a recording's trace events with the keys that they were sent with: the trace id tells whose they are."""
    path = scenario(name).folder / "raw" / "traces.bin"
    if not path.exists():
        return []
    values = read_frames(path.read_bytes()).payloads
    events = [parse(TraceEvent, value) for value in values]
    keys = {event.trace_id: event.entity_key for event in events if event.entity_key}
    return [(keys.get(event.trace_id, event.entity_key), value) for event, value in zip(events, values, strict=True)]


def expected(values: list[tuple[bytes | None, bytes | None]]) -> list[tuple[Any, ...]]:
    """Make the rows as a replay groups them: everything of a key at once."""
    records: dict[bytes, TraceRecord] = {}
    for _, value in values:
        event = parse(TraceEvent, value or b"")
        records.setdefault(value or b"", TraceRecord(event, value or b""))
    keys = {key for key, _ in values}
    rows = []
    for key in keys:
        assert key is not None
        rows += [_line(attempt) for attempt in attempts_of(key, records.values())]
    return sorted(rows, key=repr)


def _line(attempt: Attempt) -> tuple[Any, ...]:
    ids = sorted(record.event.attributes.get(ATTRIBUTE_INTENT_ID, "") for record in attempt.records
                 if record.event.event_type == EventType.INTENT_EMITTED)  # fmt: skip
    return (
        attempt.entity_key, attempt.seq, attempt.clock_ms, attempt.kind, str(attempt.category), attempt.status,
        attempt.reason, attempt.entry_step, attempt.batch_size, len(attempt.records) + len(attempt.shared),
        tuple(ids),
    )  # fmt: skip


def told(database: Database) -> list[tuple[Any, ...]]:
    """Read the rows in the same form, with whole intent ids."""
    from app.incidents.projection import read_places

    rows = []
    with psycopg.connect(database.app) as connection:
        for row in connection.execute(
            "SELECT a.entity_key, a.seq, a.clock_ms, s.kind, s.category, s.status, s.reason, s.entry_step,"
            " s.batch_size, a.places, s.intents, a.intent, a.more_intents"
            " FROM attempts a JOIN shapes s ON s.id = a.shape_id"
        ):
            *head, places, intents, first, more = row
            ids = [intent_id_of((row[0], row[1]), IntentMark(*mark)) for mark in intents]
            assert sorted(map(intent_hash, ids)) == sorted([*([] if first is None else [first]), *(more or [])])
            rows.append((*head, read_places(places)[0], tuple(sorted(ids))))
    return sorted(rows, key=repr)


def test_every_recording_gives_the_rows_that_a_replay_would_make(intake: Intake, database: Database) -> None:
    topics, everything = Topics(), []
    for name in SCENARIOS:
        values = traces(name)
        if not values:
            continue
        # The recordings repeat keys, so each has a topic's partition, and a pipeline, of its own.
        fresh = Intake(database.app, name)
        fresh.positions()
        fresh.store([topics.batch("traces", values, partition=0)])
        topics.ends.clear()
        fresh.close()
        found = told_of(database, name)
        assert found == expected(values), name
        everything += found
    assert len(everything) > 300


def told_of(database: Database, pipeline: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner, autocommit=True) as connection:
        rows = told(database)
        connection.execute("DELETE FROM attempts WHERE shape_id IN (SELECT id FROM shapes WHERE pipeline = %s)",
                           (pipeline,))  # fmt: skip
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_order_duplicates_and_cuts_make_no_difference(database: Database, seed: int) -> None:  # complaint 7
    chance = random.Random(seed)
    for name in chance.sample(SCENARIOS, 15):
        values = traces(name)
        if not values:
            continue
        right = expected(values)
        delivered = values + chance.sample(values, len(values) // 2)
        chance.shuffle(delivered)
        topics = Topics()
        intake = Intake(database.app, name)
        intake.positions()
        for piece in chunks(delivered, (chance.randint(1, 4), chance.randint(1, 9))):
            lanes: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
            for pair in piece:
                lanes.setdefault(chance.randrange(3), []).append(pair)
            intake.store([topics.batch("traces", lane, partition=number) for number, lane in lanes.items()])
        intake.close()
        assert told_of(database, name) == right, name


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (1, 3, 2, 0), (2, 3, 0, 1)])
def test_events_without_key_find_their_attempt_whenever_they_come(
    intake: Intake, database: Database, order: tuple[int, ...]
) -> None:
    """An agent may stage an event that names neither key nor seq; only its trace id, and the record's key, tell."""
    pieces = traces("a01_fraud_completed")
    key = pieces[0][0]
    first = parse(TraceEvent, pieces[0][1] or b"")
    bare = TraceEvent(trace_id=first.trace_id, span_id=b"12345678", parent_span_id=first.span_id, event_type=2)
    parts = [pieces[:2], [(key, serialize(bare))], pieces[2:5], pieces[5:]]
    topics = Topics()
    for index in order:
        intake.store([topics.batch("traces", parts[index], partition=index % 2)])
    assert told(database) == expected([*pieces, (key, serialize(bare))])


def test_what_was_read_is_stored_as_it_was(intake: Intake, database: Database) -> None:
    values = traces("a01_fraud_completed")
    strange = [(None, None), (b"k", b""), (b"", b"\xff\x00 no event"), *values, (b"k", None)]
    batch = Topics().batch("traces", strange, at_ms=1_700_000_000_000)
    records = [record._replace(headers=(("a", b"\x00"), ("b", None))) if record.offset == 1 else record
               for record in batch.records]  # fmt: skip
    records[2] = records[2]._replace(timestamp_ms=None)
    outcome = intake.store([Batch("traces", "t.traces", 0, tuple(records), 0)])
    assert [record for _, record in raw(database, "traces")] == records
    assert (outcome.records, outcome.undecodable, outcome.attempts) == (len(strange), 1, 1)
    with psycopg.connect(database.app) as connection:
        assert connection.execute('SELECT "offset", size, error FROM undecodable').fetchall() == [
            (2, 11, "not a TraceEvent: 11 bytes do not parse as one")
        ]
        assert connection.execute("SELECT records, undecodable, tombstones, next_offset FROM positions").fetchone() == (
            len(strange), 1, 2, len(strange))  # fmt: skip


def test_gaps_and_compacted_offsets_are_counted(intake: Intake, database: Database) -> None:
    records = (Raw(5, 1, b"k", None), Raw(9, 2, b"k", None))
    intake.store([Batch("outputs", "t.outputs", 3, records, expected=5, absent=3)])
    intake.store([], [(Gap("outputs", "t.outputs", 3, 10, 25), False)])
    intake.store([Batch("outputs", "t.outputs", 3, (Raw(25, 3, b"k", b"x"),), expected=25)])
    with psycopg.connect(database.app) as connection:
        row = connection.execute("SELECT next_offset, records, absent, removed FROM positions").fetchone()
    assert row == (26, 3, 3, 15)
    assert [record.offset for _, record in raw(database, "outputs")] == [5, 9, 25]


def test_a_topic_made_anew_is_another_log(intake: Intake, database: Database) -> None:
    values = traces("a01_fraud_completed")
    intake.store([Topics().batch("traces", values)])
    stored = intake.positions()["t.traces", 0]
    intake.store([Topics().batch("traces", values[:3])], [(Gap("traces", "t.traces", 0, stored.next_offset, 0), True)])
    again = intake.positions()["t.traces", 0]
    assert (again.next_offset, again.stream_id) == (3, stored.stream_id + 1)
    assert [record.offset for _, record in raw(database, "traces")] == [*range(len(values)), 0, 1, 2]
    assert told(database) == expected(values)


def test_the_second_of_two_collectors_is_stopped_and_stores_nothing(intake: Intake, database: Database) -> None:
    topics = Topics()
    first = topics.batch("traces", traces("a01_fraud_completed"))
    other = Intake(database.app, "p")
    other.positions()
    intake.store([first])
    with pytest.raises(Fenced, match="another collector"):
        other.store([first])
    assert other.positions()["t.traces", 0].next_offset == first.next_offset
    more = topics.batch("traces", traces("a05_suspended_start"))
    other.store([more])
    with pytest.raises(Fenced):
        intake.store([more])
    other.close()
    assert len(raw(database, "traces")) == len(first.records) + len(more.records)


def test_a_batch_that_does_not_follow_is_refused(intake: Intake) -> None:
    topics = Topics()
    intake.store([topics.batch("traces", traces("a01_fraud_completed"))])
    topics.batch("traces", traces("a01_fraud_completed"))  # lost on the way
    with pytest.raises(Fenced, match="is stored up to 7, not 14"):
        intake.store([topics.batch("traces", traces("a01_fraud_completed"))])


def test_a_row_keeps_its_id_when_the_rest_of_the_attempt_comes(intake: Intake, database: Database) -> None:
    topics, values = Topics(), traces("a01_fraud_completed")

    def ids() -> list[int]:
        with psycopg.connect(database.app) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM attempts")]

    intake.store([topics.batch("traces", values[:4])])
    (first,) = ids()
    assert attempts(database)[0][4] == "incomplete"
    intake.store([topics.batch("traces", values[4:])])
    assert ids() == [first]
    assert attempts(database)[0][4] == "activation"


def test_records_of_another_kind_are_told_by_each_stream(intake: Intake, database: Database) -> None:  # complaint 33
    snapshot = serialize(StateSnapshot(state_schema_version=1, entity_key=b"k", seq=3, request_id="r"))
    event = traces("a01_fraud_completed")[0][1]
    topics = Topics()
    outcome = intake.store(
        [
            topics.batch("traces", [(b"k", snapshot), (b"k", b"\x0a")]),
            topics.batch("snapshots", [(b"k", event), (b"k", b""), (b"k", b"\xff"), (b"k", snapshot)]),
            topics.batch("intents", [(b"k", snapshot), (b"k", b"\x08")]),
            topics.batch("errors", [(b"k", snapshot), (b"k", b"\x1a\x01\xff")]),
            topics.batch("outputs", [(b"x" * 2000, b"anything at all")]),
        ]
    )
    assert (outcome.undecodable, outcome.snapshots, outcome.records) == (10, 1, 11)
    with psycopg.connect(database.app) as connection:
        told = dict(
            connection.execute(
                'SELECT s.stream || u."offset", u.error FROM undecodable u JOIN streams s ON s.id = u.stream_id'
            ).fetchall()
        )
        assert connection.execute("SELECT entity_key, seq, request_id, suspended FROM snapshots").fetchall() == [
            (b"k", 3, "r", False)
        ]
    assert told["traces0"] == "not a TraceEvent: `trace_id` does not have its type"
    assert told["snapshots1"] == "not a StateSnapshot: it has no state_schema_version"
    assert told["outputs0"] == "its key has 2000 bytes; one of at most 1024 can be looked up"
    assert len(raw(database, "snapshots")) == 4


async def test_what_could_not_be_read_is_counted_listed_and_kept(
    intake: Intake, database: Database, store: Store
) -> None:
    topics = Topics()
    poison = [b"\xff%d" % number for number in range(5)]
    intake.store([topics.batch("traces", [(b"k", value) for value in poison]), topics.batch("outputs", [(b"k", None)])])
    async with store.read() as session:
        outputs, events = await live.stream_statuses(session)
        assert (events.stream, events.records, events.undecodable, events.partitions) == ("traces", 5, 5, 1)
        assert (outputs.stream, outputs.tombstones, outputs.anew) == ("outputs", 1, 0)
        first = await live.undecodable_records(session, limit=3)
        rest = await live.undecodable_records(session, before=first[-1].id, pipeline="p")
        assert [one.offset for one in (*first, *rest)] == [4, 3, 2, 1, 0]
        assert (await live.raw_record(session, first[0].id)).value == poison[4]
        assert await live.undecodable_records(session, pipeline="other") == []
        with pytest.raises(NotFound):
            await live.raw_record(session, 1)


def test_a_snapshot_of_fifty_megabytes_is_stored_whole(intake: Intake, database: Database) -> None:
    big = StateSnapshot(state_schema_version=1, entity_key=b"k", seq=1)
    big.memory.entries.add(key="x", value=random.Random(1).randbytes(50_000_000))
    value = serialize(big)
    intake.store([Topics().batch("snapshots", [(b"k", b""), (b"k", value), (b"k", b"")])])
    stored = raw(database, "snapshots")
    assert [len(record.value or b"") for _, record in stored] == [0, len(value), 0]
    assert stored[1][1].value == value
