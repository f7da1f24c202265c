"""One turn of a key: what an element or a timer changes, gathered in order and handed back as a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from app.pipeline.emission import Emission, Stream, error_envelope
from app.pipeline.state import INT64_MAX, KeyState, Timer, TimerSetting
from app.wire import migration
from app.wire.records import ActivationErrorRecord, Continuation, ToolIntent, TraceEvent, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.runtime.batching import BatchSettings
    from app.runtime.compaction import ExpireHook
    from app.runtime.config import AgentConfig
    from app.runtime.settings import AgentHooks

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class KeySettings:
    """What every key of a pipeline lives under: the agent with its live parts, and the pipeline's numbers.

    `ttl_ms` in milliseconds of event time; `batch` is None where every event is its own activation.
    """

    hooks: AgentHooks
    ttl_ms: int
    batch: BatchSettings | None = None
    on_expire: ExpireHook | None = None

    @classmethod
    def open(cls, agent: Callable[..., Any], config: AgentConfig) -> KeySettings:
        """Call the provider factory and open the long-term store; raises RuntimeError for a missing client."""
        return cls(config.hooks(agent, config.open_store()), config.ttl_ms, config.batch_settings(), config.on_expire)


class Step(NamedTuple):
    """What one turn came to: the state to keep, the records to send in this order, the timers to change."""

    state: KeyState
    emissions: tuple[Emission, ...]
    timers: tuple[TimerSetting, ...]


class Turn:
    """A turn in progress. `wall_ms` is the wall clock now, which only the flush timer is set from."""

    def __init__(self, key: bytes, state: KeyState, settings: KeySettings, wall_ms: int) -> None:
        self.key = key
        self.state = state
        self.settings = settings
        self.wall_ms = wall_ms
        self._emissions: list[Emission] = []
        self._timers: list[TimerSetting] = []

    def done(self) -> Step:
        """The turn's result."""
        return Step(self.state, tuple(self._emissions), tuple(self._timers))

    # State

    def write(self, **cells: Any) -> None:
        """Replace cells of the state."""
        self.state = replace(self.state, **cells)

    def continuation(self) -> Continuation | None:
        """The live suspension at the current schema version; raises StateMigrationError, RecordError."""
        return current(Continuation, self.state.continuation)

    def set_timer(self, timer: Timer, at_ms: int) -> None:
        """Set a timer, in place of whatever it was set to."""
        at_ms = min(at_ms, INT64_MAX)
        self.state = self.state.marked(timer, at_ms)
        self._timers.append(TimerSetting(timer, at_ms))

    def clear_timer(self, timer: Timer) -> None:
        """Make sure that a timer does not fire."""
        self.state = self.state.marked(timer, None)
        self._timers.append(TimerSetting(timer, None))

    # Emissions

    def output(self, value: Any) -> None:
        """Send to the main output, as it is."""
        self._emissions.append(Emission(Stream.OUTPUTS, self.key, value))

    def records(self, stream: Stream, records: Iterable[Any]) -> None:
        """Send records that carry their own entity key."""
        self._emissions.extend(Emission(stream, record.entity_key, record) for record in records)

    def intent(self, intent: ToolIntent) -> None:
        """Send an intent."""
        self.records(Stream.INTENTS, (intent,))

    def trace(self, event: TraceEvent) -> None:
        """Send a trace event."""
        self.records(Stream.TRACES, (event,))

    def dead_letter(self, reason: str, detail: str, at_ms: int) -> None:
        """Send a dead letter of this key."""
        self.dead_letters(
            ActivationErrorRecord(entity_key=self.key, reason=reason, detail=detail, event_time_ms=at_ms), 1
        )

    def dead_letters(self, record: ActivationErrorRecord, count: int) -> None:
        """Send one dead letter `count` times."""
        self.records(Stream.ERRORS, (error_envelope(record) for _ in range(count)))


def current(message_type: type[M], cell: bytes | None) -> M | None:
    """A cell's blob at the current schema version, None where it was never written.

    Raises RecordError for bytes that are no such blob, StateMigrationError for a version that cannot be read.
    """
    return None if cell is None else migration.migrate_to_current(parse(message_type, cell))
