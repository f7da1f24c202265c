"""Evidence files: read each as what it claims to be, say what it holds, or say what is wrong.

Nothing here judges an attempt; it only turns bytes into records and keeps count of what arrived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from app.wire import framing
from app.wire.migration import CURRENT_STATE_SCHEMA_VERSION, version_of
from app.wire.records import (
    ActivationErrorRecord,
    AgentEnvelope,
    RecordError,
    StateSnapshot,
    ToolIntent,
    TraceEvent,
    parse,
    serialize,
)


class Role(StrEnum):
    """What a file is evidence of. `snapshot` and `event` hold one record, the rest framed streams.

    `event-log` is of another framework: lines of JSON, which are kept here and read in a room of their own.
    """

    SNAPSHOT = "snapshot"
    TRACES = "traces"
    EVENT = "event"
    SNAPSHOTS = "snapshots"
    EVENTS = "events"
    INTENTS = "intents"
    OUTPUTS = "outputs"
    ERRORS = "errors"
    EVENT_LOG = "event-log"


SINGLE: Final = frozenset({Role.SNAPSHOT, Role.EVENT})
FOREIGN: Final = frozenset({Role.EVENT_LOG})
MAY_BE_EMPTY: Final = frozenset({Role.OUTPUTS, Role.INTENTS, Role.ERRORS})

_RECORDS: Final[dict[Role, type[Message] | None]] = {
    Role.SNAPSHOT: StateSnapshot,
    Role.SNAPSHOTS: StateSnapshot,
    Role.TRACES: TraceEvent,
    Role.EVENT: AgentEnvelope,
    Role.EVENTS: AgentEnvelope,
    Role.INTENTS: ToolIntent,
    Role.OUTPUTS: None,
    Role.ERRORS: AgentEnvelope,
    Role.EVENT_LOG: None,
}

_EXPECTED: Final[dict[Role, str]] = {
    Role.SNAPSHOT: "one serialized StateSnapshot",
    Role.SNAPSHOTS: "a varint-framed stream of StateSnapshot records",
    Role.TRACES: "a varint-framed stream of TraceEvent records",
    Role.EVENT: "one serialized AgentEnvelope",
    Role.EVENTS: "a varint-framed stream of AgentEnvelope records",
    Role.INTENTS: "a varint-framed stream of ToolIntent records",
    Role.OUTPUTS: "a varint-framed stream of output bytes",
    Role.ERRORS: "a varint-framed stream of dead letters (AgentEnvelope around ActivationErrorRecord)",
    Role.EVENT_LOG: "lines of an event log of Flink Agents",
}


@dataclass(frozen=True)
class EvidenceFile:
    """One file as it was handed in: its role, the name to call it by, its bytes."""

    role: Role
    name: str
    data: bytes = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class FileProblem:
    """What is wrong with one file, what was expected of it, and what to do."""

    name: str
    role: str
    problem: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} ({self.role}): {self.problem}; expected {self.expected}. {self.remedy}"


class UnusableFile(ValueError):
    """One file cannot be used; `problem` says why."""

    def __init__(self, problem: FileProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class UnusableEvidence(ValueError):
    """The files cannot be used together; one problem per file that is at fault."""

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state snapshot and the name of the file that held it."""

    record: StateSnapshot
    name: str

    @property
    def counter(self) -> int:
        """The commit counter: the seq that the next start would use."""
        return self.record.seq


@dataclass(slots=True)
class TraceRecord:
    """One distinct trace event and how many times it was delivered."""

    event: TraceEvent
    content: bytes
    copies: int = 1


