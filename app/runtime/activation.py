"""Runs one attempt: call the agent, contain whatever it does, hand back what would be committed or why not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from app.runtime import trace as tracing
from app.runtime.context import ActivationContext, ActivationInput
from app.runtime.model.budget import BudgetExceeded
from app.runtime.outcome import Complete, Suspend
from app.runtime.settings import ActivationSettings, AgentHooks
from app.wire.migration import StateMigrationError
from app.wire.records import (
    ActivationErrorRecord,
    Continuation,
    LlmCacheBlob,
    MemoryBlob,
    ToolIntent,
    TraceEvent,
)

if TYPE_CHECKING:
    from app.runtime.compaction import Summarizer
    from app.runtime.probe import Probe
    from app.runtime.stores.base import MemoryRecord

__all__ = [
    "ActivationInput",
    "ActivationResult",
    "ActivationSettings",
    "AgentHooks",
    "activate",
    "run_activation",
]

REASON_ERROR: Final = "activation_error"
REASON_TIMEOUT: Final = "activation_timeout"
REASON_BUDGET: Final = "budget_exceeded"

Status = Literal["completed", "suspended", "failed", "timed_out"]


@dataclass(frozen=True)
class ActivationResult:
    """What one attempt came to.

    A completed or suspended attempt carries its staged events, intents and the images to commit; a
    failed or timed out one carries a single ERROR event, one dead letter, and nothing to commit.
    `output` is whatever the agent put into Complete, None when that was empty. `staged` is what a
    failed attempt had staged: the pipeline drops it, a replay shows it.
    """

    status: Status
    events: tuple[TraceEvent, ...]
    intents: tuple[ToolIntent, ...]
    output: Any
    memory: MemoryBlob
    cache: LlmCacheBlob
    continuation: Continuation | None
    upserts: tuple[MemoryRecord, ...]
    dead_letter: ActivationErrorRecord | None
    error: BaseException | None
    staged: tuple[TraceEvent, ...] = ()


class Stopped(Exception):
    """The host ended the attempt while it ran; nothing of it counts."""


async def activate(
    inp: ActivationInput,
    hooks: AgentHooks,
    probe: Probe | None = None,
    *,
    stop: asyncio.Future[None] | None = None,
) -> ActivationResult:
    """Run one attempt on the given state; the input blobs are left as they are.

    Every failure of the agent becomes a result. Raises StateMigrationError for state of another
    schema version, CancelledError only when the awaiting task itself is cancelled, and Stopped as soon as
    `stop` is done, without waiting for what the agent makes of its cancellation.
    """
    try:
        ctx = ActivationContext(inp, hooks, probe)
    except StateMigrationError:
        raise
    except Exception as error:  # noqa: BLE001 - an attempt fails, it never takes its host down
        return failed(inp, error, None)
    return await contain(_attempt(ctx, inp, hooks), inp, hooks.config, stop=stop)


async def contain(
    attempt: Coroutine[Any, Any, ActivationResult],
    inp: ActivationInput,
    settings: ActivationSettings,
    *,
    stop: asyncio.Future[None] | None = None,
) -> ActivationResult:
    """Await an attempt no longer than it may take; raises as `activate` does."""
    # A task of its own tells the agent's cancellations from ours.
    task = asyncio.get_running_loop().create_task(attempt)
    try:
        waited: tuple[asyncio.Future[Any], ...] = (task,) if stop is None else (task, stop)
        done, _ = await asyncio.wait(waited, timeout=settings.activation_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if stop is not None and stop.done():
            task.cancel()
            raise Stopped
        if not done:
            await _stop(task, settings.cancel_grace_s)
            return _refused(inp, "timed_out", REASON_TIMEOUT, _batch_suffix(inp), None)
    except asyncio.CancelledError:
        await _stop(task, settings.cancel_grace_s)
        raise
    if task.cancelled():
        return failed(inp, asyncio.CancelledError(), None)
    return task.result()


def run_activation(inp: ActivationInput, hooks: AgentHooks, probe: Probe | None = None) -> ActivationResult:
    """The same from code without a running event loop; raises StateMigrationError.

    Also contains what `activate` cannot: a SystemExit inside a task that the agent spawned stops the whole
    loop. It reaches the agent through that task as well, so the loop is simply continued.
    """
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(activate(inp, hooks, probe))
        while True:
            try:
                return loop.run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise
    finally:
        _close(loop, hooks.config.cancel_grace_s)


def _close(loop: asyncio.AbstractEventLoop, grace_s: float) -> None:
    """Close a loop although an agent may have left tasks that will not end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=grace_s))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _stop(task: asyncio.Task[ActivationResult], grace_s: float) -> None:
    task.cancel()
    await asyncio.wait((task,), timeout=grace_s)


