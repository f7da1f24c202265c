"""Event logs made to order: lines as the releases write them, from few words."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def real(name: str) -> list[bytes]:
    """The lines of one of the four real logs."""
    return (DATA / name).read_bytes().splitlines()


def stamp(ns: int) -> str:
    return f"2026-11-29T19:{ns // 60_000_000_000:02}:{ns // 1_000_000_000 % 60:02}.{ns % 1_000_000_000:09}Z"


def event_id(*words: object) -> str:
    """A random-looking id (version 4) that is the same for the same words."""
    return str(uuid.UUID(bytes=uuid.uuid5(uuid.NAMESPACE_OID, repr(words)).bytes, version=4))


def flat(ns: int, run: str | None, key: str | None, kind: str, attributes: Mapping[str, Any], **more: Any) -> bytes:
    """A line of 0.4."""
    told = {
        "timestamp": stamp(ns),
        "logLevel": "VERBOSE",
        "inputRunId": run,
        "businessKey": key,
        "agentName": "Agent",
        "eventId": event_id(ns, run, kind),
        "eventType": kind,
        **more,
        "eventAttributes": attributes,
    }
    return json.dumps({name: value for name, value in told.items() if value is not None}).encode()


def nested(ns: int, kind: str, attributes: Mapping[str, Any], known: str | None = None, **more: Any) -> bytes:
    """A line of 0.3.1; `known` is the event's id."""
    event = {"eventType": kind, "id": known or event_id(ns, kind), "attributes": attributes, "type": kind}
    told = {"timestamp": stamp(ns), "logLevel": "STANDARD", "eventType": kind, **more, "event": event}
    return json.dumps(told).encode()


def traced_run(run: str, key: str, start: int, text: str, *, ends: bool = True) -> list[bytes]:
    """A small run of 0.4: an action that asks a model and sends an output; without `ends`, the model never answers."""
    given = flat(start, run, key, "_input_event", {"input": {"k": key, "text": text}})
    action = {"executionId": f"{run}-a", "entityType": "action", "entityName": "act"}
    model = {"executionId": f"{run}-m", "parentExecutionId": f"{run}-a", "entityType": "llm", "entityName": "llm"}
    lines = [
        given,
        flat(start + 1, run, key, "_execution_started_event", {}, status="started", **action),
        flat(start + 2, run, key, "_execution_started_event", {}, status="started", **model),
    ]
    if ends:
        sent = {**action, "upstreamEventId": json.loads(given)["eventId"], "upstreamActionName": "act"}
        lines += [
            flat(start + 3, run, key, "_execution_finished_event", {}, status="success", **model),
            flat(start + 4, run, key, "_execution_finished_event", {}, status="success", **action),
            flat(start + 5, run, key, "_output_event", {"output": text}, **sent),
        ]
    return lines
