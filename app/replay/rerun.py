"""Run one activation from recorded inputs: what the confined child does, and nothing else.

Pure in its inputs: no database, no broker, no clock. The agent's code is imported here, so this
module is only ever called in a process that may run it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from app import __version__
from app.replay.code import BadCode, LoadedCode, load_code
from app.replay.recorder import Recorder, encodable
from app.replay.rerun_pb2 import CacheMiss, RerunRequest, RerunResult
from app.replay.tripwire import Tripwire
from app.runtime.activation import ActivationInput, ActivationResult, Stopped, activate
from app.runtime.settings import ActivationSettings, AgentHooks
from app.wire import identity
from app.wire.migration import StateMigrationError, migrate_to_current

DRIVER: Final = "hindcast"

_STATUS: Final[dict[str, RerunResult.Outcome]] = {
    "completed": RerunResult.COMPLETED,
    "suspended": RerunResult.SUSPENDED,
    "failed": RerunResult.FAILED,
    "timed_out": RerunResult.TIMED_OUT,
}

_SETTINGS: Final = (
    "hitl_policy",
    "activation_timeout_s",
    "cancel_grace_s",
    "compactor",
    "summarizer",
    "max_tokens_per_activation",
)


def run(request: RerunRequest) -> RerunResult:
    """Load the code and run the activation; failures of the code are results, not exceptions."""
    try:
        code = load_code(request.code)
    except BadCode as error:
        return _signed(RerunResult(outcome=RerunResult.REFUSED, refusal=str(error)))
    loop = asyncio.new_event_loop()
    try:
        return execute(request, code, loop)
    finally:
        loop.close()


def execute(request: RerunRequest, code: LoadedCode, loop: asyncio.AbstractEventLoop) -> RerunResult:
    """Run the activation with loaded code on a loop; tasks that agent code leaves are dropped."""
    result = RerunResult(may_vary=code.may_vary)
    try:
        inputs = _inputs(request)
        settings = _settings(code)
    except StateMigrationError as error:
        return _signed(RerunResult(outcome=RerunResult.UNMIGRATABLE, refusal=str(error)))
    except BadCode as error:
        return _signed(RerunResult(outcome=RerunResult.REFUSED, refusal=str(error)))
    if request.kind == RerunRequest.START and not request.batch_trigger and _batches(code):
        return _signed(RerunResult(batch_unknown=True))
    tripped: asyncio.Future[None] = loop.create_future()
    recorder = Recorder(request, result, code.decode)
    tripwire = Tripwire(request, tripped, recorder.step_of)
    hooks = AgentHooks(
        agent=code.agent,
        provider=tripwire,
        registry=code.registry,
        decode=code.decode,
        config=settings,
    )
    conclude(result, tripwire, recorder, race(loop, activate(inputs, hooks, recorder, stop=tripped)))
    return _signed(result)


def conclude(result: RerunResult, tripwire: Tripwire, recorder: Recorder, activation: ActivationResult | None) -> None:
    """Write down how it ended; a tripped wire comes before whatever the agent made of it."""
    recorder.finish()
    result.provider_calls = tripwire.calls
    if tripwire.turns is not None:
        result.options.extend(tripwire.turns.options)
    if tripwire.missed is not None:
        _fill_miss(result, tripwire.missed, recorder)
    elif activation is not None:
        _fill(result, activation)


def race(loop: asyncio.AbstractEventLoop, activation: Coroutine[Any, Any, ActivationResult]) -> ActivationResult | None:
    """The activation's result, or None when the tripwire ended it first.

    A SystemExit inside a task that the agent spawned escapes the loop; it reaches the agent through that
    task as well, so the loop is simply continued.
    """
    loop.set_exception_handler(lambda _loop, _context: None)
    task = loop.create_task(activation)
    while True:
        try:
            return loop.run_until_complete(task)
        except Stopped:
            return None
        except SystemExit:
            if task.done():
                raise


def _inputs(request: RerunRequest) -> ActivationInput:
    is_resume = request.kind == RerunRequest.RESUME
    envelope = request.envelopes[0]
    payload = envelope.WhichOneof("payload")
    return ActivationInput(
        entity_key=request.entity_key,
        seq=request.seq,
        now_ms=request.clock_ms,
        events=() if is_resume else tuple(e.external_event for e in request.envelopes),
        batch_trigger=request.batch_trigger or None,
        resume_result=envelope.tool_result if payload == "tool_result" else None,
        resume_approval=envelope.approval if payload == "approval" else None,
        continuation=migrate_to_current(request.continuation) if is_resume else None,
        memory=migrate_to_current(request.memory),
        cache=migrate_to_current(request.cache),
    )


def _settings(code: LoadedCode) -> ActivationSettings:
    """The pipeline's settings; a long-term store is replaced by an empty one of this process."""
    from app.runtime.config import AgentConfig

    arguments: dict[str, Any] = dict(code.config)
    try:
        config = AgentConfig(_no_provider, decode=code.decode, tool_registry=code.registry, **arguments)
    except (TypeError, ValueError) as error:
        raise BadCode(f"--config: {error}") from error
    values = {name: getattr(config, name) for name in _SETTINGS}
    if config.longterm_memory is not None:
        from app.runtime.stores.base import InMemoryMemoryStore

        values["longterm_store"] = InMemoryMemoryStore()
    return ActivationSettings(**values)


def _batches(code: LoadedCode) -> bool:
    from app.runtime.batching import BatchPolicy

    return code.config.get("batch_policy") is BatchPolicy.ADAPTIVE


def _no_provider() -> None:
    raise AssertionError("a re-run never builds a provider")


def _fill_miss(result: RerunResult, material: str, recorder: Recorder) -> None:
    key = identity.cache_key(material)
    result.outcome = RerunResult.CACHE_MISS
    result.miss.CopyFrom(
        CacheMiss(
            reason=recorder.miss_reason(key),
            cache_key=key,
            request_json=material,
            step_index=recorder.step_of(key),
        )
    )


def _fill(result: RerunResult, activation: ActivationResult) -> None:
    result.outcome = _STATUS[activation.status]
    result.events.extend(activation.events)
    result.intents.extend(activation.intents)
    _fill_output(result, activation.output)
    if activation.error is not None:
        result.error_type = encodable(type(activation.error).__name__)
        result.error_detail = _safe_repr(activation.error)
    if activation.dead_letter is not None:
        result.dead_letter.CopyFrom(activation.dead_letter)
        result.staged.extend(activation.staged)
        return
    result.memory.CopyFrom(activation.memory)
    result.cache.CopyFrom(activation.cache)
    if activation.continuation is not None:
        result.continuation.CopyFrom(activation.continuation)


def _fill_output(result: RerunResult, output: Any) -> None:
    if output is None:
        return
    if isinstance(output, bytes):
        if output:
            result.outputs.append(output)
        return
    result.output_problem = f"the agent's output is a {type(output).__name__}, not bytes"


def _safe_repr(error: BaseException) -> str:
    try:
        return encodable(repr(error)[:10_000])
    except Exception:  # noqa: BLE001 - an agent's own __repr__ may raise anything
        return f"<{encodable(type(error).__name__)} whose repr fails>"


def _signed(result: RerunResult) -> RerunResult:
    result.driver = DRIVER
    result.driver_version = __version__
    return result
