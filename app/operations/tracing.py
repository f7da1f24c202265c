"""Traces from the console through the queue to the worker, by OpenTelemetry's own environment variables.

Off, and nothing of it loaded, unless `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
`OTEL_TRACES_EXPORTER` says otherwise. No span carries a query, a key or anything of the evidence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from sqlalchemy.ext.asyncio import AsyncEngine

_PARENT: Final = "traceparent"
# The door's address holds a token, a share's its secret; the others would only be noise.
_UNTOLD: Final = "/enter,/s/,/login,/callback,/healthz,/readyz,/static/,/changes"
_WITH_QUERY: Final = ("http.url", "http.target", "url.full", "url.query")


class _State:
    on = False


def wanted(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for traces."""
    env = os.environ if environment is None else environment
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = env.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    return bool(env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def start(process: str) -> bool:
    """Begin to trace where the environment asks for it; `process` names it (web, worker, collector).

    Raises `ValueError` for an exporter that is not built in.
    """
    if _State.on or not wanted():
        return _State.on
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    made: SpanExporter
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        made = OTLPSpanExporter()
    elif exporter == "console":
        made = ConsoleSpanExporter()
    else:
        raise ValueError(f"OTEL_TRACES_EXPORTER is {exporter!r}; expected otlp, console or none")
    name = os.environ.get("OTEL_SERVICE_NAME") or f"hindcast-{process}"
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(made))
    trace.set_tracer_provider(provider)
    _State.on = True
    return True


def stop() -> None:
    """Send what was not sent yet."""
    if _State.on:
        from opentelemetry import trace

        provider: Any = trace.get_tracer_provider()
        provider.shutdown()
        _State.on = False


def instrument_app(app: Any) -> None:
    """Give every request of the console a span."""
    if not _State.on:
        return
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    FastAPIInstrumentor.instrument_app(
        app, excluded_urls=_UNTOLD, server_request_hook=_without_query, exclude_spans=["send", "receive"]
    )


def instrument_engine(engine: AsyncEngine) -> None:
    """Give every statement a span; values are never in it."""
    if not _State.on:
        return
    from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor

    SQLAlchemyInstrumentor().instrument(engine=engine.sync_engine)


def parent() -> str | None:
    """The span that is open here, as W3C `traceparent`, for whoever goes on with the work; None while off."""
    if not _State.on:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(_PARENT)


@contextmanager
def span(name: str, *, of: str | None = None, **attributes: str | int) -> Iterator[None]:
    """Open a span for the length of the block, below the one that is open or below `of`; nothing while off."""
    if not _State.on:
        yield
        return
    from opentelemetry import trace

    context = None if of is None else _context(of)
    tracer = trace.get_tracer("hindcast")
    told = {f"hindcast.{key}": value for key, value in attributes.items()}
    with tracer.start_as_current_span(name, context=context, attributes=told):
        yield


def past_span(name: str, begun_ms: int, ended_ms: int, *, of: str | None, **attributes: str | int) -> None:
    """Tell of something that is over: times are epoch milliseconds."""
    if not _State.on or of is None:
        return
    from opentelemetry import trace

    told = {f"hindcast.{key}": value for key, value in attributes.items()}
    tracer = trace.get_tracer("hindcast")
    made = tracer.start_span(name, context=_context(of), attributes=told, start_time=begun_ms * 1_000_000)
    made.end(max(begun_ms, ended_ms) * 1_000_000)


def _context(of: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({_PARENT: of})


def _without_query(made: Span, scope: dict[str, Any]) -> None:
    if made is not None and made.is_recording():
        for name in _WITH_QUERY:
            made.set_attribute(name, "" if name == "url.query" else scope.get("path", ""))
