"""Made-up values for the patterns page: every component in every state, the rare ones included."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from app.incidents.dissect import hex_rows
from app.incidents.live import PartitionProgress, TopicProgress
from app.web import patterns_flink, patterns_why
from app.web.markdown import markdown
from app.web.problems import FileTrouble
from app.web.values import show, show_pair
from app.web.views import STATUSES, Pair, pairs
from app.web.views_case import CASE_STATUSES, SEVERITIES
from app.web.views_live import BAD, DONE, OPEN, WAITING, Step
from app.web.views_timeline import timeline

_CLOCK = 1_795_918_447_512


@dataclass(frozen=True)
class _Row:
    ordinal: int
    state: str
    event_type: str
    label: str = ""
    about: str = ""
    step: int | None = None
    cause: int | None = None
    recorded: dict[str, Any] | None = None
    replayed: dict[str, Any] | None = None
    fields: list[dict[str, Any]] = field(default_factory=list)
    surface: str = "trace events"


def _event(kind: str, label: str, about: str, step: int) -> dict[str, Any]:
    return {"type": kind, "label": label, "about": about, "step": step}


def _changed(name: str, recorded: str | None, replayed: str | None) -> dict[str, Any]:
    return {"name": name, "recorded": recorded, "replayed": replayed, "state": "changed"}


_REASON = "The manager approved it on the phone, and the parcel is on its way back to the warehouse. " * 3

_ROWS = [
    _Row(0, "equal", "ACTIVATION_START", "start", step=0),
    *(_Row(n, "equal", "TOOL_CALL", "order_lookup", step=0) for n in range(1, 6)),
    _Row(6, "normalised", "LLM_CALL", "risk-large-1", step=0),
    _Row(
        7,
        "changed",
        "INTENT_EMITTED",
        "TOOL",
        "issue_refund",
        2,
        recorded=_event("INTENT_EMITTED", "TOOL", "issue_refund", 2),
        replayed=_event("INTENT_EMITTED", "TOOL", "issue_refund", 2),
        fields=[
            _changed("args.amount", "4900", "49"),
            _changed("args.reason", _REASON, _REASON.replace("phone", "chat", 1)),
            _changed("args.lines", '{"order":"1188","items":[1,2]}', '{"items":[1,3],"order":"1188"}'),
            _changed("args.note", None, "x"),
        ],
    ),
    _Row(8, "recorded-only", "TOOL_CALL", "order_close", "", 2, recorded=_event("TOOL_CALL", "order_close", "", 2)),
    _Row(
        9,
        "replayed-only",
        "INTENT_EMITTED",
        "APPROVAL",
        "approval",
        3,
        replayed=_event("INTENT_EMITTED", "APPROVAL", "approval", 3),
    ),
    _Row(
        10,
        "changed",
        "ACTIVATION_END",
        "start",
        "completed",
        3,
        cause=9,
        recorded=_event("ACTIVATION_END", "start", "completed", 3),
        replayed=_event("ACTIVATION_END", "start", "completed", 4),
        fields=[_changed("step_index", "3", "4")],
    ),
]

_NORMALISED = {
    6: [
        {"field": "beam_agents.cache_hit", "recorded": "false", "replayed": "true"},
        {"field": "beam_agents.billed", "recorded": "true", "replayed": "false"},
    ]
}


_PARTITION = PartitionProgress(
    partition=0, low=80_000, high=81_240, start=80_400, end=81_240, scanned=839, matched=1, undecodable=0, tombstones=0,
    absent=1, removed=0, complete=False, stop="enough was found",
)  # fmt: skip
_TOPIC = TopicProgress(
    topic="refunds.events", looking_for="the event of event time 1795918447512", records="envelope", outcome="",
    order="the key's own partition first", scanned=41_208, matched=0, undecodable=2, read=41_208, total=81_240,
    seconds=None, problem=None, partitions=(),
)  # fmt: skip
_ENDED = replace(_TOPIC, outcome="found", scanned=839, matched=1, seconds=0.084, partitions=(_PARTITION,))
_FAILED = replace(_TOPIC, outcome="incomplete", seconds=12.0, problem="the broker stopped answering")

_STEPS = (
    Step("Export request", DONE, 'published to refunds.events[3]@81240, reason "refund audit"', "operator, 02:31:18Z"),
    Step("Snapshot", WAITING, "The pipeline answers when it comes to the request."),
    Step("Traces of seq 7", OPEN, "Not searched for yet."),
    Step("Triggering envelope", BAD, "not found: every record in range was read", lines=("What a note says.",)),
)


def samples() -> dict[str, Any]:
    """The context of `patterns.html`."""
    bodies = {row.ordinal: row for row in _ROWS if row.recorded or row.replayed}
    again = [replace(row, ordinal=row.ordinal + 100) for row in _ROWS]
    return {
        "statuses": STATUSES,
        "case_statuses": CASE_STATUSES,
        "severities": SEVERITIES,
        "note": markdown("# A head\n\nIt says **48,00**:\n\n- a comma\n- `4800.0`\n\n> a quote\n\n|a|b|\n|-|-|\n|1|2|"),
        "hex": "\n".join(hex_rows(bytes(range(48)), 0, 3)),
        "items": timeline(_ROWS, bodies=bodies, normalised=_NORMALISED, first_divergence=7, told=patterns_why.told()),
        "unified_items": timeline(
            again,
            bodies={row.ordinal: row for row in again if row.ordinal - 100 in bodies},
            normalised={},
            first_divergence=107,
        ),
        "unfolded": [],
        **patterns_why.samples(),
        **patterns_flink.samples(),
        "clock": _CLOCK,
        "key": b"customer-42",
        "binary_key": bytes.fromhex("00ff806b"),
        "digest": "9f2c" * 16,
        "shown": [
            ("a number", *show_pair("4900", "49")),
            ("not recorded", *show_pair(None, "49")),
            ("empty", show(""), show("")),
            ("JSON", *show_pair('{"b":[1,2],"a":1.0}', '{"a":1.0,"b":[1,3]}')),
            ("a large value", *show_pair("a" * 40_000 + " old", "a" * 40_000 + " new")),
        ],
        "panel": [
            Pair("status", "completed", "="),
            Pair("trace events", "7 recorded", "≠"),
            Pair("memory after", "not compared: no snapshot with counter 8", "–", wide=True),
            *pairs({"provider_calls": 0, "sha256": "ab" * 32, "network": {"refused": True}}),
        ],
        "steps": _STEPS,
        "topics": (_TOPIC, _ENDED, _FAILED),
        "trouble": FileTrouble(
            "traces.pb", "traces", "frame 3 ends 12 bytes early", "a varint-framed stream", "Dump the stream again."
        ),
        "sample_command": "hindcast replay --bundle hindcast-inc_x.zip \\\n  --agent refunds.agent:AGENT",
    }
