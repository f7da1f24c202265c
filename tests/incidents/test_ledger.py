"""A run's ledger in the database: read event by event, light until asked for, and searchable with its timeline."""

import asyncio
import json
from typing import Any

import pytest

from app.incidents import service
from app.incidents.service import Filters, Incident, Run, Store
from app.replay.engine import Options, Report, replay
from app.replay.events import Event
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import LedgerEntry, Outcome, Row, RowState, Verdict
from tests.golden.scenarios import scenario
from tests.incidents.evidence import recording, report

A01 = "a01_fraud_completed"


async def stored(store: Store, made: Report) -> Run:
    """A finished run with that report."""
    async with store.write() as session:
        incident = await service.import_evidence(session, recording(A01), who="ada")
        run = await service.request_replay(session, incident, "v1", who="ada", known=["v1"])
    async with store.write() as session:
        assert await service.claim_run(session, run.id, worker="w", lease_s=60)
        assert await service.finish_run(session, run.id, 1, made)
    async with store.read() as session:
        return await service.get_run(session, run.id)


def real(name: str = A01) -> Report:
    runner = InProcessRunner()
    try:
        one = scenario(name)
        return replay(one.bundle(), runner, one.code(), options=Options(ledger_bytes=service.LEDGER_BYTES))
    finally:
        runner.close()


async def lines(store: Store, run: Run) -> list[dict[str, Any]]:
    async with store.read() as session:
        return [line async for line in service.ledger_lines(session, run)]


async def test_a_ledger_comes_back_as_it_was_written(store: Store) -> None:
    made = await asyncio.to_thread(real)
    run = await stored(store, made)
    assert await lines(store, run) == [json.loads(json.dumps(entry.as_json())) for entry in made.ledger]
    assert run.ledger == {"entries": len(made.ledger), "unplaced": 0, "cut": 0}


async def test_one_event_is_read_without_the_rest(store: Store) -> None:
    run = await stored(store, await asyncio.to_thread(real))
    async with store.read() as session:
        page = await service.ledger_at(session, run, 2)
        (call,) = page.entries
        assert (call.kind, call.name, page.next) == ("model", "risk-large-1", None)
        assert call.body["decoded"]["text"] == "risk=0.93"
        outline = await service.ledger_outline(session, run, 0, 3)
        assert [(entry.kind, entry.name) for entry in outline] == [
            ("tool", "risk_lookup"),
            ("model", "risk-large-1"),
            ("model", outline[2].name),
        ]
    async with store.read() as session:
        (light,) = await service.ledger_outline(session, run, 2, 2)
        with pytest.raises(Exception, match="body"):
            _ = light.body


def many(count: int) -> Report:
    entries = tuple(
        LedgerEntry(None if n % 5 == 4 else 0, "memory", {"operation": "get", "key": f"k{n}", "value": "\0\ud800"})
        for n in range(count)
    )
    return Report(
        Verdict(Outcome.REPRODUCED, "made up"), report(3).rows, (*entries, LedgerEntry(None, "cut", {"entries": 7}))
    )


async def test_pages_of_one_event_cover_it_without_gap_or_overlap(store: Store) -> None:
    run = await stored(store, many(100))
    assert run.ledger == {"entries": 100, "unplaced": 20, "cut": 7}
    for ordinal, wanted in ((0, 80), (None, 20)):
        seen: list[int] = []
        start: int | None = 0
        while start is not None:
            async with store.read() as session:
                page = await service.ledger_at(session, run, ordinal, start=start, limit=7)
            seen += [entry.position for entry in page.entries]
            start = page.next
        assert len(seen) == len(set(seen)) == wanted
        assert seen == sorted(seen)
    async with store.read() as session:
        entry = await service.ledger_entry(session, run, 3)
        assert entry.body["value"] == "\0\ud800"
        with pytest.raises(service.NotFound, match="ledger entry '999'"):
            await service.ledger_entry(session, run, 999)


async def test_equal_steps_have_equal_digests_wherever_they_stand(store: Store) -> None:
    def told(step: int, args: str) -> LedgerEntry:
        return LedgerEntry(0, "intent", {"step": step, "intent_id": f"id-{step}", "tool": "pay", "args": args})

    made = Report(Verdict(Outcome.REPRODUCED, ""), report(1).rows, (told(1, "{}"), told(2, "{}"), told(3, '{"a":1}')))
    run = await stored(store, made)
    async with store.read() as session:
        first, second, third = await service.ledger_outline_of(session, run, 10)
    assert first.digest == second.digest != third.digest


