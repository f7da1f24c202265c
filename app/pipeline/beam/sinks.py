"""Where the streams go: sink URIs become Beam transforms over the streams' records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import apache_beam as beam

from app.pipeline.beam.otlp import PostSpans
from app.pipeline.keyed import Stream
from app.runtime import trace as tracing
from app.runtime.config import AgentConfig
from app.runtime.sinks import SinkAddress, parse_sink_uri
from app.wire.records import TraceEvent, serialize

__all__ = ["DefaultSinkResolver", "resolve_sinks"]

_FIELDS: Final = {
    Stream.INTENTS: "intents_to",
    Stream.TRACES: "traces_to",
    Stream.ERRORS: "errors_to",
    Stream.SNAPSHOTS: "snapshots_to",
}
_TRACES_ONLY: Final = ("bigquery", "otlp")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def resolve_sinks(config: AgentConfig) -> dict[Stream, Any]:
    """The sink of each stream that has one; raises ValueError for a sink that cannot take its stream."""
    resolver = config.sink_resolver or DefaultSinkResolver()
    sinks = {}
    for stream, name in _FIELDS.items():
        uri = getattr(config, name)
        if uri is None:
            continue
        if config.sink_resolver is None and stream is not Stream.TRACES:
            scheme = parse_sink_uri(uri, field=name).scheme
            if scheme in _TRACES_ONLY:
                raise ValueError(f"{name}={uri!r}: a {scheme} sink takes trace events only; use kafka or pubsub")
        sinks[stream] = resolver(uri)
    return sinks


class DefaultSinkResolver:
    """Turns a sink URI into a transform that takes the records of a stream."""

    def __call__(self, uri: str) -> Any:
        """Raises ValueError for a malformed URI or a scheme that is not known."""
        address = parse_sink_uri(uri, field="sink")
        return _SINKS[address.scheme](address)


class KafkaSink(beam.PTransform):
    """Writes records under their raw entity key, as deterministic bytes."""

    def __init__(self, address: SinkAddress) -> None:
        super().__init__()
        self.topic = address.path[0]
        self.producer_config = {"bootstrap.servers": ",".join(address.hosts)}

    def expand(self, pcoll: Any) -> Any:
        """Needs Java where the pipeline is started: Beam's Kafka transforms come from its Java side."""
        from apache_beam.io.kafka import WriteToKafka

        return (
            pcoll
            | "Key" >> beam.Map(key_and_value).with_output_types(tuple[bytes, bytes])
            | "Kafka" >> WriteToKafka(producer_config=self.producer_config, topic=self.topic)
        )


class PubSubSink(beam.PTransform):
    """Publishes records as deterministic bytes."""

    def __init__(self, address: SinkAddress) -> None:
        super().__init__()
        self.topic = f"projects/{address.hosts[0]}/topics/{address.path[0]}"

    def expand(self, pcoll: Any) -> Any:
        """Needs the package apache-beam[gcp]."""
        from apache_beam.io.gcp.pubsub import WriteToPubSub

        return (
            pcoll
            | "Bytes" >> beam.Map(serialize).with_output_types(bytes)
            | "PubSub" >> WriteToPubSub(topic=self.topic)
        )


class BigQuerySink(beam.PTransform):
    """Appends trace events as rows, making the table where it is missing."""

    def __init__(self, address: SinkAddress) -> None:
        super().__init__()
        dataset, table = address.path
        self.table = f"{address.hosts[0]}:{dataset}.{table}"

    def expand(self, pcoll: Any) -> Any:
        """Needs the package apache-beam[gcp]."""
        from apache_beam.io.gcp.bigquery import BigQueryDisposition, WriteToBigQuery

        return (
            pcoll
            | "Row" >> beam.Map(trace_row)
            | "BigQuery"
            >> WriteToBigQuery(
                table=self.table,
                schema={"fields": TRACE_SCHEMA},
                create_disposition=BigQueryDisposition.CREATE_IF_NEEDED,
                write_disposition=BigQueryDisposition.WRITE_APPEND,
            )
        )


class OtlpSink(beam.PTransform):
    """Posts trace events as spans to an OpenTelemetry collector."""

    def __init__(self, address: SinkAddress) -> None:
        super().__init__()
        host = address.hosts[0]
        self.url = f"http://{host if ':' in host else f'{host}:4318'}/v1/traces"

    def expand(self, pcoll: Any) -> Any:
        """A bundle's spans go out together."""
        return pcoll | "Post" >> beam.ParDo(PostSpans(self.url))


_SINKS: Final[dict[str, Any]] = {
    "kafka": KafkaSink,
    "pubsub": PubSubSink,
    "bigquery": BigQuerySink,
    "otlp": OtlpSink,
}


def key_and_value(record: Any) -> tuple[bytes, bytes]:
    """A record as a Kafka record's key and value."""
    return record.entity_key, serialize(record)


def _column(name: str, kind: str, mode: str = "REQUIRED") -> dict[str, Any]:
    return {"name": name, "type": kind, "mode": mode}


TRACE_SCHEMA: Final[list[dict[str, Any]]] = [
    _column("trace_id", "STRING"),
    _column("span_id", "STRING"),
    _column("parent_span_id", "STRING"),
    _column("entity_key", "STRING"),
    _column("seq", "INTEGER"),
    _column("step_index", "INTEGER"),
    _column("event_type", "STRING"),
    _column("event_time", "TIMESTAMP"),
    {
        **_column("attributes", "RECORD", "REPEATED"),
        "fields": [_column("key", "STRING"), _column("value", "STRING")],
    },
]


def trace_row(event: TraceEvent) -> dict[str, Any]:
    """A trace event as a BigQuery row: ids and key in hex, the time in UTC, attributes sorted by key."""
    return {
        "trace_id": event.trace_id.hex(),
        "span_id": event.span_id.hex(),
        "parent_span_id": event.parent_span_id.hex(),
        "entity_key": event.entity_key.hex(),
        "seq": event.seq,
        "step_index": event.step_index,
        "event_type": tracing.event_name(event.event_type),
        "event_time": (_EPOCH + timedelta(milliseconds=event.start_ms)).isoformat(timespec="milliseconds"),
        "attributes": [{"key": key, "value": event.attributes[key]} for key in sorted(event.attributes)],
    }