async def _attempt(ctx: ActivationContext, inp: ActivationInput, hooks: AgentHooks) -> ActivationResult:
    try:
        outcome = await hooks.agent(ctx)
        await _summarize(ctx, hooks.config.summarizer)
        return await _commit(ctx, outcome)
    except Exception as error:  # noqa: BLE001 - whatever the agent raised is the outcome
        return replace(failed(inp, error, ctx.failure_position()), staged=ctx.traces())
    except BaseException as error:  # noqa: BLE001 - SystemExit and its like are not wrapped
        return replace(failed(inp, error, None), staged=ctx.traces())


async def _summarize(ctx: ActivationContext, summarizer: Summarizer | None) -> None:
    if summarizer is not None and ctx.memory.size_bytes >= summarizer.trigger_bytes:
        await summarizer.compact(ctx)


async def _commit(ctx: ActivationContext, outcome: object) -> ActivationResult:
    continuation = None
    output: Any = None
    status: Status = "completed"
    if isinstance(outcome, Suspend):
        continuation = ctx.build_continuation(outcome)
        status = "suspended"
    elif isinstance(outcome, Complete):
        output = outcome.output or None
    else:
        raise TypeError(f"an agent returns Complete or Suspend, not {type(outcome).__name__}")
    ctx.stage_end(continuation)
    await ctx.flush_longterm()
    memory, cache = ctx.images()
    return ActivationResult(
        status=status,
        events=ctx.traces(),
        intents=ctx.staged_intents,
        output=output,
        memory=memory,
        cache=cache,
        continuation=continuation,
        upserts=ctx.staged_upserts,
        dead_letter=None,
        error=None,
    )


def failed(
    inp: ActivationInput, error: BaseException, position: tuple[str, dict[str, str]] | None, *, budget: bool = False
) -> ActivationResult:
    """A failed attempt; `position` is None where it is not told (a BaseException, no context yet).

    `budget` says that the error is another runtime's `BudgetExceeded`.
    """
    exceeded = budget or isinstance(error, BudgetExceeded)
    reason = REASON_BUDGET if exceeded and inp.batch_trigger is None else REASON_ERROR
    parts = [_safe_repr(error)]
    failure = None
    if position is not None:
        last, failure = position
        parts.append(f"failed_at_step={failure[tracing.FAILURE_STEP]} after={last}")
    parts.append(_batch_suffix(inp))
    detail = " ".join(part for part in parts if part)
    return _refused(inp, "failed", reason, detail, error, failure)


def _refused(
    inp: ActivationInput,
    status: Status,
    reason: str,
    detail: str,
    error: BaseException | None,
    failure: dict[str, str] | None = None,
) -> ActivationResult:
    event = tracing.error_event(
        entity_key=inp.entity_key,
        seq=inp.seq,
        at_ms=inp.now_ms,
        reason=reason,
        error_type=None if error is None else _encodable(type(error).__name__),
        failure=failure,
    )
    dead_letter = ActivationErrorRecord(
        entity_key=inp.entity_key, reason=reason, detail=detail, event_time_ms=inp.now_ms
    )
    return ActivationResult(
        status=status,
        events=(event,),
        intents=(),
        output=None,
        memory=MemoryBlob(),
        cache=LlmCacheBlob(),
        continuation=None,
        upserts=(),
        dead_letter=dead_letter,
        error=error,
    )


def _batch_suffix(inp: ActivationInput) -> str:
    return "" if inp.batch_trigger is None else f"batch_size={len(inp.events)},trigger={inp.batch_trigger}"


def _safe_repr(error: BaseException) -> str:
    try:
        return _encodable(repr(error))
    except BaseException as broken:  # noqa: BLE001 - an agent's own __repr__ may do anything
        return _encodable(f"<{type(error).__name__}, whose repr raises {type(broken).__name__}>")


def _encodable(text: str) -> str:
    """Text that protobuf can hold: lone surrogates are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
