"""Trace events as OpenTelemetry spans, posted over HTTP in OTLP's JSON form.

Each event becomes one span under the event's own ids. The first and the last event of an activation share a span
id, so a collector may show them as one span or as two.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Final

import apache_beam as beam

from app.runtime import trace as tracing
from app.wire.records import EventType, TraceEvent

SERVICE: Final = "beam-agents"
_SPANS_A_REQUEST: Final = 500
_TIMEOUT_S: Final = 30.0
_INTERNAL: Final = 1
_ERROR: Final = 2


class CollectorRefused(Exception):
    """The collector did not take the spans; the bundle fails and is tried again."""


class PostSpans(beam.DoFn):
    """Posts trace events to a collector's URL, many to a request."""

    def __init__(self, url: str) -> None:
        self._url = url

    def start_bundle(self) -> None:
        """Begin to gather."""
        self._spans: list[dict[str, Any]] = []

    def process(self, event: TraceEvent) -> None:
        """Take one event; raises CollectorRefused."""
        self._spans.append(span(event))
        if len(self._spans) >= _SPANS_A_REQUEST:
            self._post()

    def finish_bundle(self) -> None:
        """Post what is left; raises CollectorRefused."""
        if self._spans:
            self._post()

    def _post(self) -> None:
        spans, self._spans = self._spans, []
        request = urllib.request.Request(  # noqa: S310 - the scheme is ours
            self._url, data=json.dumps(body(spans)).encode(), headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
                pass
        except urllib.error.URLError as error:
            raise CollectorRefused(f"{self._url} did not take {len(spans)} spans: {error}") from error


def body(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """An export request."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", SERVICE)]},
                "scopeSpans": [{"scope": {"name": "hindcast"}, "spans": spans}],
            }
        ]
    }


def span(event: TraceEvent) -> dict[str, Any]:
    """A trace event as a span; its key (in hex), seq and step become attributes beside its own."""
    attributes = {
        **dict(sorted(event.attributes.items())),
        "beam_agents.entity_key": event.entity_key.hex(),
        "beam_agents.seq": str(event.seq),
        "beam_agents.step_index": str(event.step_index),
    }
    made: dict[str, Any] = {
        "traceId": event.trace_id.hex(),
        "spanId": event.span_id.hex(),
        "name": tracing.event_name(event.event_type),
        "kind": _INTERNAL,
        "startTimeUnixNano": str(event.start_ms * 1_000_000),
        "endTimeUnixNano": str(event.end_ms * 1_000_000),
        "attributes": [_attribute(key, value) for key, value in attributes.items()],
    }
    if event.parent_span_id:
        made["parentSpanId"] = event.parent_span_id.hex()
    if event.event_type == EventType.ERROR:
        made["status"] = {"code": _ERROR, "message": event.attributes[tracing.REASON]}
    return made


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}