@dataclass
class Evidence:
    """Everything handed in, parsed; equal trace frames are collapsed and counted."""

    files: tuple[EvidenceFile, ...]
    snapshots: list[Snapshot] = field(default_factory=list)
    traces: dict[bytes, TraceRecord] = field(default_factory=dict)
    triggers: list[AgentEnvelope] = field(default_factory=list)
    events: list[AgentEnvelope] = field(default_factory=list)
    intents: list[ToolIntent] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)
    errors: list[ActivationErrorRecord] = field(default_factory=list)
    torn: list[FileProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def has(self, role: Role) -> bool:
        return any(file.role is role for file in self.files)

    @property
    def duplicates(self) -> int:
        """Trace frames that were equal to an earlier one."""
        return sum(record.copies - 1 for record in self.traces.values())


def load(files: Sequence[EvidenceFile]) -> Evidence:
    """Parse all files; raises UnusableEvidence naming every file that cannot be used."""
    evidence = Evidence(tuple(files))
    problems = []
    for file in files:
        try:
            _add(evidence, file)
        except UnusableFile as error:
            problems.append(error.problem)
    if problems:
        raise UnusableEvidence(problems)
    return evidence


def _add(evidence: Evidence, file: EvidenceFile) -> None:
    if file.role in FOREIGN:
        return
    payloads = _payloads(file)
    if payloads.torn is not None:
        evidence.torn.append(_torn(file, payloads.torn))
    match file.role:
        case Role.TRACES:
            _add_traces(evidence, file, payloads.payloads)
        case Role.OUTPUTS:
            evidence.outputs.extend(payloads.payloads)
        case Role.SNAPSHOT | Role.SNAPSHOTS:
            for snapshot in _records(file, payloads.payloads):
                _refuse_newer(file, snapshot)
                evidence.snapshots.append(Snapshot(snapshot, file.name))
        case Role.EVENT:
            evidence.triggers.extend(_records(file, payloads.payloads))
        case Role.EVENTS:
            evidence.events.extend(_records(file, payloads.payloads))
        case Role.INTENTS:
            evidence.intents.extend(_records(file, payloads.payloads))
        case Role.ERRORS:
            evidence.errors.extend(_dead_letters(file, payloads.payloads))


def _payloads(file: EvidenceFile) -> framing.Frames:
    if file.role in SINGLE:
        if not file.data:
            raise empty(file)
        return framing.Frames([file.data])
    try:
        return framing.read_frames(file.data)
    except framing.FramingError as error:
        raise _unusable(file, str(error), _other_kind(file)) from error


def _add_traces(evidence: Evidence, file: EvidenceFile, payloads: list[bytes]) -> None:
    traces = evidence.traces
    for event in _records(file, payloads):
        content = serialize(event)
        known = traces.get(content)
        if known is None:
            traces[content] = TraceRecord(event, content)
        else:
            known.copies += 1


def _records(file: EvidenceFile, payloads: Iterable[bytes]) -> Iterator[Any]:
    record_type = _RECORDS[file.role]
    assert record_type is not None, "outputs hold no records"
    for index, payload in enumerate(payloads):
        try:
            record = parse(record_type, payload)
        except RecordError as error:
            where = "" if file.role in SINGLE else f"frame {index}: "
            raise _unusable(file, f"{where}{error}", _other_kind(file)) from error
        misfit = _misfit(record)
        if misfit is not None:
            where = "" if file.role in SINGLE else f"frame {index} is "
            other = RecordError(record_type.DESCRIPTOR.name, misfit)
            raise _unusable(file, f"{where}{other}", _other_kind(file))
        yield record


def _dead_letters(file: EvidenceFile, payloads: list[bytes]) -> Iterator[ActivationErrorRecord]:
    for index, envelope in enumerate(_records(file, payloads)):
        try:
            yield parse(ActivationErrorRecord, envelope.external_event)
        except RecordError as error:
            raise _unusable(file, f"frame {index}: {error}", _other_kind(file)) from error


def _misfit(record: Message) -> str | None:
    """A field that this record type has, written with another wire type: it is another record."""
    unknown = UnknownFieldSet(record)
    if not len(unknown):
        return None
    known = type(record).DESCRIPTOR.fields_by_number
    for item in unknown:
        if item.field_number in known:
            name = known[item.field_number].name
            return f"field {item.field_number} does not have the type of `{name}`"
    return None


def _refuse_newer(file: EvidenceFile, snapshot: StateSnapshot) -> None:
    blobs: list[tuple[str, Any]] = [("snapshot", snapshot)]
    blobs += [
        (name, getattr(snapshot, name)) for name in ("memory", "llm_cache", "continuation") if snapshot.HasField(name)
    ]
    for name, blob in blobs:
        version = version_of(blob)
        if version > CURRENT_STATE_SCHEMA_VERSION:
            raise _unusable(
                file,
                f"its {name} has state schema version {version}, this installation reads up to"
                f" {CURRENT_STATE_SCHEMA_VERSION}",
                "Upgrade Hindcast to a release that reads that version.",
            )


def _unusable(file: EvidenceFile, problem: str, remedy: str) -> UnusableFile:
    return UnusableFile(FileProblem(file.name, str(file.role), problem, _EXPECTED[file.role], remedy))


def empty(file: EvidenceFile) -> UnusableFile:
    """The error for a file without content."""
    return _unusable(file, "the file is empty", "Dump it again; nothing was written to it.")


def _torn(file: EvidenceFile, torn: framing.TornFrame) -> FileProblem:
    return FileProblem(
        file.name,
        str(file.role),
        str(torn),
        _EXPECTED[file.role],
        "Dump the stream again; the frames before the cut are kept.",
    )


def _other_kind(file: EvidenceFile) -> str:
    """Advice for bytes that do not fit their role: name the role that they do fit."""
    found = sniff(file.data)
    if found is None or found is file.role:
        return "Check that the file was dumped whole, in binary, with nothing added."
    return f"It reads as {_EXPECTED[found]}: hand it in as `{found}`."


def sniff(data: bytes) -> Role | None:
    """Guess what bytes are from how well they parse; None when nothing fits."""
    if not data:
        return None
    for role in (Role.SNAPSHOT, Role.EVENT):
        if _fits(role, data):
            return role
    try:
        frames = framing.read_frames(data)
    except framing.FramingError:
        return None
    if not frames.payloads:
        return None
    for role in (Role.TRACES, Role.INTENTS, Role.SNAPSHOTS, Role.EVENTS):
        if all(_fits(role, payload) for payload in frames.payloads[:20]):
            return role
    return None


def _fits(role: Role, data: bytes) -> bool:
    record_type = _RECORDS[role]
    assert record_type is not None
    try:
        record: Any = parse(record_type, data)
    except RecordError:
        return False
    if len(UnknownFieldSet(record)):
        return False
    if role is Role.TRACES:
        return (len(record.trace_id), len(record.span_id)) == (16, 8)
    if role is Role.INTENTS:
        return bool(len(record.intent_id) == 36)
    if role in (Role.SNAPSHOT, Role.SNAPSHOTS):
        return bool(record.state_schema_version)
    return bool(record.WhichOneof("payload"))
