"""Rules that freeze a key by themselves: what they take, what their limits hold, and what a person reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from app.incidents import live, opening, service
from app.incidents import live_repository as db
from app.incidents.collecting import Intake
from app.incidents.freeze import why
from app.incidents.projection import Place, Traced, facts_of, group
from app.incidents.rules import FreezeRule
from app.incidents.service import Store
from app.wire.records import TraceEvent, parse
from tests.fixtures.postgres import Database
from tests.incidents.live import Topics
from tests.incidents.tracing import Told, attempt, failure

Fill = Callable[..., int]


@pytest.fixture
def fill(database: Database) -> Iterator[Fill]:
    made: list[Intake] = []
    topics = Topics()

    def store(rules: Sequence[FreezeRule], *told: Told) -> int:
        intake = Intake(database.app, "p", rules)
        intake.positions()
        made.append(intake)
        return intake.store([topics.batch("traces", [(one.key, value) for one in told for value in one.values])]).frozen

    yield store
    for intake in made:
        intake.close()


async def frozen(store: Store) -> list[live.Freeze]:
    async with store.read() as session:
        return await live.freezes(session)


RULES = {
    "reason": FreezeRule(name="errors", reason="activation_error"),
    "tool": FreezeRule(name="refunds", tool="refund"),
    "status": FreezeRule(name="waits", status="suspended"),
    "key": FreezeRule(name="vip", key="vip-*"),
    "both": FreezeRule(name="vip-refunds", key="vip-*", tool="refund"),
}
TOLD = {
    "refund": attempt(b"c-1", 0, 100, tools=["lookup"], intents=["refund"]),
    "called": attempt(b"c-2", 0, 100, tools=["refund"]),
    "waiting": attempt(b"c-3", 0, 100, status="suspended"),
    "failed": failure(b"c-4", 0, 100, "activation_error", "ValueError"),
    "vip": attempt(b"vip-1", 0, 100),
    "vip refund": attempt(b"vip-2", 0, 100, intents=["refund"]),
}


@pytest.mark.parametrize(
    ("rule", "taken"),
    [
        ("reason", {"failed": "it failed with reason activation_error (ValueError)"}),
        ("tool", dict.fromkeys(("refund", "vip refund"), "it emitted an intent of refund at step 1")),
        ("status", {"waiting": "its status is suspended"}),
        ("key", {"vip": "its key is like vip-*", "vip refund": "its key is like vip-*"}),
        ("both", {"vip refund": "it emitted an intent of refund at step 1 and its key is like vip-*"}),
    ],
)  # fmt: skip
def test_a_rule_takes_what_it_says_and_says_why(rule: str, taken: dict[str, str]) -> None:
    found = {}
    for name, told in TOLD.items():
        events = [
            Traced.of(parse(TraceEvent, value), value, Place(1, 0, n), told.key) for n, value in enumerate(told.values)
        ]
        for owner, mine in group(events).owners.items():
            for facts in facts_of(owner, mine):
                if (reason := why(RULES[rule], facts)) is not None:
                    found[name] = reason
    assert found == taken


async def test_what_is_frozen_becomes_an_incident_with_an_export(fill: Fill, store: Store) -> None:
    assert fill([RULES["tool"]], TOLD["refund"], TOLD["waiting"]) == 1
    (freeze,) = await frozen(store)
    assert (freeze.rule, freeze.entity_key, freeze.seq, freeze.kind, freeze.clock_ms) == (
        "refunds", b"c-1", 0, "start", 100)  # fmt: skip
    async with store.write() as session:
        incident = await opening.open_frozen(session, freeze.id, known=["p"])
        assert await opening.open_frozen(session, freeze.id, known=["p"]) is None
    assert incident is not None
    async with store.read() as session:
        status = await live.live_status(session, await service.get_incident(session, incident.id))
    assert status.frozen is not None
    assert (status.frozen.rule, status.frozen.why) == ("refunds", freeze.why)
    (export,) = status.exports
    assert (export.export.created_by, export.export.rule, export.export.reason) == (
        "rule refunds", "refunds", "it emitted an intent of refund at step 1")  # fmt: skip
    assert (incident.title, incident.seq, incident.clock_ms) == ("refunds: c-1, seq 0", 0, 100)
    assert status.as_json()["frozen"]["rule"] == "refunds"


async def test_an_attempt_that_is_delivered_again_is_not_frozen_again(fill: Fill, store: Store) -> None:
    rule = FreezeRule(name="refunds", tool="refund", per_key_s=0)
    told = TOLD["refund"]
    assert fill([rule], Told(told.key, told.values[:4])) == 1  # its END comes later, and everything comes twice
    assert fill([rule], Told(told.key, told.values[4:])) == 0
    assert fill([rule], told) == 0
    assert [one.suppressed for one in await frozen(store)] == [0]


async def test_a_key_is_left_alone_and_a_pipeline_is_not_flooded(fill: Fill, store: Store) -> None:
    rule = FreezeRule(name="errors", reason="activation_error", per_hour=3)
    assert fill([rule], *[failure(b"k", 0, clock, "activation_error") for clock in range(5)]) == 1
    assert fill([rule], *[failure(b"k%d" % key, 0, 100, "activation_error") for key in range(50)]) == 2
    assert fill([rule], failure(b"late", 0, 100, "activation_error")) == 0
    found = await frozen(store)
    assert [one.entity_key for one in found] == [b"k1", b"k0", b"k"]
    assert sum(one.suppressed for one in found) == 4 + 48 + 1


async def test_a_rule_looks_at_its_own_pipelines_only(fill: Fill, store: Store) -> None:
    other = FreezeRule(name="refunds", tool="refund", pipelines=("q",))
    assert fill([other], TOLD["refund"]) == 0
    assert await frozen(store) == []


async def test_a_freeze_that_comes_to_nothing_says_why(fill: Fill, store: Store) -> None:
    fill([RULES["tool"]], TOLD["refund"])
    (freeze,) = await frozen(store)
    async with store.write() as session:
        await db.set_problem_of_freeze(session, freeze.id, "hindcast.toml names no pipeline 'p'")
    async with store.write() as session:
        assert await db.open_freezes(session, "p") == []
        assert await opening.open_frozen(session, freeze.id, known=["p"]) is None