async def test_one_event_of_eight_mebibytes_is_read_alone(store: Store) -> None:
    entries = tuple(
        LedgerEntry(n, "model", {"request": {"messages": "x" * 80_000}, "response": "y"}) for n in range(100)
    )
    run = await stored(store, Report(Verdict(Outcome.REPRODUCED, ""), report(100).rows, entries))
    async with store.read() as session:
        assert len((await service.ledger_at(session, run, 50)).entries) == 1


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(types=("LLM_CALL",)), [2, 3]),
        (Filters(types=("LLM_CALL", "TOOL_CALL")), [1, 2, 3]),
        (Filters(surfaces=("memory after",)), []),
        (Filters(text="RISK-large"), [2]),
        (Filters(text="hist(4242"), [1, 2]),  # said in the ledger alone
        (Filters(text="100%"), []),
        (Filters(text="risk", types=("LLM_CALL",)), [2, 3]),
        (Filters(only_differences=True), []),
    ],
)
async def test_a_timeline_is_narrowed_by_surface_type_and_words(
    store: Store, filters: Filters, found: list[int]
) -> None:
    run = await stored(store, await asyncio.to_thread(real))
    async with store.read() as session:
        window = await service.rows_of(session, run, filters=filters)
        assert [row.ordinal for row in window.rows] == found
        assert window.total == len(found)  # complaint 39
        facets = await service.facets_of(session, run)
    assert sum(facet.count for facet in facets) == 7
    assert [facet.type for facet in facets][:3] == ["ACTIVATION_START", "TOOL_CALL", "LLM_CALL"]


NASTY = '\0 \ud800 \\u0000 \\ \U0001f600 é " \\\\u'


@pytest.mark.parametrize("words", ["\0", "\ud800", "\\u0000", "\\ ", "\U0001f600", "é", 'é "', "\\\\u", "u", NASTY])
async def test_words_are_found_among_what_postgresql_itself_cannot_read(store: Store, words: str) -> None:
    """JSON may hold escapes of NUL and of half a surrogate pair, out of which PostgreSQL picks no member."""
    plain, odd = (
        Event("LLM_CALL", "m", attributes={"prompt": said}, payload={"args_json": said}) for said in ("nothing", NASTY)
    )
    rows = tuple(Row(n, RowState.EQUAL, "trace", side, side, ()) for n, side in enumerate((plain, odd, plain)))
    entries = (LedgerEntry(0, "memory", {"key": NASTY}),)
    run = await stored(store, Report(Verdict(Outcome.REPRODUCED, "", counts={"rows": 3}), rows, entries))
    async with store.read() as session:
        window = await service.rows_of(session, run, filters=Filters(text=words))
        assert [row.ordinal for row in window.rows] == [0, 1]  # the ledger says it at the first, the event the second
        assert [row.ordinal for row in await service.rows_with_payload(session, run, "args_json")] == [0, 1, 2]
        assert await service.rows_with_payload(session, run, "u0000") == []


async def test_the_way_back_ends_where_it_began(store: Store) -> None:
    run = await stored(store, report(500))
    async with store.read() as session:
        window = await service.rows_before(session, run, end=450, limit=200)
        assert ([window.rows[0].ordinal, window.rows[-1].ordinal], window.next) == ([250, 449], 450)
        first = await service.rows_before(session, run, end=50, limit=200)
        assert ([first.rows[0].ordinal, first.rows[-1].ordinal], first.next) == ([0, 49], 50)
        nothing = await service.rows_before(session, run, end=0)
        assert (nothing.rows, nothing.next) == ((), 0)


async def test_a_captured_response_is_found_in_every_snapshot_that_holds_it(store: Store) -> None:
    made = await asyncio.to_thread(real)
    key = next(entry.body["cache_key"] for entry in made.ledger if entry.kind == "model")
    async with store.write() as session:
        incident = await service.import_evidence(session, scenario(A01).full(), who="ada")
    async with store.read() as session:
        found = await service.captured_responses(session, incident, key)
        with pytest.raises(service.NotFound):
            await service.captured_responses(session, incident, "0" * 64)
    assert {one.source for one in found} >= {"snapshot.pb"}
    assert all(one.sound and one.response and b"risk=0.93" in one.response for one in found)


async def test_a_preview_is_computed_once_for_a_set_of_evidence(store: Store) -> None:
    async with store.write() as session:
        incident: Incident = await service.import_evidence(session, recording(A01), who="ada")
    async with store.read() as session:
        ids = [file.id for file in await service.evidence_of(session, incident)]
    previews = service.Previews(store)
    first = await previews.of(incident, ids, patience_s=None)
    assert first is not None
    assert first.plan is not None
    assert first.plan["row"].startswith("exact")
    assert await previews.of(incident, ids, patience_s=0) is first
    assert await previews.of(incident, ids[:1], patience_s=0) is None  # another set of evidence; not waited for
    other = await previews.of(incident, ids[:1], patience_s=None)
    assert other is not None
    assert other.stop is not None
    assert other.stop.code == "no_envelope"


async def test_a_preview_that_failed_is_computed_again(store: Store) -> None:
    async with store.write() as session:
        incident = await service.import_evidence(session, recording(A01), who="ada")
    away = Store("postgresql://nobody@127.0.0.1:1/nothing")
    previews = service.Previews(away)
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        await previews.of(incident, [], patience_s=None)
    previews._store = store
    assert await previews.of(incident, [], patience_s=None) is not None
    await away.close()
