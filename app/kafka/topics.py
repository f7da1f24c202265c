"""Which topic carries which stream, and what the records on it are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Self

from google.protobuf.message import Message
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from app.wire.records import AgentEnvelope, StateSnapshot, ToolIntent, ToolResult, TraceEvent, parse

_HOOK: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Section(BaseModel):
    """One table of the configuration: fixed once read, and no key passes that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Stream(StrEnum):
    """The streams of a pipeline: what goes in, and what it sends out."""

    EVENTS = "events"
    RESULTS = "results"
    APPROVALS = "approvals"
    TRACES = "traces"
    SNAPSHOTS = "snapshots"
    INTENTS = "intents"
    OUTPUTS = "outputs"
    ERRORS = "errors"


FOLLOWED: Final = (Stream.TRACES, Stream.ERRORS, Stream.INTENTS, Stream.OUTPUTS, Stream.SNAPSHOTS)
"""The streams that a pipeline sends out, in the order in which their evidence decays."""


class RecordKind(StrEnum):
    """What one record is."""

    ENVELOPE = "envelope"
    TOOL_RESULT = "tool_result"
    APPROVAL = "approval"
    TRACE = "trace"
    SNAPSHOT = "snapshot"
    INTENT = "intent"
    OUTPUT = "output"


_MESSAGES: Final[dict[RecordKind, type[Message]]] = {
    RecordKind.ENVELOPE: AgentEnvelope,
    RecordKind.TOOL_RESULT: ToolResult,
    RecordKind.APPROVAL: AgentEnvelope.Approval,
    RecordKind.TRACE: TraceEvent,
    RecordKind.SNAPSHOT: StateSnapshot,
    RecordKind.INTENT: ToolIntent,
}
_KINDS: Final[dict[Stream, RecordKind]] = {
    Stream.RESULTS: RecordKind.TOOL_RESULT,
    Stream.APPROVALS: RecordKind.APPROVAL,
    Stream.TRACES: RecordKind.TRACE,
    Stream.SNAPSHOTS: RecordKind.SNAPSHOT,
    Stream.INTENTS: RecordKind.INTENT,
    Stream.OUTPUTS: RecordKind.OUTPUT,
    # A dead letter is an envelope around its error record.
    Stream.ERRORS: RecordKind.ENVELOPE,
}


def decoder(kind: RecordKind) -> Callable[[bytes], Message | bytes]:
    """What turns a record's bytes into its message; outputs stay bytes. It raises `RecordError`."""
    message = _MESSAGES.get(kind)
    if message is None:
        return bytes
    return lambda data: parse(message, data)


def _topic_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value) or value in {".", ".."}:
        raise ValueError(
            f"{value!r} cannot be a topic's name: expected 1 to 249 of letters, digits, dot, underscore and hyphen"
        )
    return value


def _records(value: str) -> str:
    if value in {RecordKind.ENVELOPE, RecordKind.TOOL_RESULT, RecordKind.APPROVAL} or _HOOK.fullmatch(value):
        return value
    raise ValueError(
        f"{value!r} is no kind of record: expected envelope, tool_result, approval, or a decode hook as"
        " module:attribute"
    )


def _event_topics(value: object) -> object:
    """Take one name, or names and tables mixed, for the list of tables that it stands for."""
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    return [{"topic": item} if isinstance(item, str) else item for item in value]


TopicName = Annotated[str, AfterValidator(_topic_name)]


class EventTopic(Section):
    """One topic that feeds the pipeline."""

    topic: TopicName = Field(description="Name of the topic.")
    records: Annotated[str, AfterValidator(_records)] = Field(
        RecordKind.ENVELOPE.value,
        description="What its records are: `envelope`, `tool_result`, `approval`, or a decode hook as"
        " `module:attribute`.",
    )
    exports: bool = Field(
        False, description="Export requests go to this topic; needed where several carry envelopes, and only once."
    )

    @property
    def kind(self) -> RecordKind | None:
        """The kind of its records; None where a hook decodes them."""
        return None if self.hook else RecordKind(self.records)

    @property
    def hook(self) -> str | None:
        """The decode hook, as `module:attribute`; it is agent code and runs confined, never in this process."""
        return self.records if ":" in self.records else None

    @model_validator(mode="after")
    def _exports_are_envelopes(self) -> Self:
        if self.exports and self.kind is not RecordKind.ENVELOPE:
            raise ValueError(f"{self.topic!r} cannot take export requests: they are envelopes, its records are not")
        return self


class Topics(Section):
    """Topic per stream; a stream without one is not looked at."""

    events: Annotated[tuple[EventTopic, ...], BeforeValidator(_event_topics)] = Field(
        (), description='Topics that feed the pipeline: `"events"`, or `[{ topic = "events", records = "envelope" }]`.'
    )
    results: TopicName | None = Field(None, description="Topic of bare tool results.")
    approvals: TopicName | None = Field(None, description="Topic of bare approvals.")
    traces: TopicName | None = Field(None, description="Topic that `traces_to` names.")
    snapshots: TopicName | None = Field(None, description="Topic that `snapshots_to` names.")
    intents: TopicName | None = Field(None, description="Topic that `intents_to` names.")
    outputs: TopicName | None = Field(None, description="Topic of the pipeline's outputs.")
    errors: TopicName | None = Field(None, description="Topic that `errors_to` names.")

    @model_validator(mode="after")
    def _each_topic_once(self) -> Self:
        used: dict[str, str] = {}
        for place, topic in self._all():
            if topic in used:
                raise ValueError(f"{used[topic]} and {place} both name {topic!r}; each stream needs a topic of its own")
            used[topic] = place
        if sum(one.exports for one in self.events) > 1:
            raise ValueError("several of events have `exports = true`; export requests go to one topic")
        return self

    def sources(self) -> tuple[EventTopic, ...]:
        """Every topic on which the record that triggered an activation may be."""
        bare = [(self.results, RecordKind.TOOL_RESULT), (self.approvals, RecordKind.APPROVAL)]
        return self.events + tuple(EventTopic(topic=topic, records=kind.value) for topic, kind in bare if topic)

    def followed(self) -> dict[Stream, str]:
        """The configured topics that the pipeline sends to, by stream."""
        return {stream: topic for stream in FOLLOWED if (topic := getattr(self, stream.value))}

    @property
    def exports_to(self) -> str | None:
        """The topic that takes export requests; None where no topic, or more than one, could be meant."""
        envelopes = [one for one in self.events if one.kind is RecordKind.ENVELOPE]
        chosen = [one for one in envelopes if one.exports] or envelopes
        return chosen[0].topic if len(chosen) == 1 else None

    def setting_of(self, topic: str) -> str:
        """Where the configuration names a topic, for messages."""
        return next((place for place, name in self._all() if name == topic), "topics")

    def kind_of(self, topic: str) -> RecordKind | None:
        """What the records of a configured topic are; None for hooks and for topics that are not ours."""
        for event in self.events:
            if event.topic == topic:
                return event.kind
        return next((kind for stream, kind in _KINDS.items() if getattr(self, stream.value) == topic), None)

    def stream_of(self, topic: str) -> Stream | None:
        """Which stream a configured topic carries."""
        if any(event.topic == topic for event in self.events):
            return Stream.EVENTS
        return next((stream for stream in _KINDS if getattr(self, stream.value) == topic), None)

    def _all(self) -> list[tuple[str, str]]:
        named = [(f"topics.events[{index}]", one.topic) for index, one in enumerate(self.events)]
        return named + [(f"topics.{stream}", topic) for stream in _KINDS if (topic := getattr(self, stream.value))]
