"""What is not on the list is hidden, equal values look equal, and nothing can be looked up by guessing."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.incidents import redacted
from app.incidents.redaction import EVERYTHING, Redactor, Reveal, Rules, outline, path_pattern, shape
from app.replay.engine import replay
from app.replay.inprocess import InProcessRunner
from app.replay.verdict import Report, Row
from tests.golden.scenarios import scenario

KEY, OTHER = b"k" * 32, b"o" * 32
CLOSED = Redactor(KEY)
OPEN = Redactor(KEY, EVERYTHING)
SECRET = "s3cret-4242"


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    runner = InProcessRunner()
    try:
        return {
            name: replay(scenario(name).files("full"), runner, scenario(name).code())
            for name in ("u01_changed_tool_args", "i09_model_changed", "d01_intent_order", "a01_fraud_completed")
        }
    finally:
        runner.close()


def stored(row: Row) -> Any:
    """A row as the database gives it back."""
    event = row.event
    return SimpleNamespace(
        ordinal=row.ordinal, state=str(row.state), surface=row.surface, event_type=event.type, label=event.label,
        about=event.about, step=event.step, cause=row.cause,
        recorded=None if row.recorded is None else row.recorded.as_json(),
        replayed=None if row.replayed is None else row.replayed.as_json(),
        fields=[f._asdict() | {"state": str(f.state)} for f in row.fields],
    )  # fmt: skip


def texts(value: object) -> list[str]:
    """Every text of a JSON value that is long enough to say something, names of members included."""
    if isinstance(value, dict):
        return [text for name, item in value.items() for text in (*texts(name), *texts(item))]
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) and len(value) > 3 else []


# complaints 23, 24
def test_of_a_whole_verdict_only_words_of_ours_pass(reports: dict[str, Report]) -> None:
    for name, report in reports.items():
        told = json.loads(json.dumps(report.verdict.as_json()))
        shown = redacted.verdict(CLOSED, told)
        assert json.loads(json.dumps(shown)) == shown
        for member in ("verdict", "exit_code", "counts", "first_divergence"):
            assert shown[member] == told[member], (name, member)
        whole = json.dumps(shown)
        for secret in ("card-4242", b"card-4242".hex(), "991", "hold_txn", "t-1", "risk-", "snapshot.pb", "velocity"):
            assert secret not in whole, (name, secret)
        for digest in (item["sha256"] for item in told["digests"]["files"]):
            assert digest not in whole, "a small file's sha256 can be guessed"


def test_with_everything_open_nothing_is_lost(reports: dict[str, Report]) -> None:
    for report in reports.values():
        told = json.loads(json.dumps(report.verdict.as_json()))
        assert redacted.verdict(OPEN, told) == told
        for row in map(stored, report.rows):
            shown = redacted.row(OPEN, row, bodies=True)
            assert (shown.recorded, shown.replayed) == (row.recorded, row.replayed)
            assert [dict(item) for item in shown.fields] == row.fields


def test_rows_keep_their_shape(reports: dict[str, Report]) -> None:
    row = stored(reports["u01_changed_tool_args"].rows[4])
    shown = redacted.row(CLOSED, row, bodies=True)
    assert (shown.ordinal, shown.state, shown.surface, shown.event_type) == (
        4,
        "changed",
        "trace events",
        row.event_type,
    )
    assert (shown.label, shown.step) == ("TOOL", 2)  # the kind of intent is the framework's word
    assert shown.about == CLOSED.hidden("hold_txn")
    assert shown.fields[0]["name"] == "args." + CLOSED.hidden("amount")
    assert shown.fields[0]["recorded"] == CLOSED.hidden("991") != shown.fields[0]["replayed"]
    assert shown.fields[0]["recorded"].startswith("‹number · ")
    assert shown.recorded is not None
    assert shown.recorded["payload"] == {"args_json": CLOSED.hidden('{"amount":991,"txn":"t-1"}')}
    assert shown.recorded["identity"]["entity_key"] == CLOSED.hidden(b"card-4242")
    assert shown.recorded["identity"]["seq"] == "0"


def test_what_a_verdict_learns_later_stays_inside() -> None:
    told = {
        "verdict": "reproduced", "novelty": SECRET, SECRET: 1, "counts": {"equal": 3, SECRET: 2},
        "served": {"mode": SECRET, "cache_hits": SECRET, "tools": {SECRET: 1}, "answers": SECRET},
        "differences": [{"ordinal": 1, "novelty": SECRET, "field": SECRET, "surface": SECRET, "recorded": SECRET},
                        SECRET],
        "normalised": [{"field": SECRET, "recorded": SECRET, "extra": SECRET}, SECRET],
        "reason": {"code": SECRET, "details": {SECRET: SECRET, "step_index": SECRET}},
        "attempt": {"kind": SECRET, "status": SECRET, "seq": SECRET, "entity_key": {"hex": SECRET}},
        "surfaces": [{"name": SECRET, "state": SECRET, "compared": SECRET, "detail": SECRET}],
        "driver": {"name": SECRET, "version": SECRET}, "confinement": {"tier": SECRET, "measures": [SECRET]},
        "digests": {"files": [{"role": SECRET, "name": SECRET}]},
        "plan": {"memory": SECRET, "answers": {"mode": SECRET}},
        "replayed": {"memory": {SECRET: SECRET}}, "reads": [{"read": SECRET}], "notes": [SECRET], "headline": SECRET,
    }  # fmt: skip
    assert SECRET not in json.dumps(redacted.verdict(CLOSED, told), ensure_ascii=False)


def test_memory_has_no_known_names() -> None:
    row = SimpleNamespace(
        ordinal=0, state="changed", surface="memory after", event_type="MEMORY", label="", about="", step=None,
        cause=None, recorded={"type": "MEMORY", "payload": {"seq": "4242", "label": "start"}}, replayed=None,
        fields=[{"name": "seq", "recorded": "4242", "replayed": None, "state": "changed"}],
    )  # fmt: skip
    shown = json.dumps([redacted.row(CLOSED, row, bodies=True).recorded, redacted.row(CLOSED, row, bodies=True).fields])
    assert '"seq"' not in shown
    assert "4242" not in shown
    assert "start" not in shown


@pytest.mark.parametrize("reveal", list(Reveal))
def test_each_group_opens_itself_alone(reports: dict[str, Report], reveal: Reveal) -> None:
    marks = {
        Reveal.KEY: ["636172642d34323432"],
        Reveal.NAMES: ["hold_txn", "risk-large-1", "amount"],
        Reveal.PAYLOADS: ["991000", "velocity"],
        Reveal.MEMORY: [],
        Reveal.TEXTS: ["snapshot.pb", "First divergence"],
    }
    report = reports["u01_changed_tool_args"]
    redactor = Redactor(KEY, frozenset({reveal}))
    told = json.loads(json.dumps(report.verdict.as_json()))
    told["headline"] = "First divergence"  # the real one quotes names and payloads, as its group says that it may
    whole = json.dumps(
        [
            redacted.verdict(redactor, told),
            *(redacted.row(redactor, stored(row), bodies=True).recorded for row in report.rows),
        ]
    )
    for group, words in marks.items():
        for word in words:
            if (group, reveal, word) == (Reveal.NAMES, Reveal.PAYLOADS, "amount"):
                continue  # a JSON value that is open holds its own names
            assert (word in whole) == (group is reveal), (group, word)


def test_equal_values_have_equal_digests_and_only_under_one_key() -> None:
    assert CLOSED.digest(b"x") == Redactor(KEY, EVERYTHING).digest(b"x") != Redactor(OTHER).digest(b"x")
    assert CLOSED.entity_key(b"card-1") == CLOSED.hidden(b"card-1")
    assert CLOSED.hidden(b"card-1").rpartition(" ")[2] == CLOSED.hidden("card-1").rpartition(" ")[2]
    assert hashlib.sha256(b"card-1").hexdigest()[:10] not in CLOSED.hidden(b"card-1")
    assert KEY.hex() not in repr(CLOSED)
    assert "kkkk" not in repr(CLOSED)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_a_hidden_value_is_its_shape_and_ten_characters(value: object) -> None:
    told = CLOSED.hidden(value)
    assert told == f"‹{shape(value)} · {told[-11:-1]}›"
    assert CLOSED.json(value) == (None if value is None else told)


def test_shapes() -> None:
    found = [shape(v) for v in ('{"a":1}', "[1,2]", "49", "4.9e1", '"abc"', "", "x", "{broken", "-", b"ab", 1, True)]
    assert found == [
        "object, 1 member", "list, 2 items", "number", "number", "text, 3 characters", "text, 0 characters",
        "text, 1 character", "text, 7 characters", "text, 1 character", "2 bytes", "number", "yes or no",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fits", "misses"),
    [
        ("$.card.number", [".card.number"], [".card", ".card.number.x", ".x.card.number"]),
        ("card.number", [".card.number"], [".number"]),
        ("$.items[*].name", [".items[0].name", ".items[12].name"], [".items.name", ".items[0]"]),
        ("$.items[1]", [".items[1]"], [".items[0]", ".items[11]"]),
        ("$..email", [".email", ".a.b[3].email"], [".emails", ".email.x"]),
        ("$.*.id", [".a.id"], [".a.b.id", ".id"]),
    ],
)
def test_paths(path: str, fits: list[str], misses: list[str]) -> None:
    pattern = path_pattern(path)
    assert all(pattern.fullmatch(place) for place in fits)
    assert not any(pattern.fullmatch(place) for place in misses)


def test_rules_hold_for_what_is_open() -> None:
    rules = Rules(("customer.*", "ssn"), ("$.card.number", "$..email"), (r"\d{16}",))
    redactor = Redactor(KEY, EVERYTHING, rules)
    assert redactor.text(SECRET, name="attributes.customer.name") == redactor.hidden(SECRET)
    assert redactor.text("fine", name="attributes.order") == "fine"
    assert redactor.text("pay 4000123412341234 now") == f"pay {redactor.hidden('4000123412341234')} now"
    told = redactor.text('{"card":{"number":"1","kind":"x"},"to":[{"email":"a@b"}],"ssn":5}', name="args_json")
    assert told is not None
    assert json.loads(told) == {
        "card": {"number": redactor.hidden("1"), "kind": "x"},
        "to": [{"email": redactor.hidden("a@b")}],
        "ssn": redactor.hidden(5),
    }
    assert redactor.text('"a@b"', name="args.email") == redactor.hidden('"a@b"')
    assert redactor.text('{"number":"1"}', name="args.card") == json.dumps(
        {"number": redactor.hidden("1")}, ensure_ascii=False, separators=(",", ":")
    )
    assert redactor.entity_key(b"4000123412341234") == redactor.hidden(b"4000123412341234")
    assert redactor.json({"n": 4000123412341234, "4000123412341234": 1}) == {
        "n": redactor.hidden(4000123412341234), redactor.hidden("4000123412341234"): 1
    }  # fmt: skip


# complaint 24
def test_an_errors_outline_quotes_nothing() -> None:
    report = f"""Hindcast 0.1.0, Python 3.11.4, Linux x86_64
run run_x, attempt 1, build {SECRET}

Traceback (most recent call last):
  File "/srv/hindcast/app/jobs/tasks.py", line 63, in __call__
    await self._carry_out("{SECRET}")
  File "/home/{SECRET}/agent.py", line 1, in {SECRET}
    raise ValueError("{SECRET}")
ValueError: {SECRET}
{SECRET}Error: {SECRET}
sqlalchemy.exc.OperationalError: (x) {SECRET}
"""
    told = outline(report)
    assert SECRET not in told
    assert told.splitlines() == [
        "Hindcast 0.1.0, Python 3.11.4, Linux x86_64",
        "app/jobs/tasks.py:63 in __call__",
        "ValueError (text, 11 characters)",
        "sqlalchemy.exc.OperationalError (text, 15 characters)",
    ]
    assert outline(f"build {SECRET} cannot be run") == "(text, 31 characters)"
