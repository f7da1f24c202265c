"""Run one activation on the `beam_agents` that the build's own environment holds, instead of on our runtime.

The package's own activation is driven through what it makes public, with our evidence, our cache and our tripwire; what
it does is watched by wrapping public methods. Adapters to other frameworks are then the package's own. A version that
this was not tested with is refused. Records of the two sides pass through bytes.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import platform
from dataclasses import replace
from functools import cache
from typing import Any, Final

from app.replay.code import BadCode, LoadedCode, import_code
from app.replay.peer_watch import Watched, watch
from app.replay.recorder import Recorder
from app.replay.rerun import conclude, race
from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.replay.tripwire import Tripwire
from app.runtime import trace as tracing
from app.runtime.activation import ActivationInput, ActivationResult, contain, failed
from app.runtime.model.client import ProviderError
from app.runtime.settings import ActivationSettings
from app.wire.records import Continuation, LlmCacheBlob, MemoryBlob, ToolIntent, TraceEvent

DRIVER: Final = "beam_agents"
PACKAGE: Final = "beam-agents"
TESTED: Final = ("1.0.0a1",)


class Peer:
    """The parts of the installed package that are used here, by name."""

    def __init__(self) -> None:
        def part(module: str) -> Any:
            return importlib.import_module(f"beam_agents.{module}")

        self.version = installed_version()
        self.protos = part("_protos")
        self.loop = part("core.loop")
        self.migration = part("core.migration")
        self.transform = part("core.transform")
        self.batching = part("core.batching")
        self.client = part("model.client")
        self.facade = part("model.facade")
        self.stores = part("memory.stores")
        self.tools = part("tools")
        self.watched = Watched(
            context=part("core.context").ActivationContext,
            memory=part("memory").Memory,
            cache=part("model.replay_cache").ReplayCache,
            facade=self.facade.LlmFacade,
            tools=self.tools,
            stores=self.stores,
        )


@cache
def _peer() -> Peer:
    return Peer()


def installed_version() -> str:
    """What the environment holds."""
    return importlib.metadata.version(PACKAGE)


def warm() -> None:
    """Import the package before any run: that takes seconds."""
    if installed_version() in TESTED:
        _peer()
        # Clients of model services tell the server what machine they run on, and Python asks a program for it, once.
        platform.uname().processor  # noqa: B018  what is asked for is kept


def run(request: RerunRequest) -> RerunResult:
    """Load the code and run the activation; failures of the code are results, not exceptions."""
    result = RerunResult(driver=DRIVER, driver_version=installed_version())
    if result.driver_version not in TESTED:
        result.outcome = RerunResult.REFUSED
        result.refusal = (
            f"the build's environment holds {PACKAGE} {result.driver_version}, and the driver {DRIVER!r} was tested"
            f" with {', '.join(TESTED)} only; install that there, or choose the driver 'runtime'"
        )
        return result
    loop = asyncio.new_event_loop()
    try:
        _execute(request, import_code(request.code), loop, result)
    except BadCode as error:
        result.outcome, result.refusal = RerunResult.REFUSED, str(error)
    except _peer().migration.StateMigrationError as error:
        result.outcome, result.refusal = RerunResult.UNMIGRATABLE, str(error)
    finally:
        loop.close()
    return result


def _execute(request: RerunRequest, code: LoadedCode, loop: asyncio.AbstractEventLoop, result: RerunResult) -> None:
    peer = _peer()
    result.may_vary = code.may_vary
    config = _config(peer, code)
    arguments = _state(peer, request) | _trigger(peer, request)
    if request.kind == RerunRequest.START and not request.batch_trigger and _batches(peer, code):
        result.batch_unknown = True
        return
    tripped: asyncio.Future[None] = loop.create_future()
    recorder = Recorder(request, result, code.decode)
    tripwire = Tripwire(request, tripped, recorder.step_of)
    watching = watch(peer.watched, recorder, request)
    settings = ActivationSettings(
        activation_timeout_s=config.activation_timeout_s, cancel_grace_s=config.cancel_grace_s
    )
    attempt = peer.loop.run_activation(
        watching.agent(code.agent),
        entity_key=request.entity_key,
        seq=request.seq,
        now_ms=request.clock_ms,
        provider=_Provider(peer, tripwire, watching.answered),
        compactor=watching.compactor(config.compactor),
        summarizer=watching.summarizer(config.summarizer),
        default_hitl_timeout_ms=config.hitl_policy.timeout_ms,
        intent_ttl_ms=config.hitl_policy.intent_ttl_ms,
        approval_channel=config.hitl_policy.approval_channel,
        decode=code.decode,
        tool_registry=code.registry,
        tool_runner=watching.tool_runner(),
        longterm_store=None if config.longterm_memory is None else watching.store(),
        max_tokens_per_activation=config.max_tokens_per_activation,
        **arguments,
    )
    inp = _input(request)
    told = _told(peer, attempt, inp, watching.staged)
    conclude(result, tripwire, recorder, race(loop, contain(told, inp, settings, stop=tripped)))


async def _told(peer: Peer, attempt: Any, inp: ActivationInput, staged: Any) -> ActivationResult:
    """How the package's attempt came out, in our words."""
    try:
        done = await attempt
    except peer.loop.ActivationFailed as failure:
        cause = failure.__cause__ or failure
        at = failure.context
        position = {
            tracing.FAILURE_STEP: str(at.step_index),
            tracing.FAILURE_LAST_EVENT: at.last_event,
            tracing.FAILURE_STAGED_INTENTS: str(at.staged_intents),
            tracing.FAILURE_LLM_CALLS: str(at.llm_calls),
        }
        budget = isinstance(cause, peer.facade.BudgetExceeded)
        return replace(failed(inp, cause, (at.last_event, position), budget=budget), staged=_events(staged()))
    except peer.migration.StateMigrationError:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit and its like pass through the package unwrapped
        return replace(failed(inp, error, None), staged=_events(staged()))
    return ActivationResult(
        status=done.status,
        events=_events(done.traces),
        intents=tuple(ToolIntent.FromString(_bytes(intent)) for intent in done.intents),
        output=done.outputs[0] if done.outputs else None,
        memory=MemoryBlob.FromString(_bytes(done.memory_blob)),
        cache=LlmCacheBlob.FromString(_bytes(done.cache_blob)),
        continuation=None if done.continuation is None else Continuation.FromString(_bytes(done.continuation)),
        upserts=(),
        dead_letter=None,
        error=None,
    )


