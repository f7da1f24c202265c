"""A run as neutral events: the form in which timelines and comparisons know it, whatever framework wrote it.

Types lose their underscores (`_chat_request_event` is CHAT_REQUEST), and ids go into the identity: they are random,
and two runs are held against each other by type and place, never by id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from app.flink.model import Entry, Run, Twice
from app.flink.records import CHAT_REQUEST, CHAT_RESPONSE, RUN_BEGIN, TOOL_REQUEST, TOOL_RESPONSE, Record
from app.replay.events import Event

_IDS: Final = frozenset({"request_id"})

# What passes where names and values are hidden: the framework's own words.
TYPES: Final = frozenset({
    "INPUT", "OUTPUT", "CHAT_REQUEST", "CHAT_RESPONSE", "TOOL_REQUEST", "TOOL_RESPONSE", "AGENT_RUN_BEGIN",
    "CONTEXT_RETRIEVAL_REQUEST", "CONTEXT_RETRIEVAL_RESPONSE", "EXECUTION_STARTED", "EXECUTION_FINISHED",
    "EXECUTION_FAILED", "EXECUTION_REUSED", "SHORT_TERM_READ", "SHORT_TERM_WRITE", "SENSORY_READ", "SENSORY_WRITE",
    "LONG_TERM_GET", "LONG_TERM_SEARCH", "LONG_TERM_UPDATE",
})  # fmt: skip
STATUSES: Final = frozenset({"started", "success", "failed", "reused"})
CATEGORIES: Final = frozenset({
    "action_execution_failed", "model_call_failed", "model_output_parse_error", "tool_call_failed",
})  # fmt: skip
ENTITIES: Final = frozenset({"action", "llm", "parser", "tool"})
FIELDS: Final = frozenset({
    "error", "errorMessage", "errorType", "external_ids", "input", "key", "messages", "model", "output",
    "output_schema", "prompt_args", "response", "responses", "retry_count", "success", "tool_calls",
    "total_retry_wait_sec", "value",
})  # fmt: skip
IDENTITY: Final = frozenset({
    "businessKey", "eventId", "executionId", "inputRunId", "jobId", "parentExecutionId", "request_id",
    "upstreamEventId",
})  # fmt: skip


def neutral_events(run: Run) -> tuple[Event, ...]:
    """All events of a run, in its order, each once."""
    return tuple(neutral(entry, run) for entry in run.entries if entry.twice in (Twice.NO, Twice.CONFLICT))


def neutral(entry: Entry, run: Run) -> Event:
    """One record of a run as a neutral event."""
    record = entry.record
    return Event(
        type=type_name(record.type),
        label=label_of(record),
        about=_about(record),
        span_id=record.execution_id or "",
        time_ms=record.time_ms,
        attributes=_attributes(record),
        identity=_identity(record, run),
        payload={name: text_of(value) for name, value in record.attributes.items() if name not in _IDS},
    )


def type_name(kind: str) -> str:
    """`_chat_request_event` as CHAT_REQUEST; an event of the agent's own keeps its name."""
    if kind.startswith("_"):
        return kind.strip("_").removesuffix("_event").upper() or kind
    return kind


def label_of(record: Record) -> str:
    """What kind of event it is within its type: the model, the tools, the execution."""
    if record.life_cycle:
        return " ".join(part for part in (record.entity_type, record.entity_name) if part)
    if record.type == CHAT_REQUEST:
        return text_of(record.attributes.get("model", ""))
    if record.type == TOOL_REQUEST:
        return ", ".join(tool_names(record))
    return ""


def tool_names(record: Record) -> list[str]:
    """The tools that a request calls, in its order."""
    calls = record.attributes.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return [text_of(function.get("name", "")) for function in functions if isinstance(function, Mapping)]


def _about(record: Record) -> str:
    if record.life_cycle:
        return " ".join(part for part in (record.status, record.problem_category) if part)
    if record.type in (CHAT_RESPONSE, TOOL_RESPONSE, RUN_BEGIN):
        return ""
    return record.upstream_action or ""


def _attributes(record: Record) -> dict[str, str]:
    told = {
        "status": record.status,
        "problemCategory": record.problem_category,
        "entityType": record.entity_type,
        "entityName": record.entity_name,
        "upstreamActionName": record.upstream_action,
    }
    metadata = {
        f"entityMetadata.{name}": text_of(value)
        for name, value in record.entity_metadata.items()
        if not name.endswith("Id")
    }
    return {name: value for name, value in told.items() if value is not None} | metadata


def _identity(record: Record, run: Run) -> dict[str, str]:
    told = {
        "eventId": record.event_id,
        "inputRunId": record.run_id,
        "executionId": record.execution_id,
        "parentExecutionId": record.parent_execution_id,
        "upstreamEventId": record.upstream_event_id,
        "request_id": record.request_id,
        "businessKey": run.key,
        "jobId": record.stream.job or None,
        "timestamp_ns": str(record.time_ns),
    }
    ids = {
        f"entityMetadata.{name}": text_of(value)
        for name, value in record.entity_metadata.items()
        if name.endswith("Id")
    }
    return {name: value for name, value in told.items() if value is not None} | ids


def text_of(value: Any) -> str:
    """A payload's member as text: texts as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
