"""Counts after a soak what went in and what came out, from the broker's ends to the last row, and judges each line."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

from app.demo.traffic import TOPICS
from app.incidents import audit_chain
from app.incidents.store import Store
from app.incidents.verifying import verify_kept

FOLLOWED: Final = ("traces", "snapshots", "intents", "outputs", "errors")
CATCH_UP_S: Final = 300.0
# What an interpreter and its pools may still grow once they are warm.
GROWTH: Final = 1.08
GROWTH_MIB: Final = 6.0


@dataclass
class Promised:
    """What the installation acknowledged; `unanswered` requests met a kill, and nothing was promised for them."""

    tickets: int = 0
    incidents: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    retried: int = 0
    answered: set[str] = field(default_factory=set)
    asked_again: int = 0
    unanswered: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was counted on both sides."""

    what: str
    went_in: object
    came_out: object
    ok: bool

    def __str__(self) -> str:
        return f"| {self.what} | {self.went_in} | {self.came_out} | {'yes' if self.ok else 'NO'} |"


async def count(
    url: str,
    broker: str,
    pipeline: str,
    promised: Promised,
    kills: Counter[str],
    memory: Mapping[str, Sequence[float]],
) -> bool:
    """Print the table; whether every line holds."""
    ends = await _caught_up(url, broker, pipeline, promised)
    lines = [*_collected(url, pipeline, ends, promised), *_runs(url, promised), *_exports(url, promised)]
    store = Store(url)
    kept = await verify_kept(store)
    async with store.read() as session:
        trail = await audit_chain.verify(session)
    await store.close()
    lines.append(Line("evidence by its digests", f"{kept.blobs} blobs", f"{len(kept.faults)} damaged", not kept.faults))
    whole = "whole" if not trail.faults else trail.faults[0]
    lines.append(Line("audit trail", f"{trail.entries} entries", whole, not trail.faults))
    lines += [_memory(name, sizes) for name, sizes in memory.items()]
    print(f"\nkilled: {', '.join(f'{name} {times}' for name, times in sorted(kills.items()))}")
    print(
        f"requests that met a kill: {promised.unanswered}; runs that were lost and retried: {promised.retried};"
        f" exports that timed out and were asked for again: {promised.asked_again}\n"
    )
    print("| what | went in | came out | holds |\n|---|---|---|---|")
    for line in lines:
        print(line)
    return all(line.ok for line in lines)


async def _caught_up(url: str, broker: str, pipeline: str, promised: Promised) -> dict[str, int]:
    """Wait until the pipeline has answered every ticket and the collector has read to the ends of the topics."""
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        ends = {name: await asyncio.to_thread(_end, broker, f"{pipeline}.{name}") for name in FOLLOWED}
        with psycopg.connect(url) as connection:
            stored = dict(connection.execute(_STORED, {"pipeline": pipeline}).fetchall())
            attempts = connection.execute("SELECT count(*) FROM attempts").fetchone()
            open_exports = connection.execute("SELECT count(*) FROM exports WHERE state = 'requested'").fetchone()
        assert attempts is not None
        assert open_exports is not None
        settled = {name: stored.get(name, 0) for name in FOLLOWED} == ends and not open_exports[0]
        if (settled and attempts[0] >= promised.tickets) or time.monotonic() > deadline:
            return ends
        await asyncio.sleep(1)


_STORED: Final = (
    "SELECT s.stream, CAST(sum(p.records + p.absent + p.removed) AS bigint) FROM streams s"
    " JOIN positions p ON p.stream_id = s.id WHERE s.pipeline = %(pipeline)s GROUP BY 1"
)


def _end(broker: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "soak-count", "log_level": 2})
    try:
        places = [TopicPartition(topic, partition) for partition in range(TOPICS[topic])]
        return sum(consumer.get_watermark_offsets(place, timeout=20)[1] for place in places)
    finally:
        consumer.close()


