"""What an event log tells, in plain values: runs, the executions inside them, and every record where it belongs.

A run is one input of one key. Nothing of a log is dropped: a record that came twice, that was cut short, or that
nobody can say the run of, is kept and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from app.flink.records import VERBOSE, Form, Record, Stream


class How(StrEnum):
    """How it is known that a record is of its run; the last two are conclusions, and the page marks them."""

    RUN_ID = "run id"  # the record names its run
    LINEAGE = "lineage"  # it names the event that led to it
    KEY = "key"  # the configured path finds the key in its payload
    REQUEST = "request id"  # it answers a request of that run
    CALL = "tool call id"
    INPUT = "input"  # it is the input that begins the run
    CONTENT = "content"  # it repeats what only this run has said
    ALONE = "alone"  # no other run of the subtask was under way

    @property
    def concluded(self) -> bool:
        return self in (How.CONTENT, How.ALONE)


class Placed(NamedTuple):
    """A record and the run it was put in: None where nobody can say, `how` is then empty."""

    record: Record
    run: str | None
    how: How | None


class Twice(StrEnum):
    """What is to be said of a record whose event was there before."""

    NO = ""
    AGAIN = "again"  # the same event, logged once more
    NEW_LINEAGE = "again, with new lineage"  # reused after a recovery
    CONFLICT = "same id, other content"


class Entry(NamedTuple):
    """One record of a run, in the run's order."""

    record: Record
    how: How
    twice: Twice = Twice.NO


class Ended(StrEnum):
    """How an execution stands."""

    SUCCESS = "success"
    FAILED = "failed"
    REUSED = "reused"  # a recovery took its result from the action state store
    ANSWERED = "answered"  # concluded from a response: this log holds no life-cycle events
    UNFINISHED = "unfinished"
    NOT_RECORDED = "not recorded"  # events of it are here, its life-cycle is not


@dataclass(frozen=True, slots=True)
class Execution:
    """One action, model call, tool call or parser at work; `parent` is the id of the execution that caused it.

    `concluded` marks those of a log without life-cycle events, made of requests and responses. Times are nanoseconds,
    None where that end was not recorded. `emitted` counts the events that it sent.
    """

    id: str
    type: str
    name: str
    status: Ended
    parent: str | None = None
    problem_category: str | None = None
    error: str = ""
    error_type: str = ""
    started_ns: int | None = None
    ended_ns: int | None = None
    emitted: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    concluded: bool = False


class RunStatus(StrEnum):
    """How a run ended, as far as the log tells."""

    COMPLETED = "completed"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Run:
    """One input of one key and everything logged for it, in one order whatever order the records came in.

    `ref` is the log's own id of the run, or one made of the input's event, subtask and time where it has none.
    `key` is None where no path was configured that finds it.
    """

    ref: str
    form: Form
    stream: Stream
    key: str | None
    agent: str | None
    status: RunStatus
    entries: tuple[Entry, ...]
    executions: tuple[Execution, ...]
    input_missing: bool = False

    @property
    def records(self) -> list[Record]:
        """Each event once."""
        return [entry.record for entry in self.entries if entry.twice in (Twice.NO, Twice.CONFLICT)]

    @property
    def first_ns(self) -> int:
        return self.entries[0].record.time_ns

    @property
    def last_ns(self) -> int:
        return self.entries[-1].record.time_ns

    @property
    def duplicates(self) -> int:
        return sum(entry.twice is not Twice.NO for entry in self.entries)

    @property
    def truncated(self) -> int:
        return sum(bool(entry.record.truncations) for entry in self.entries)

    @property
    def concluded(self) -> int:
        """How many records were placed by a conclusion."""
        return sum(entry.how.concluded for entry in self.entries)

    @property
    def verbose(self) -> bool:
        return all(entry.record.level == VERBOSE for entry in self.entries)

    @property
    def unfinished(self) -> int:
        return sum(one.status is Ended.UNFINISHED for one in self.executions)

    @property
    def problem_categories(self) -> tuple[str, ...]:
        return tuple(sorted({one.problem_category for one in self.executions if one.problem_category}))

    def names(self, kind: str) -> tuple[str, ...]:
        """Names of the executions of a type (`tool`, `llm`, `action`), each once."""
        return tuple(sorted({one.name for one in self.executions if one.type == kind and one.name}))
