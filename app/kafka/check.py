"""Is a pipeline connected as it should be? Per topic: what was found, what is missing, and how to mend it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.kafka.client import TIMEOUT_S, Reader
from app.kafka.config import Pipeline
from app.kafka.errors import BrokerError
from app.kafka.partition import fitting, partition_of
from app.kafka.sample import Sample, take_sample
from app.kafka.told import TopicSettings, topic_settings
from app.kafka.topics import RecordKind, Stream

__all__ = ["CheckReport", "Finding", "Level", "check", "render"]

_HOUR_MS: Final = 3_600_000
_SKEW_MS: Final = 60_000
# Memory may hold 1 MiB, the replay cache 100 KiB, and there are the continuation and pending intents.
_SNAPSHOT_BYTES: Final = 2 * 1024 * 1024
_WANTED: Final = {
    Stream.EVENTS: (True, "without it nothing can be exported, and no trigger found"),
    Stream.TRACES: (True, "without them there is nothing to compare a replay with"),
    Stream.SNAPSHOTS: (True, "without them no export is answered"),
    Stream.INTENTS: (False, "what was intended is known from traces alone, without arguments"),
    Stream.OUTPUTS: (False, "outputs cannot be shown"),
    Stream.ERRORS: (False, "the reasons of failures are not known"),
}
_MESSAGES: Final = {
    RecordKind.ENVELOPE: "an AgentEnvelope",
    RecordKind.TOOL_RESULT: "a ToolResult",
    RecordKind.APPROVAL: "an Approval",
    RecordKind.TRACE: "a TraceEvent",
    RecordKind.SNAPSHOT: "a StateSnapshot",
    RecordKind.INTENT: "a ToolIntent",
}


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: the setting or topic, what was found, and how to mend it where that is needed."""

    level: Level
    subject: str
    found: str
    mend: str = ""


@dataclass(frozen=True)
class CheckReport:
    """Everything that was found about one pipeline."""

    pipeline: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether Hindcast can work with the pipeline; warnings do not stand in the way."""
        return all(finding.level is not Level.PROBLEM for finding in self.findings)


def check(
    pipeline: Pipeline,
    *,
    timeout_s: float = TIMEOUT_S,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> CheckReport:
    """Connect, and look at each topic of a pipeline; reads only, publishes nothing, raises nothing of the broker's."""
    return CheckReport(pipeline.name, tuple(_Check(pipeline, timeout_s, now_ms()).findings()))


def render(reports: Iterable[CheckReport]) -> str:
    """The findings as text: one line each, and the remedy below."""
    lines = []
    for report in reports:
        lines.append(f"pipeline {report.pipeline}")
        for finding in report.findings:
            lines.append(f"  {finding.level:<8} {finding.subject}: {finding.found}")
            lines += [f"           → {finding.mend}"] * bool(finding.mend)
    return "\n".join(lines) + "\n" if lines else "no pipeline is configured\n"


