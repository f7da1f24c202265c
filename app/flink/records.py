"""One line of an event log as a record, whichever release wrote it; what is no record is garbage, with a reason.

Release 0.3.1 nests the event (`{"timestamp", "eventType", "event": {"id", "attributes"}}`) and knows neither key nor
run; 0.4 writes it flat, with a run, a key and executions while tracing is on. Times are nanoseconds of the epoch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

INPUT: Final = "_input_event"
OUTPUT: Final = "_output_event"
CHAT_REQUEST: Final = "_chat_request_event"
CHAT_RESPONSE: Final = "_chat_response_event"
TOOL_REQUEST: Final = "_tool_request_event"
TOOL_RESPONSE: Final = "_tool_response_event"
RUN_BEGIN: Final = "_agent_run_begin_event"
STARTED: Final = "_execution_started_event"
FINISHED: Final = "_execution_finished_event"
FAILED: Final = "_execution_failed_event"
REUSED: Final = "_execution_reused_event"
LIFE_CYCLE: Final = frozenset({STARTED, FINISHED, FAILED, REUSED})

VERBOSE: Final = "VERBOSE"

_TRUNCATIONS: Final = (
    ("truncatedString", "omittedChars", "characters"),
    ("truncatedList", "omittedElements", "elements"),
    ("truncatedObject", "omittedFields", "fields"),
)
_NOTHING: Final[Mapping[str, Any]] = {}
_SECOND: Final = 1_000_000_000


class Form(StrEnum):
    """How a record is written: as 0.3.1 did, or as 0.4 does."""

    NESTED = "nested"
    FLAT = "flat"


class Stream(NamedTuple):
    """The subtask that wrote a record; empty and -1 where neither the record nor its file's name tells."""

    job: str = ""
    task: str = ""
    subtask: int = -1


NO_STREAM: Final = Stream()


class Truncation(NamedTuple):
    """One value that the log cut short: where it stands, how much was left out, and of what."""

    path: str
    omitted: int
    unit: str


class Record(NamedTuple):
    """One event as it was logged. Ids and names are None where the log does not carry them.

    `digest` is the sha256 of the line (16 bytes of it): equal for equal lines wherever they stand.
    """

    form: Form
    time_ns: int
    level: str
    type: str
    event_id: str
    attributes: Mapping[str, Any]
    digest: bytes
    stream: Stream = NO_STREAM
    run_id: str | None = None
    key: str | None = None
    agent: str | None = None
    execution_id: str | None = None
    parent_execution_id: str | None = None
    entity_type: str | None = None
    entity_name: str | None = None
    entity_metadata: Mapping[str, Any] = _NOTHING
    upstream_event_id: str | None = None
    upstream_action: str | None = None
    status: str | None = None
    problem_category: str | None = None
    truncations: tuple[Truncation, ...] = ()

    @property
    def time_ms(self) -> int:
        return self.time_ns // 1_000_000

    @property
    def life_cycle(self) -> bool:
        """Whether this tells how an execution fares, rather than what the agent sent."""
        return self.type in LIFE_CYCLE and self.execution_id is not None

    @property
    def request_id(self) -> str | None:
        """Of a response: the id of the event that it answers."""
        asked = self.attributes.get("request_id")
        return asked if isinstance(asked, str) else None

    @property
    def content_id(self) -> bool:
        """Whether the event's id is made of its content, so that equal events of different keys share it."""
        return self.event_id[14:15] in ("3", "5")


class Garbage(NamedTuple):
    """A line that is no record, and why."""

    reason: str
    digest: bytes


_NAMED: Final = re.compile(r"events-(?P<job>[0-9a-f]{32})-(?P<task>.+)-(?P<subtask>\d{1,6})\.log")


def stream_of_name(name: str) -> Stream:
    """What a log file's name tells of its writer: `events-{job}-{task}-{subtask}.log`, rotated or packed or not."""
    found = _NAMED.search(name)
    return NO_STREAM if found is None else Stream(found["job"], found["task"], int(found["subtask"]))


def read_line(line: bytes, named: Stream = NO_STREAM) -> Record | Garbage:
    """Read one line; `named` is what the file's name tells where the record itself does not."""
    digest = hashlib.sha256(line).digest()[:16]
    start = 0 if line[:1] == b"{" else line.find(b'{"timestamp"')
    if start < 0:
        return Garbage("not JSON", digest)
    try:
        told = json.loads((line[start:] if start else line).decode())
    except (ValueError, RecursionError):
        return Garbage("a record of a pretty-printed log: set prettyPrint to false" if line.strip() == b"{" else
                       "not JSON: cut short, or written over", digest)  # fmt: skip
    if not isinstance(told, dict):
        return Garbage(f"a JSON {type(told).__name__}, not a record", digest)
    return _record(told, digest, named, b'"truncated' in line)


