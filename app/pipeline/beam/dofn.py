"""The keyed processor as a stateful DoFn: Beam keeps the cells and the timers, and orders the elements of a key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.internal import pickler
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from app.pipeline import keyed
from app.pipeline.keyed import KeySettings, KeyState, Step, Stream, Timer, TimerSetting
from app.pipeline.loop import TurnLoop
from app.runtime import standin
from app.runtime.config import AgentConfig
from app.wire.records import AgentEnvelope

__all__ = ["KeyedDoFn"]

_EARLIEST_MS: Final = MIN_TIMESTAMP.micros // 1000
_LATEST_MS: Final = GlobalWindow().max_timestamp().micros // 1000

TTL: Final = TimerSpec("ttl", TimeDomain.WATERMARK)
HITL: Final = TimerSpec("hitl", TimeDomain.REAL_TIME)
FLUSH: Final = TimerSpec("flush", TimeDomain.REAL_TIME)


class _Sum(beam.CombineFn):
    """Adds integers up; its accumulator is one, so that a coder of integers can keep it."""

    def create_accumulator(self) -> int:
        return 0

    def add_input(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge_accumulators(self, accumulators: Iterable[int]) -> int:
        return sum(accumulators)

    def extract_output(self, accumulator: int) -> int:
        return accumulator


# How Beam is asked for things: defaults of a method's parameters.
_KEY: Any = beam.DoFn.KeyParam
_AT: Any = beam.DoFn.TimestampParam
_MEMORY: Any = beam.DoFn.StateParam(ReadModifyWriteStateSpec("memory", BytesCoder()))
_CACHE: Any = beam.DoFn.StateParam(ReadModifyWriteStateSpec("llm_cache", BytesCoder()))
_CONTINUATION: Any = beam.DoFn.StateParam(ReadModifyWriteStateSpec("continuation", BytesCoder()))
_PENDING: Any = beam.DoFn.StateParam(BagStateSpec("pending", BytesCoder()))
_SEQ: Any = beam.DoFn.StateParam(CombiningValueStateSpec("seq", VarIntCoder(), _Sum()))
_BATCH: Any = beam.DoFn.StateParam(BagStateSpec("batch", BytesCoder()))
_TTL: Any = beam.DoFn.TimerParam(TTL)
_HITL: Any = beam.DoFn.TimerParam(HITL)
_FLUSH: Any = beam.DoFn.TimerParam(FLUSH)


@dataclass(frozen=True)
class _Cells:
    """The runner's state of one key, read as a value and written where it differs."""

    memory: Any
    cache: Any
    continuation: Any
    pending: Any
    seq: Any
    batch: Any

    def read(self) -> KeyState:
        return KeyState(
            memory=self.memory.read(),
            cache=self.cache.read(),
            continuation=self.continuation.read(),
            pending=tuple(self.pending.read()),
            seq=self.seq.read(),
            batch=tuple(self.batch.read()),
        )

    def write(self, before: KeyState, after: KeyState) -> None:
        for name in ("memory", "cache", "continuation"):
            value = getattr(after, name)
            if value != getattr(before, name):
                cell = getattr(self, name)
                cell.clear() if value is None else cell.write(value)
        for name in ("pending", "batch"):
            _write_bag(getattr(self, name), getattr(before, name), getattr(after, name))
        if after.seq < before.seq:
            self.seq.clear()
            self.seq.add(after.seq)
        elif after.seq > before.seq:
            self.seq.add(after.seq - before.seq)


def _write_bag(bag: Any, before: tuple[bytes, ...], after: tuple[bytes, ...]) -> None:
    kept = len(before)
    if after[:kept] != before:
        bag.clear()
        kept = 0
    for item in after[kept:]:
        bag.add(item)