class _Check:
    """The check of one pipeline."""

    def __init__(self, pipeline: Pipeline, timeout_s: float, now_ms: int) -> None:
        self._pipeline, self._timeout_s, self._now_ms = pipeline, timeout_s, now_ms

    def findings(self) -> Iterator[Finding]:
        try:
            with Reader(self._pipeline, timeout_s=self._timeout_s) as reader:
                brokers = ", ".join(reader.brokers().values())
                yield Finding(Level.OK, "brokers", f"connected; the cluster has {brokers}")
                yield from self._streams()
                yield from self._exports()
                yield from self._topics(reader)
                yield from self._group()
        except BrokerError as error:
            yield Finding(Level.PROBLEM, "brokers", error.problem, error.remedy)

    def _streams(self) -> Iterator[Finding]:
        """See that each stream has a topic."""
        topics = self._pipeline.topics
        for stream, (needed, why) in _WANTED.items():
            if not getattr(topics, stream.value):
                level = Level.PROBLEM if needed else Level.WARNING
                yield Finding(level, f"topics.{stream}", f"not configured: {why}", f"set `topics.{stream}`")

    def _exports(self) -> Iterator[Finding]:
        events = self._pipeline.topics.events
        if events and self._pipeline.topics.exports_to is None:
            several = sum(one.kind is RecordKind.ENVELOPE for one in events) > 1
            found = "several topics carry envelopes" if several else "no topic carries envelopes"
            mend = "set `exports = true` for one of them" if several else 'name a topic with `records = "envelope"`'
            yield Finding(Level.PROBLEM, "topics.events", f"{found}, so no export can be asked for", mend)

    def _topics(self, reader: Reader) -> Iterator[Finding]:
        topics = self._pipeline.topics
        names = [one.topic for one in topics.sources()] + list(topics.followed().values())
        settings = topic_settings(self._pipeline, names, self._timeout_s)
        if settings is None and names:
            yield Finding(Level.WARNING, "topics", "the broker does not tell how its topics are set up")
        for name in names:
            subject = f"{topics.setting_of(name)} ({name})"
            try:
                sample = take_sample(reader, name, topics.kind_of(name), topics.stream_of(name), self._timeout_s)
            except BrokerError as error:
                yield Finding(Level.PROBLEM, subject, error.problem, error.remedy)
                continue
            yield self._contents(subject, name, sample)
            yield from self._clock(subject, sample)
            if settings is not None and name in settings:
                yield from self._settings(subject, name, settings[name])
            if topics.stream_of(name) is Stream.EVENTS and topics.kind_of(name) is RecordKind.ENVELOPE:
                yield from self._keys(subject, sample)
            if name == topics.exports_to:
                yield from self._partitioner(sample)

    def _contents(self, subject: str, name: str, sample: Sample) -> Finding:
        partitions = f"{sample.partitions} partition{'s' * (sample.partitions != 1)}"
        if not sample.looked_at:
            held = "no record" if sample.held == 0 else f"{sample.held} offsets, but no record at their end"
            return Finding(Level.OK, subject, f"{partitions}, {held}")
        newest = "" if sample.newest_ms is None else f", the newest of {_ago(self._now_ms - sample.newest_ms)}"
        found = f"{partitions}, about {sample.held:,} records{newest}"
        wanted = _MESSAGES.get(self._pipeline.topics.kind_of(name) or RecordKind.OUTPUT)
        if wanted is None or not sample.wrong:
            return Finding(Level.OK, subject, found)
        told = f"{found}; {sample.wrong} of {sample.looked_at} looked at are not {wanted}"
        if sample.wrong < sample.looked_at:
            return Finding(
                Level.WARNING, subject, f"{told}: {sample.error}", "they are kept, and reported, as they are"
            )
        setting = self._pipeline.topics.setting_of(name)
        return Finding(
            Level.PROBLEM, subject, f"{told}: {sample.error}", f"correct `{setting}`, or what its records are"
        )

    def _clock(self, subject: str, sample: Sample) -> Iterator[Finding]:
        if sample.newest_ms is not None and sample.newest_ms - self._now_ms > _SKEW_MS:
            ahead = _span(sample.newest_ms - self._now_ms)
            found = f"its newest record is stamped {ahead} ahead of this machine's clock"
            yield Finding(
                Level.WARNING, subject, found, "set the clocks of producers and of this machine by one source"
            )

    def _settings(self, subject: str, name: str, settings: TopicSettings) -> Iterator[Finding]:
        stream = self._pipeline.topics.stream_of(name)
        if settings.compacted:
            found = "cleanup.policy is compact: older records of a key vanish, and evidence with them"
            yield Finding(Level.WARNING, subject, found, "set cleanup.policy=delete")
        if settings.retention_ms is not None and 0 <= settings.retention_ms < _HOUR_MS:
            found = f"records are kept for {_span(settings.retention_ms)} only"
            yield Finding(Level.WARNING, subject, found, "raise retention.ms to a day or more")
        if stream is Stream.SNAPSHOTS and settings.max_bytes is not None and settings.max_bytes < _SNAPSHOT_BYTES:
            found = f"takes records up to {settings.max_bytes:,} bytes; a snapshot of a full memory and cache is larger"
            yield Finding(Level.WARNING, subject, found, f"raise max.message.bytes to {_SNAPSHOT_BYTES} or more")
        if settings.may is not None and "READ" not in settings.may:
            yield Finding(Level.PROBLEM, subject, "Hindcast's user may not read it", "grant Read on the topic")
        if name == self._pipeline.topics.exports_to and settings.may is not None and "WRITE" not in settings.may:
            found = "Hindcast's user may not write to it, so no export can be asked for"
            yield Finding(Level.PROBLEM, subject, found, "grant Write on the topic")

    def _keys(self, subject: str, sample: Sample) -> Iterator[Finding]:
        """Export requests are keyed by the entity key; events that are not may overtake them, or be overtaken."""
        if sample.other_keys:
            found = f"{sample.other_keys} of {sample.looked_at} records looked at are not keyed by their entity key"
            yield Finding(Level.WARNING, subject, found, "an export may then be answered before or after its turn")

    def _partitioner(self, sample: Sample) -> Iterator[Finding]:
        """Hold the configured partitioner against where records really are."""
        if sample.partitions < 2:
            return
        told, fits = self._pipeline.partitioner, fitting(sample.placed, sample.partitions)
        better = f'`partitioner = "{fits[0]}"` fits all {len(sample.placed)} keys looked at' if fits else ""
        if told is None:
            found = "not configured, so no export can be asked for"
            yield Finding(
                Level.PROBLEM, "partitioner", found, better or "set it to what the producers of the events use"
            )
            return
        strayed = [
            (key, place)
            for key, place in sorted(sample.placed)
            if (own := partition_of(key, sample.partitions, told)) is not None and own != place
        ]
        if not sample.placed:
            yield Finding(Level.OK, "partitioner", f"{told}; no keyed record to hold it against")
        elif not strayed:
            yield Finding(Level.OK, "partitioner", f"{told} fits all {len(sample.placed)} keys looked at")
        else:
            key, place = strayed[0]
            found = (
                f"{len(strayed)} of {len(sample.placed)} keys looked at are not where {told} puts them:"
                f" {key!r} is in partition {place}, not {partition_of(key, sample.partitions, told)}"
            )
            level = Level.PROBLEM if fits else Level.WARNING
            mend = (
                better or "see how the producers of the events choose a partition; was the topic given more partitions?"
            )
            yield Finding(level, "partitioner", found, mend)

    def _group(self) -> Iterator[Finding]:
        group, topic = self._pipeline.group, self._pipeline.topics.exports_to
        if group is None or topic is None:
            return
        with Reader(self._pipeline, timeout_s=self._timeout_s, group=group) as reader:
            try:
                partitions = reader.partitions(topic)
                ends = reader.latest(topic, partitions)
                committed = {one: reader.committed(topic, one) for one in partitions}
            except BrokerError as error:
                yield Finding(Level.WARNING, f"group ({group})", error.problem, error.remedy)
                return
        known = {one: offset for one, offset in committed.items() if offset is not None}
        if not known:
            found = f"has committed nothing for {topic}"
            yield Finding(
                Level.WARNING, f"group ({group})", found, "correct `group`, or remove it if offsets are kept elsewhere"
            )
        else:
            behind = sum(max(0, ends[one] - offset) for one, offset in known.items())
            yield Finding(Level.OK, f"group ({group})", f"{behind:,} records behind")


def _ago(milliseconds: int) -> str:
    return "just now" if milliseconds < 1000 else f"{_span(milliseconds)} ago"


def _span(milliseconds: int) -> str:
    for unit, size in (("day", 86_400_000), ("hour", _HOUR_MS), ("minute", 60_000), ("second", 1000)):
        if milliseconds >= size:
            count = milliseconds // size
            return f"{count} {unit}{'s' * (count != 1)}"
    return f"{milliseconds} ms"
