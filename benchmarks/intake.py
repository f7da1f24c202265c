"""Intake: how fast trace events get into PostgreSQL, what they take there, and a page of a million attempts."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from app.demo.postgres import APPLICATION, EmbeddedPostgres, Urls
from app.incidents import schema
from app.incidents.activations import ActivationFilter, find_by_intent, list_activations
from app.incidents.collecting import Intake, Outcome
from app.incidents.service import Store
from app.incidents.store import ReadSession
from app.wire import identity
from app.wire.records import EventType, TraceEvent, serialize
from benchmarks.measure import Row
from tests.incidents.live import Batch, Topics

RATE_GOAL: Final = 40_000
BYTES_GOAL: Final = 60
PAGE_GOAL_MS: Final = 50

PARTITIONS: Final = 4
BATCHES: Final = 60
ATTEMPTS_A_BATCH: Final = 1250
STORED: Final = 1_000_000


def rows() -> Iterator[Row]:
    """Every figure of this file."""
    with _database() as urls:
        yield from storing(urls)
    with _database() as urls:
        yield from asyncio.run(pages(urls))


def storing(urls: Urls) -> Iterator[Row]:
    """Ready batches into the database: decoded, grouped, compressed, written, committed with their offsets."""
    made = list(_batches())
    events = sum(len(batch.records) for batches in made for batch in batches)
    size = sum(len(record.value or b"") for batches in made for batch in batches for record in batch.records)
    gc.collect()
    gc.set_threshold(100_000, 50, 50)  # as `hindcast collect` does
    intake = Intake(urls.app, "bench")
    intake.positions()
    intake.store(made[0])
    begun = time.perf_counter()
    cpu = time.process_time()
    pump(intake, made[1:])
    taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
    intake.close()
    counted = events - sum(len(batch.records) for batch in made[0])
    rate = counted / taken
    yield Row(
        f"intake, {events:,} trace events of {size / events:.0f} bytes, stored",
        f"{rate:,.0f} events/s",
        f"≥ {RATE_GOAL:,}/s",
        rate >= RATE_GOAL,
        f"{cpu / counted * 1e6:.1f} µs of processor time an event",
    )
    raw, attempts, other = _sizes(urls)
    each = (raw + attempts + other) / events
    told = f"raw frames {raw / events:.1f}, rows and indexes {attempts / events:.1f}, 8 events an attempt"
    yield Row("disk a trace event, indexes included", f"{each:.1f} bytes", f"≤ {BYTES_GOAL}", each <= BYTES_GOAL, told)


def pump(intake: Intake, pieces: Iterable[Sequence[Any]]) -> int:
    """Store as `hindcast collect` does: while one piece is written, the next is prepared. Returns records stored."""
    stored = 0
    with ThreadPoolExecutor(1) as writer:
        writing: Future[Outcome] | None = None
        for piece in pieces:
            prepared = intake.prepare(piece)
            if writing is not None:
                stored += writing.result().records
            writing = writer.submit(intake.write, prepared)
        return stored + (writing.result().records if writing is not None else 0)


async def pages(urls: Urls) -> list[Row]:
    """First pages of a million stored attempts, by filter."""
    _fill(urls)
    store = Store(urls.app)
    lists = {
        "/activations, first page": ActivationFilter(),
        "/activations of a status, 1 of 100": ActivationFilter(status="failed"),
        "/activations of a tool, 1 of 10,000": ActivationFilter(tool="rare"),
        "/activations of a tool, every second": ActivationFilter(tool="refund"),
        "/activations of a key": ActivationFilter(entity_key=b"customer-77"),
    }
    made = [await _page(store, what, lambda s, f=f: list_activations(s, f)) for what, f in lists.items()]  # type: ignore[misc]
    intent = identity.intent_id(b"customer-77", 1, 3)
    made.append(await _page(store, "find by intent", lambda session: find_by_intent(session, intent)))
    await store.close()
    return made


async def _page(store: Store, what: str, ask: Callable[[ReadSession], Awaitable[object]]) -> Row:
    taken = []
    for _ in range(30):
        async with store.read() as session:
            begun = time.perf_counter()
            await ask(session)
            taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    middle, late = taken[15], taken[28]
    return Row(
        f"{what}, of {STORED:,} attempts", f"{middle:.1f} ms (p95 {late:.1f})", f"≤ {PAGE_GOAL_MS} ms",
        late <= PAGE_GOAL_MS,
    )  # fmt: skip


@contextmanager
def _database() -> Iterator[Urls]:
    home = Path(tempfile.mkdtemp(prefix="hindcast-bench-"))
    home.chmod(0o711)  # the server is another user when we are root
    server = EmbeddedPostgres(home)
    try:
        urls = server.start()
        schema.upgrade(urls.owner, application=APPLICATION)
        yield urls
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def _batches() -> Iterator[list[Batch]]:
    """Batches as they come from four partitions: attempts of 200,000 keys, event times that jitter by half a second."""
    chance = random.Random(7)
    topics, clock = Topics(), 1_790_000_000_000
    for _ in range(BATCHES):
        lanes: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(PARTITIONS)]
        for _ in range(ATTEMPTS_A_BATCH):
            clock += chance.randint(0, 2)
            key = b"customer-%06d" % chance.randint(1, 200_000)
            values = _attempt(chance, key, chance.randint(0, 40), clock + chance.randint(-500, 500))
            lanes[key[-1] % PARTITIONS] += [(key, value) for value in values]
        yield [topics.batch("traces", lane, partition=number, at_ms=clock) for number, lane in enumerate(lanes)]


def _attempt(chance: random.Random, key: bytes, seq: int, clock: int) -> Iterator[bytes]:
    """START, three model calls and two tools, an intent, END."""
    trace, span = identity.trace_id(key, seq), identity.span_id(key, seq, "activation", 0)

    def event(kind: int, own: bytes, step: int, told: dict[str, str], parent: bytes = span) -> bytes:
        return serialize(
            TraceEvent(
                trace_id=trace, span_id=own, parent_span_id=parent, entity_key=key, seq=seq, step_index=step,
                event_type=kind, attributes=told, start_ms=clock, end_ms=clock,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    yield event(EventType.ACTIVATION_START, span, 0, {"beam_agents.activation.kind": "start"}, b"")
    for step in range(3):
        told = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": chance.choice(["small-1", "large-2"]),
            "beam_agents.cache_hit": "false",
            "beam_agents.billed": "true",
            "gen_ai.usage.input_tokens": str(chance.randint(300, 4000)),
            "gen_ai.usage.output_tokens": str(chance.randint(10, 600)),
        }
        yield event(EventType.LLM_CALL, identity.span_id(key, seq, "LLM_CALL", step), step, told)
        if step < 2:
            tool = {"beam_agents.tool_name": chance.choice(["lookup_order", "lookup_customer", "policy"])}
            yield event(EventType.TOOL_CALL, identity.span_id(key, seq, "TOOL_CALL", step), step + 1, tool)
    told = {
        "beam_agents.intent_id": identity.intent_id(key, seq, 3),
        "beam_agents.tool_name": chance.choice(["refund", "reply", "escalate"]),
        "beam_agents.intent_kind": "TOOL",
        "beam_agents.expires_at_ms": str(clock + 3_600_000),
    }
    yield event(EventType.INTENT_EMITTED, identity.span_id(key, seq, "INTENT_EMITTED", 3), 3, told)
    ended = {"beam_agents.activation.status": "completed", "beam_agents.activation.kind": "start"}
    yield event(EventType.ACTIVATION_END, span, 4, ended, b"")


def _sizes(urls: Urls) -> tuple[int, int, int]:
    """Bytes of the raw frames, of the attempts, and of everything else that was collected."""
    with psycopg.connect(urls.owner) as connection:
        found = dict(
            connection.execute(
                "SELECT p.relname, sum(pg_total_relation_size(i.inhrelid)) FROM pg_inherits i"
                " JOIN pg_class p ON p.oid = i.inhparent JOIN pg_class c ON c.oid = i.inhrelid"
                " WHERE c.relkind = 'r' GROUP BY 1"
            ).fetchall()
        )
        other = connection.execute(
            "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(ARRAY['shapes', 'positions']) name"
        ).fetchone()
    raw, attempts = int(found.pop("segments")), int(found.pop("attempts"))
    return raw, attempts, int(sum(found.values())) + int(other[0] if other else 0)


def _fill(urls: Urls) -> None:
    """A million attempts over a week, made by the database itself: what counts is their number and their spread."""
    with psycopg.connect(urls.app, autocommit=True) as connection:
        shapes = [
            ("completed", "refund", 49), ("completed", "reply", 40), ("suspended", "approval", 10), ("failed", "", 1),
        ]  # fmt: skip
        for number, (status, tool, _) in enumerate([*shapes, ("completed", "rare", 0)]):
            connection.execute(
                "INSERT INTO shapes (pipeline, kind, category, status, reason, error_type, entry_step, batch_trigger,"
                " plain, tools, intents, digest) VALUES ('bench', 'start', 'activation', %s, '', '', 0, '', true,"
                " %s, %s, %s)",
                (status, [tool], '[[3, "refund", "TOOL", ""]]', number.to_bytes(16, "big")),
            )
        (today,) = connection.execute("SELECT floor(extract(epoch FROM now()) / 86400)::int").fetchone() or (0,)
        for day in range(today - 6, today + 1):
            connection.execute("SELECT hindcast_add_day(%s)", (day,))
            connection.execute(
                "INSERT INTO attempts (id, clock_ms, seq, intent, shape_id, entity_key, places)"
                " SELECT (%(day)s::bigint << 40) | n, %(day)s * 86400000::bigint + n::bigint * 86400000 / %(each)s,"
                " n %% 20, hashint8extended(n, %(day)s), CASE WHEN n %% 10000 = 7 THEN 5 WHEN n %% 100 < 49 THEN 1"
                " WHEN n %% 100 < 89 THEN 2 WHEN n %% 100 < 99 THEN 3 ELSE 4 END,"
                " convert_to('customer-' || (n::bigint * 7919) %% 100000, 'UTF8'), '\\x080100ff0708'"
                " FROM generate_series(1, %(each)s) n",
                {"day": day, "each": STORED // 7},
            )
    with psycopg.connect(urls.owner, autocommit=True) as connection:
        connection.execute("ANALYZE attempts")