class _Provider:
    """Our tripwire as the package's kind of client; `answered` hears what the recorded answers on its side gave."""

    def __init__(self, peer: Peer, tripwire: Tripwire, answered: Any) -> None:
        self._peer = peer
        self._tripwire = tripwire
        self._answered = answered

    async def complete(self, request: Any) -> Any:
        try:
            response = (await self._tripwire.complete(request)).response
        except ProviderError as error:
            raise self._peer.client.ProviderError(str(error)) from None
        self._answered(request, response)
        return self._peer.client.LlmResponse(response=response)


def _config(peer: Peer, code: LoadedCode) -> Any:
    def no_provider() -> None:
        raise AssertionError("a re-run never builds a provider")

    arguments = {"decode": code.decode, **code.config}
    if code.registry is not None:
        arguments["tool_registry"] = code.registry
    try:
        return peer.transform.AgentConfig(no_provider, **arguments)
    except (TypeError, ValueError) as error:
        raise BadCode(f"--config: {error}") from error


def _state(peer: Peer, request: RerunRequest) -> dict[str, Any]:
    """The state blobs, brought to the schema of the package and of the agent's own migrations."""
    protos, migrate = peer.protos, peer.migration.migrate_to_current
    state: dict[str, Any] = {
        "memory_blob": migrate(protos.MemoryBlob.FromString(_bytes(request.memory))),
        "cache_blob": migrate(protos.LlmCacheBlob.FromString(_bytes(request.cache))),
    }
    if request.kind == RerunRequest.RESUME:
        continuation = migrate(protos.Continuation.FromString(_bytes(request.continuation)))
        state |= {"snapshot": continuation.snapshot, "step_index": continuation.step_index}
    return state


def _trigger(peer: Peer, request: RerunRequest) -> dict[str, Any]:
    envelope = request.envelopes[0]
    payload = envelope.WhichOneof("payload")
    if request.kind == RerunRequest.RESUME:
        if payload == "tool_result":
            return {"resume_result": peer.protos.ToolResult.FromString(_bytes(envelope.tool_result))}
        return {"resume_approval": peer.protos.AgentEnvelope.Approval.FromString(_bytes(envelope.approval))}
    if request.batch_trigger:
        return {"events": [one.external_event for one in request.envelopes], "batch_trigger": request.batch_trigger}
    return {"event": envelope.external_event}


def _input(request: RerunRequest) -> ActivationInput:
    """What a failure is told with."""
    return ActivationInput(
        entity_key=request.entity_key,
        seq=request.seq,
        now_ms=request.clock_ms,
        events=tuple(one.external_event for one in request.envelopes),
        batch_trigger=request.batch_trigger or None,
    )


def _batches(peer: Peer, code: LoadedCode) -> bool:
    return code.config.get("batch_policy") is peer.batching.BatchPolicy.ADAPTIVE


def _events(theirs: Any) -> tuple[TraceEvent, ...]:
    return tuple(TraceEvent.FromString(_bytes(event)) for event in theirs)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data
