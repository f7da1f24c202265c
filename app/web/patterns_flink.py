"""A made-up run of an event log for the patterns page: every end of an execution, every mark, every notice."""

from __future__ import annotations

from typing import Any

from app.flink.model import Ended, Entry, Execution, How, Run, RunStatus, Twice
from app.flink.records import INPUT, OUTPUT, Form, Record, Stream, Truncation
from app.web.views_recorded import RUNS, recorded_view

_BEGAN = 1_795_918_447_512_000_000


def _record(at: int, kind: str, *cut: Truncation) -> Record:
    told = {"input": {"customer": "chen", "text": "refund order-2"}}
    return Record(Form.NESTED, _BEGAN + at, "STANDARD", kind, f"event-{at}", told, b"", truncations=cut)


def _execution(name: str, status: Ended, parent: str | None, kind: str = "action", **more: Any) -> Execution:
    return Execution(name, kind, name, status, parent, started_ns=_BEGAN, **more)


_RUN = Run(
    ref="made-up",
    form=Form.NESTED,
    stream=Stream(),
    key="chen",
    agent=None,
    status=RunStatus.UNFINISHED,
    entries=(
        Entry(_record(0, INPUT), How.INPUT),
        Entry(_record(1, OUTPUT, Truncation("output", 40, "characters")), How.ALONE),
        Entry(_record(2, OUTPUT), How.CONTENT, Twice.AGAIN),
        Entry(_record(3, OUTPUT), How.KEY, Twice.NEW_LINEAGE),
        Entry(_record(4, OUTPUT), How.KEY, Twice.CONFLICT),
    ),
    executions=(
        _execution("on_input", Ended.SUCCESS, None, ended_ns=_BEGAN + 31_000_000),
        _execution("ask_model", Ended.REUSED, "on_input", "llm"),
        _execution("call_tools", Ended.UNFINISHED, "ask_model"),
        _execution("look_up_order", Ended.ANSWERED, "call_tools", "tool", concluded=True),
        _execution(
            "issue_refund", Ended.FAILED, "call_tools", "tool", ended_ns=_BEGAN + 90_000_000,
            problem_category="tool_call_failed", error="payment gateway said no", error_type="RuntimeError",
        ),
        _execution("note_it", Ended.NOT_RECORDED, None),
    ),
    input_missing=True,
)  # fmt: skip


def samples() -> dict[str, Any]:
    """What the template of the patterns page draws of a recorded run."""
    return {"recorded": recorded_view(_RUN), "run_statuses": list(RUNS.values())}