def _record(told: Mapping[str, Any], digest: bytes, named: Stream, cut: bool) -> Record | Garbage:
    time_ns = _nanoseconds(told.get("timestamp"))
    if time_ns is None:
        return Garbage("a JSON object without a timestamp", digest)
    event = told.get("event")
    nested = isinstance(event, dict)
    held: Mapping[str, Any] = event if nested else told  # type: ignore[assignment]
    kind = told.get("eventType") or held.get("eventType") or held.get("type")
    event_id = held.get("id" if nested else "eventId")
    if not isinstance(kind, str) or not isinstance(event_id, str) or not kind or not event_id:
        return Garbage("a JSON object that is no event: it has no type or no id", digest)
    attributes = held.get("attributes" if nested else "eventAttributes")
    if not isinstance(attributes, dict):
        attributes = {} if attributes is None else {"attributes": attributes}
    truncations = tuple(_cuts(attributes, "", 0)) if cut else ()
    level = _text(told, "logLevel") or ""
    stream = _stream(told, named)
    if nested:
        return Record(Form.NESTED, time_ns, level, kind, event_id, attributes, digest, stream, truncations=truncations)
    metadata = told.get("entityMetadata")
    run, key, agent, execution, parent, entity, name, upstream, action, status, category = _texts(told)
    return Record(
        Form.FLAT,
        time_ns,
        level,
        kind,
        event_id,
        attributes,
        digest,
        stream,
        run,
        key,
        agent,
        execution,
        parent,
        entity,
        name,
        metadata if isinstance(metadata, dict) else _NOTHING,
        upstream,
        action,
        status,
        category,
        truncations,
    )


# In the order in which `_record` takes them.
_NAMES: Final = (
    "inputRunId", "businessKey", "agentName", "executionId", "parentExecutionId", "entityType", "entityName",
    "upstreamEventId", "upstreamActionName", "status", "problemCategory",
)  # fmt: skip


def _texts(told: Mapping[str, Any]) -> list[str | None]:
    found = list(map(told.get, _NAMES))
    return [value if value is None or (type(value) is str and value) else _text(told, name)
            for name, value in zip(_NAMES, found, strict=True)]  # fmt: skip


def _stream(told: Mapping[str, Any], named: Stream) -> Stream:
    job = told.get("jobId")
    if not isinstance(job, str):
        return named
    subtask = told.get("subtaskId")
    return Stream(job, _text(told, "taskName") or "", subtask if isinstance(subtask, int) else -1)


def _text(told: Mapping[str, Any], name: str) -> str | None:
    value = told.get(name)
    if value is None or isinstance(value, str):
        return value or None
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=1024)
def _seconds(text: str) -> int | None:
    try:
        return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:?\d\d)?")


def _nanoseconds(value: Any) -> int | None:
    """An ISO time with up to nine decimals as nanoseconds; without an offset it is UTC, as the log writes it."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    seconds = None if found is None else _seconds(found[1])
    if found is None or seconds is None:
        return None
    fraction, zone = found[2] or "", found[3] or "Z"
    if zone != "Z":
        seconds -= (-1 if zone[0] == "-" else 1) * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return seconds * _SECOND + int(fraction.ljust(9, "0"))


def _cuts(value: Any, path: str, depth: int) -> Iterator[Truncation]:
    """Find what STANDARD level left out: each wrapper says how much."""
    if depth > 100:
        return
    if isinstance(value, dict):
        for name, count, unit in _TRUNCATIONS:
            if name in value and count in value:
                omitted = value[count]
                yield Truncation(path or "$", omitted if isinstance(omitted, int) else 0, unit)
                yield from _cuts(value[name], path, depth + 1)
                return
        for name, item in value.items():
            yield from _cuts(item, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _cuts(item, f"{path}[{number}]", depth + 1)


def run_ref(record: Record) -> str:
    """Name the run that an input begins where the log has no name for it: the same for the same line, always."""
    stream = record.stream
    told = "\0".join((stream.job, stream.task, str(stream.subtask), record.event_id, str(record.time_ns)))
    return "in-" + hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:32]