def _collected(url: str, pipeline: str, ends: Mapping[str, int], promised: Promised) -> Iterator[Line]:
    with psycopg.connect(url) as connection:
        stored = dict(connection.execute(_STORED, {"pipeline": pipeline}).fetchall())
        counted = dict(connection.execute(_IN_SEGMENTS, {"pipeline": pipeline}).fetchall())
        attempts, keys = _one(connection, "SELECT count(*), count(DISTINCT (entity_key, seq, shape_id)) FROM attempts")
        removed, undecodable = _one(connection, "SELECT sum(removed), sum(undecodable) FROM positions")
    for name, end in ends.items():
        told = f"{stored.get(name, 0)} stored, {counted.get(name, 0)} in segments"
        yield Line(f"records of {name}", end, told, stored.get(name, 0) == end == counted.get(name, 0))
    yield Line("tickets, each one attempt", promised.tickets, attempts, promised.tickets == attempts == keys)
    yield Line("records lost to the broker, or not readable", 0, f"{removed}, {undecodable}", not removed + undecodable)


_IN_SEGMENTS: Final = (
    "SELECT s.stream, CAST(sum(g.records) AS bigint) FROM streams s JOIN segments g ON g.stream_id = s.id"
    " WHERE s.pipeline = %(pipeline)s GROUP BY 1"
)


def _runs(url: str, promised: Promised) -> Iterator[Line]:
    outcomes = Counter(promised.ended.values())
    with psycopg.connect(url) as connection:
        asked = connection.execute("SELECT id, state FROM runs").fetchall()
        (stuck,) = _one(connection, "SELECT count(*) FROM runs WHERE state IN ('queued', 'running')")
        (numbers,) = _one(connection, "SELECT count(DISTINCT (incident_id, number)) FROM runs")
        (odd,) = _one(connection, _ODD_ROWS)
        (jobs,) = _one(connection, "SELECT count(*) FROM procrastinate_jobs")
        (requests,) = _one(connection, "SELECT count(*) FROM audit_events WHERE what = 'run.requested'")
    there = {run for run, _ in asked}
    missing = [run for run in promised.runs if run not in there]
    told = ", ".join(f"{name} {times}" for name, times in sorted(outcomes.items()))
    yield Line("runs acknowledged", len(promised.runs), f"{len(promised.runs) - len(missing)} there", not missing)
    yield Line("their verdicts", len(promised.runs), told, outcomes == {"reproduced": len(promised.runs)})
    yield Line("runs that wait or work for ever, jobs left over", 0, f"{stuck}, {jobs}", stuck == jobs == 0)
    yield Line(
        "every run asked for once, with a number of its own", requests, numbers, requests == numbers == len(asked)
    )
    yield Line("verdicts whose rows were written twice or in part", 0, odd, odd == 0)


_ODD_ROWS: Final = (
    "SELECT count(*) FROM runs r WHERE r.state = 'done' AND (r.counts->>'equal')::int"
    " + (r.counts->>'normalised')::int <> (SELECT count(*) FROM run_rows w WHERE w.run_id = r.id)"
)


def _exports(url: str, promised: Promised) -> Iterator[Line]:
    with psycopg.connect(url) as connection:
        states = dict(connection.execute("SELECT id, state FROM exports").fetchall())
        (doubled,) = _one(connection, _DOUBLED)
    told = Counter(states.get(export, "gone") for export in promised.exports)
    words = ", ".join(f"{name} {times}" for name, times in sorted(told.items()))
    yield Line("exports acknowledged", len(promised.exports), words, set(told) <= {"answered"})
    yield Line("files of evidence twice in one incident", 0, doubled, doubled == 0)


_DOUBLED: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM evidence GROUP BY incident_id, role, name, sha256"
    " HAVING count(*) > 1) AS twice"
)


def _memory(name: str, sizes: Sequence[float]) -> Line:
    """Flat: the last third beside the one before; the first one still loads."""
    third = len(sizes) // 3
    if third < 10:
        return Line(f"memory of {name}", f"{sizes[0]:.0f} MiB", "too few samples", ok=True)
    before, after = statistics.median(sizes[third : 2 * third]), statistics.median(sizes[2 * third :])
    flat = after <= max(before * GROWTH, before + GROWTH_MIB)
    return Line(f"memory of {name}", f"{before:.0f} MiB", f"{after:.0f} MiB", flat)


def _one(connection: psycopg.Connection[Any], statement: str) -> tuple[Any, ...]:
    row = connection.execute(statement).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return row