class KeyedDoFn(beam.DoFn):
    """Runs an agent over KV[bytes, AgentEnvelope]; main output the key and the agent's bytes, other streams a tag each.

    An error that `keyed.process` raises fails the bundle: nothing of it is emitted, and the runner tries again.
    """

    def __init__(self, agent: Callable[..., Any], config: AgentConfig) -> None:
        self._agent = agent
        self._config = config

    def __reduce__(self) -> tuple[Callable[..., KeyedDoFn], tuple[bytes]]:
        # A worker imports the agent's modules while it unpickles, long before it sets up.
        return _rebuild, (pickler.dumps((self._agent, self._config)),)

    def setup(self) -> None:
        """Make the provider and the store, once for each instance of the worker."""
        self._settings = KeySettings.open(self._agent, self._config)
        self._loop = TurnLoop()
        self._sent = {stream: Metrics.counter("hindcast", str(stream)) for stream in Stream}

    def teardown(self) -> None:
        """Close what the agent's clients left running."""
        self._loop.close(self._config.cancel_grace_s)

    def process(
        self,
        element: tuple[bytes, AgentEnvelope],
        memory: Any = _MEMORY,
        cache: Any = _CACHE,
        continuation: Any = _CONTINUATION,
        pending: Any = _PENDING,
        seq: Any = _SEQ,
        batch: Any = _BATCH,
        ttl: Any = _TTL,
        hitl: Any = _HITL,
        flush: Any = _FLUSH,
    ) -> Iterator[Any]:
        """Take one element."""
        key, envelope = element
        cells = _Cells(memory, cache, continuation, pending, seq, batch)
        before = cells.read()
        turn = keyed.process(key, before, envelope, self._settings, wall_ms=_wall_ms())
        yield from self._keep(cells, before, self._loop.run(turn), (ttl, hitl, flush))

    @on_timer(TTL)
    def on_ttl(
        self,
        key: Any = _KEY,
        at: Any = _AT,
        memory: Any = _MEMORY,
        cache: Any = _CACHE,
        continuation: Any = _CONTINUATION,
        pending: Any = _PENDING,
        seq: Any = _SEQ,
        batch: Any = _BATCH,
        ttl: Any = _TTL,
        hitl: Any = _HITL,
        flush: Any = _FLUSH,
    ) -> Iterator[Any]:
        """The watermark has passed the key's time to live."""
        cells = _Cells(memory, cache, continuation, pending, seq, batch)
        yield from self._fire(Timer.TTL, key, at, cells, (ttl, hitl, flush))

    @on_timer(HITL)
    def on_hitl(
        self,
        key: Any = _KEY,
        at: Any = _AT,
        memory: Any = _MEMORY,
        cache: Any = _CACHE,
        continuation: Any = _CONTINUATION,
        pending: Any = _PENDING,
        seq: Any = _SEQ,
        batch: Any = _BATCH,
        ttl: Any = _TTL,
        hitl: Any = _HITL,
        flush: Any = _FLUSH,
    ) -> Iterator[Any]:
        """A suspension's deadline has passed on the wall clock."""
        cells = _Cells(memory, cache, continuation, pending, seq, batch)
        yield from self._fire(Timer.HITL, key, at, cells, (ttl, hitl, flush))

    @on_timer(FLUSH)
    def on_flush(
        self,
        key: Any = _KEY,
        at: Any = _AT,
        memory: Any = _MEMORY,
        cache: Any = _CACHE,
        continuation: Any = _CONTINUATION,
        pending: Any = _PENDING,
        seq: Any = _SEQ,
        batch: Any = _BATCH,
        ttl: Any = _TTL,
        hitl: Any = _HITL,
        flush: Any = _FLUSH,
    ) -> Iterator[Any]:
        """The oldest buffered event has waited long enough."""
        cells = _Cells(memory, cache, continuation, pending, seq, batch)
        yield from self._fire(Timer.FLUSH, key, at, cells, (ttl, hitl, flush))

    def _fire(self, timer: Timer, key: bytes, at: Timestamp, cells: _Cells, timers: tuple[Any, ...]) -> Iterator[Any]:
        before = cells.read()
        turn = keyed.fire(key, before, timer, at.micros // 1000, self._settings, wall_ms=_wall_ms())
        yield from self._keep(cells, before, self._loop.run(turn), timers)

    def _keep(self, cells: _Cells, before: KeyState, step: Step, timers: tuple[Any, ...]) -> Iterator[Any]:
        cells.write(before, step.state)
        for setting in step.timers:
            _set(dict(zip(Timer, timers, strict=True))[setting.timer], setting)
        for emission in step.emissions:
            self._sent[emission.stream].inc()
            if emission.stream is Stream.OUTPUTS:
                yield emission.key, emission.value
            else:
                yield TaggedOutput(str(emission.stream), emission.value)


def _set(timer: Any, setting: TimerSetting) -> None:
    if setting.at_ms is None:
        timer.clear()
    else:
        # A runner refuses times outside its own range.
        timer.set(Timestamp(micros=1000 * min(max(setting.at_ms, _EARLIEST_MS), _LATEST_MS)))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _rebuild(parts: bytes) -> KeyedDoFn:
    standin.install()
    agent, config = pickler.loads(parts)
    return KeyedDoFn(agent, config)
