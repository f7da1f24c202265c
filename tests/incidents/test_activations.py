"""Recent activations: filters, pages and look-ups over what intake stored."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from app.incidents import activations
from app.incidents.activations import ActivationFilter
from app.incidents.collecting import Intake
from app.incidents.errors import IncidentError, NotFound
from app.incidents.service import Store
from app.wire import identity
from tests.fixtures.postgres import Database
from tests.incidents.live import Topics
from tests.incidents.tracing import Told, attempt, failure


@pytest.fixture
def intake(database: Database) -> Iterator[Intake]:
    made = Intake(database.app, "refunds")
    made.positions()
    yield made
    made.close()


async def page(store: Store, after: str | None = None, limit: int = 50, **chosen: object) -> activations.ActivationPage:
    async with store.read() as session:
        return await activations.list_activations(
            session,
            ActivationFilter(**chosen),
            after=after,
            limit=limit,  # type: ignore[arg-type]
        )


def fill(intake: Intake, told: list[Told]) -> None:
    intake.store([Topics().batch("traces", [(one.key, value) for one in told for value in one.values])])


async def test_a_row_says_what_happened(intake: Intake, store: Store) -> None:
    fill(intake, [attempt(b"customer-42", 7, 5000, tools=["lookup"], intents=["refund", "notify"], status="suspended")])
    (one,) = (await page(store)).items
    ids = [identity.intent_id(b"customer-42", 7, step) for step in (1, 2)]
    assert one.as_json() | {"id": ""} == {
        "id": "",
        "pipeline": "refunds",
        "entity_key": {"hex": b"customer-42".hex(), "text": "customer-42"},
        "seq": 7,
        "kind": "start",
        "category": "activation",
        "status": "suspended",
        "clock_ms": 5000,
        "reason": None,
        "error_type": None,
        "entry_step": 0,
        "batch_size": None,
        "tools": ["lookup", "notify", "refund"],
        "intents": [
            {"intent_id": ids[0], "step": 1, "tool": "refund", "kind": "TOOL"},
            {"intent_id": ids[1], "step": 2, "tool": "notify", "kind": "TOOL"},
        ],
        "events": 6,
    }
    async with store.read() as session:
        assert await activations.get_activation(session, one.id) == one
        for missing in ("x", "0-0", one.id + "1", "zzzzzzzzzzzzz-zzzzzzzzzzzzz", "", "é-1"):
            with pytest.raises(NotFound):
                await activations.get_activation(session, missing)


async def test_pages_go_through_all_of_them_once_latest_event_time_first(intake: Intake, store: Store) -> None:
    chance = random.Random(3)
    clocks = [chance.randint(-5, 20) for _ in range(57)]  # many share one, and some lie before 1970
    fill(intake, [attempt(b"k%d" % index, 0, clock) for index, clock in enumerate(clocks)])
    seen: list[activations.Activation] = []
    cursor = None
    while True:
        found = await page(store, cursor, limit=10)
        seen += found.items
        cursor = found.next
        if cursor is None:
            break
    assert [one.clock_ms for one in seen] == sorted(clocks, reverse=True)
    assert len({one.id for one in seen}) == len(clocks)
    assert {one.entity_key for one in seen} == {b"k%d" % index for index in range(57)}


@pytest.mark.parametrize("cursor", ["", "x", "1.", "é.1", "1.zzzzzzzzzzzzz", "1.1.1"])
async def test_a_foreign_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(IncidentError, match="not a position in the list of activations"):
        await page(store, cursor)


async def test_filters(intake: Intake, store: Store, database: Database) -> None:
    fill(
        intake,
        [
            attempt(b"a", 0, 100, intents=["refund"]),
            attempt(b"a", 1, 200, status="suspended", tools=["lookup"]),
            failure(b"a", 2, 300, "activation_error", "ValueError"),
            failure(b"b", 0, 400, "budget_exceeded", "BudgetExceeded"),
            failure(b"b", 0, 500, "orphaned_result", "no_continuation"),
        ],
    )
    other = Intake(database.app, "other")
    other.positions()
    fill(other, [attempt(b"a", 0, 150, tools=["refund"])])
    other.close()

    async def clocks(**chosen: object) -> list[int]:
        return [one.clock_ms for one in (await page(store, **chosen)).items]

    assert await clocks() == [500, 400, 300, 200, 150, 100]
    assert await clocks(pipeline="refunds", tool="refund") == [100]
    assert await clocks(tool="refund") == [150, 100]
    assert await clocks(status="failed") == [400, 300]
    assert await clocks(status="orphan") == [500]
    assert await clocks(reason="activation_error") == [300]
    assert await clocks(since_ms=150, until_ms=300) == [200, 150]
    assert await clocks(entity_key=b"a", pipeline="refunds") == [300, 200, 100]
    assert await clocks(entity_key=b"a", seq=0) == [150, 100]
    assert await clocks(kind="start", status="completed") == [150, 100]
    assert await clocks(tool="nobody") == []
    assert await clocks(tool="nob\0dy") == []
    async with store.read() as session:
        told = await activations.choices(session)
    assert told.pipelines == ("other", "refunds")
    assert told.statuses == ("completed", "failed", "orphan", "suspended")
    assert told.reasons == ("activation_error", "budget_exceeded", "orphaned_result")
    assert told.tools == ("lookup", "refund")


async def test_an_intent_names_who_emitted_it(intake: Intake, store: Store) -> None:
    fill(
        intake,
        [
            attempt(b"a", 0, 100, intents=["refund", "notify", "close"]),
            attempt(b"a", 0, 9000, intents=["refund"]),  # another life of the key: the same id again
            attempt(b"b", 0, 100, intents=["refund"]),
        ],
    )
    async with store.read() as session:

        async def who(step: int, **more: str) -> list[tuple[bytes, int]]:
            found = await activations.find_by_intent(session, identity.intent_id(b"a", 0, step), **more)
            return [(one.entity_key, one.clock_ms) for one in found]

        assert await who(1) == [(b"a", 9000), (b"a", 100)]
        assert await who(3) == [(b"a", 100)]
        assert await who(3, pipeline="other") == []
        assert await who(7) == []
        assert await activations.find_by_intent(session, "not an id \0") == ()


async def test_an_intent_with_an_id_of_the_agents_own_is_found_too(intake: Intake, store: Store) -> None:
    fill(intake, [attempt(b"a", 0, 100, intents=["refund"], intent_ids=["mine"])])
    async with store.read() as session:
        (one,) = await activations.find_by_intent(session, "mine")
    assert [intent.intent_id for intent in one.intents] == ["mine"]


def test_keys_can_be_given_in_three_forms() -> None:
    for given in (
        {"key": "k-é"},
        {"hex": "6b2dc3a9"},
        {"hex": "0x6B2DC3A9"},
        {"base64": "ay3DqQ=="},
        {"base64": "ay3DqQ"},
    ):
        assert activations.parse_key(**given) == "k-é".encode()
    assert activations.parse_key(key="") == b""
    for given, problem in (
        ({}, "give the key once"),
        ({"key": "a", "hex": "61"}, "give the key once"),
        ({"hex": "6"}, "'6' is not a key in hex"),
        ({"base64": "!"}, "'!' is not a key in base64"),
    ):
        with pytest.raises(IncidentError, match=problem):
            activations.parse_key(**given)
