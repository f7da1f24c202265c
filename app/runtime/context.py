"""The context an agent is called with: its event, its memory, the model, the tools, and what it may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.runtime import trace as tracing
from app.runtime.longterm import LongtermMemory
from app.runtime.memory import Memory
from app.runtime.model.budget import TokenBudget
from app.runtime.model.client import LlmRequest, LlmResponse
from app.runtime.model.usage import TokenUsage, call_attributes
from app.runtime.replay_cache import ReplayCache, request_text
from app.runtime.tools import ToolRunner
from app.wire import identity, migration
from app.wire.records import AgentEnvelope, Continuation, LlmCacheBlob, MemoryBlob, ToolIntent, ToolResult, TraceEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.runtime.outcome import Suspend
    from app.runtime.probe import Probe
    from app.runtime.settings import AgentHooks
    from app.runtime.stores.base import MemoryRecord, MemoryStore


@dataclass(frozen=True)
class ActivationInput:
    """One attempt to run: which, when, on what state.

    `events` holds the external event bytes (one, or all members of a batch), `batch_trigger` is size
    or timer on an ADAPTIVE flush. Exactly a resume has a `continuation`, and one of the two results.
    """

    entity_key: bytes
    seq: int
    now_ms: int
    events: tuple[bytes, ...] = ()
    batch_trigger: str | None = None
    resume_result: ToolResult | None = None
    resume_approval: AgentEnvelope.Approval | None = None
    continuation: Continuation | None = None
    memory: MemoryBlob | None = None
    cache: LlmCacheBlob | None = None


@dataclass(frozen=True)
class Tally:
    """What an activation did so far, in numbers; tokens are those of calls that reached the provider."""

    steps: int
    llm_calls: int
    cache_hits: int
    tool_calls: int
    intents: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ActivationContext:
    """One attempt as the agent sees it. Everything it stages leaves only when the attempt commits."""

    def __init__(self, inp: ActivationInput, hooks: AgentHooks, probe: Probe | None = None) -> None:
        settings = hooks.config
        continuation = migration.migrate_to_current(inp.continuation)
        self.entity_key = inp.entity_key
        self.seq = inp.seq
        self.now_ms = inp.now_ms
        self.is_resume = continuation is not None
        self.is_batch = inp.batch_trigger is not None
        self.event: bytes | list[bytes] = list(inp.events) if self.is_batch else b"".join(inp.events[:1])
        self.snapshot: bytes = b"" if continuation is None else continuation.snapshot
        self.resume_result = inp.resume_result
        self.resume_approval = inp.resume_approval
        self._entry_step = self._cursor = 0 if continuation is None else continuation.step_index
        self._policy = settings.hitl_policy
        self._decode = hooks.decode
        self._probe = probe
        self._provider = hooks.provider
        self._replay_cache = ReplayCache(migration.migrate_to_current(inp.cache), now_ms=inp.now_ms, probe=probe)
        self._store = settings.longterm_store
        self._longterm = None if self._store is None else self._open_longterm(self._store)
        self._memory = Memory(
            migration.migrate_to_current(inp.memory),
            now_ms=inp.now_ms,
            compactor=settings.compactor,
            longterm=self._longterm,
            probe=probe,
        )
        limit = settings.max_tokens_per_activation
        self._budget = None if limit is None else TokenBudget(limit)
        self._tools = ToolRunner(hooks.registry, probe=probe)
        self._intents: list[ToolIntent] = []
        self._llm_calls = self._cache_hits = self._tool_calls = 0
        self._tokens = (0, 0, 0)
        self._trace = tracing.Trace(
            entity_key=inp.entity_key,
            seq=inp.seq,
            now_ms=inp.now_ms,
            entry_step=self._entry_step,
            is_resume=self.is_resume,
        )
        self._trace.start(_batch_attributes(inp))

    def _open_longterm(self, store: MemoryStore) -> LongtermMemory:
        return LongtermMemory(store, entity_key=self.entity_key, seq=self.seq, now_ms=self.now_ms, probe=self._probe)

    # What the agent reads

    @property
    def memory(self) -> Memory:
        """The key's working memory."""
        return self._memory

    @property
    def trace(self) -> tracing.TraceIds:
        """The ids of this attempt's activation span."""
        return self._trace.ids

    @property
    def events(self) -> tuple[bytes, ...]:
        """Every event of this activation; none on a resume."""
        if self.is_resume:
            return ()
        return tuple(self.event) if isinstance(self.event, list) else (self.event,)

    @property
    def single_event(self) -> bytes:
        """The event of an activation that has one; raises TypeError in a batch, b"" on a resume."""
        if isinstance(self.event, list):
            raise TypeError(f"this activation is a batch of {len(self.event)} events; use ctx.events")
        return self.event

    @property
    def step_index(self) -> int:
        """The step that the next model call or intent takes."""
        return self._cursor

    @property
    def iterations(self) -> int:
        """Steps taken by this attempt."""
        return self._cursor - self._entry_step

    @property
    def staged_intents(self) -> tuple[ToolIntent, ...]:
        """Intents staged by this attempt, in order."""
        return tuple(self._intents)

    @property
    def staged_traces(self) -> tuple[TraceEvent, ...]:
        """Events staged by this attempt, in order; those of model calls say how they were answered."""
        self._serving_seen("tally")
        return self.traces()

    @property
    def staged_upserts(self) -> tuple[MemoryRecord, ...]:
        """Long-term saves staged by this attempt."""
        return () if self._longterm is None else self._longterm.staged

    @property
    def longterm_store(self) -> MemoryStore | None:
        """The configured long-term store."""
        return self._store

    # What the agent does

    async def call_model(self, request: LlmRequest) -> LlmResponse:
        """Answer a request from the cache or the provider; takes one step.

        Raises BudgetExceeded, or what the provider or the decode hook raised.
        """
        if self._budget is not None:
            self._budget.check()
        step = self._cursor
        self._cursor = step + 1
        material = request_text(request, entity_key=self.entity_key, seq=self.seq)
        key = identity.cache_key(material)
        if self._probe is not None:
            self._probe.model_request(request, key, material, step)
        entry = self._replay_cache.get(key)
        hit = entry is not None and not entry.digest_only
        if entry is not None and hit:
            response = LlmResponse(entry.response)
            self._cache_hits += 1
        else:
            response = await self._provider.complete(request)
            self._llm_calls += 1
            self._replay_cache.put(key, response.response)
        if self._probe is not None:
            self._probe.model_answer(key, response.response, hit, step)
        usage = None if self._decode is None else self._decode(response.response).usage
        if usage is not None and not hit:
            self.accumulate_usage(usage)
        self._trace.llm_call(step, call_attributes(request.model_id, cache_hit=hit, billed=not hit, usage=usage))
        if self._budget is not None and usage is not None:
            self._budget.charge(usage.total_tokens)
        return response

    async def run_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run a read-only tool; takes no step. Raises ToolError subclasses or what the tool raised."""
        value = await self._tools.run(name, arguments, step_index=self._cursor)
        self._tool_calls += 1
        self._trace.tool_call(self._cursor, name)
        return value

    def act(self, tool_name: str, args_json: str, *, ttl_ms: int | None = None) -> str:
        """Stage a tool intent and return its id; the arguments are sent verbatim. Takes one step."""
        return self._stage_intent(ToolIntent.TOOL, tool_name, args_json, ttl_ms)

    def request_approval(self, args_json: str, *, channel: str | None = None, ttl_ms: int | None = None) -> str:
        """Stage an approval intent on a channel (None: the policy's) and return its id. Takes one step."""
        name = self._policy.approval_channel if channel is None else channel
        return self._stage_intent(ToolIntent.APPROVAL, name, args_json, ttl_ms)

    def stage_trace(self, event: TraceEvent) -> None:
        """Stage an event of the agent's own; only the ids it left empty are filled, in place."""
        self._trace.stage(event)

    def stage_trace_event(self, event: TraceEvent) -> None:
        """The same as `stage_trace`, under the name that a facade calls."""
        self._trace.stage(event)

    def accumulate_usage(self, usage: TokenUsage) -> None:
        """Add the token counts of one provider call to the tally."""
        prompt, completion, total = self._tokens
        self._tokens = (
            prompt + usage.prompt_tokens,
            completion + usage.completion_tokens,
            total + usage.total_tokens,
        )

    # What the agent may inspect

    def memory_blob(self) -> MemoryBlob:
        """Working memory as it would be committed now."""
        return self._memory.to_blob()

    def cache_blob(self) -> LlmCacheBlob:
        """The replay cache as it would be committed now."""
        self._serving_seen("cache")
        return self._replay_cache.image()

    def tally(self) -> Tally:
        """Steps, calls and tokens so far."""
        self._serving_seen("tally")
        prompt, completion, total = self._tokens
        return Tally(
            steps=self.iterations,
            llm_calls=self._llm_calls,
            cache_hits=self._cache_hits,
            tool_calls=self._tool_calls,
            intents=len(self._intents),
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=total,
        )

    def build_continuation(self, suspend: Suspend) -> Continuation:
        """What a suspension now would be resumed from; its deadline never outlives an intent of this attempt."""
        timeout_ms = self._policy.timeout_ms if suspend.timeout_ms is None else suspend.timeout_ms
        deadlines = [self.now_ms + timeout_ms, *(intent.expires_at_ms for intent in self._intents)]
        return Continuation(
            state_schema_version=migration.CURRENT_STATE_SCHEMA_VERSION,
            seq=self.seq,
            step_index=self._cursor,
            pending_intent_ids=[intent.intent_id for intent in self._intents],
            adapter=suspend.adapter,
            snapshot=suspend.snapshot,
            suspended_at_ms=self.now_ms,
            deadline_ms=min(deadlines),
        )

    def _serving_seen(self, what: str) -> None:
        if self._probe is not None:
            self._probe.serving_seen(what)

    # What the runtime does

    def traces(self) -> tuple[TraceEvent, ...]:
        """The events to emit."""
        return tuple(self._trace.events)

    def stage_end(self, continuation: Continuation | None) -> None:
        """Stage what ends a trace: SUSPENDED when there is a continuation, then ACTIVATION_END."""
        if continuation is None:
            self._trace.end(self._cursor, "completed")
            return
        self._trace.suspended(
            self._cursor,
            {
                tracing.DEADLINE: str(continuation.deadline_ms),
                tracing.ADAPTER: continuation.adapter,
                tracing.PENDING_INTENT_IDS: ",".join(continuation.pending_intent_ids),
            },
        )
        self._trace.end(self._cursor, "suspended")

    async def flush_longterm(self) -> None:
        """Write the staged long-term saves; raises LongtermFlushFailed."""
        if self._longterm is not None:
            await self._longterm.flush()

    def images(self) -> tuple[MemoryBlob, LlmCacheBlob]:
        """The blobs to commit."""
        return self._memory.image(), self._replay_cache.image()

    def failure_position(self) -> tuple[str, dict[str, str]]:
        """Where a failure struck: the last staged event's name, and the attributes that say it on the trace."""
        last = self._trace.last_event
        return last, {
            tracing.FAILURE_STEP: str(self._cursor),
            tracing.FAILURE_LAST_EVENT: last,
            tracing.FAILURE_STAGED_INTENTS: str(len(self._intents)),
            tracing.FAILURE_LLM_CALLS: str(self._llm_calls),
        }

    def _stage_intent(self, kind: ToolIntent.Kind, tool_name: str, args_json: str, ttl_ms: int | None) -> str:
        step = self._cursor
        intent = ToolIntent(
            intent_id=identity.intent_id(self.entity_key, self.seq, step),
            entity_key=self.entity_key,
            seq=self.seq,
            step_index=step,
            tool_name=tool_name,
            args_json=args_json,
            created_at_ms=self.now_ms,
            expires_at_ms=self.now_ms + (self._policy.intent_ttl_ms if ttl_ms is None else ttl_ms),
            kind=kind,
            trace_id=self._trace.ids.trace_id,
        )
        self._cursor = step + 1
        self._intents.append(intent)
        self._trace.intent_emitted(
            step,
            {
                tracing.INTENT_ID: intent.intent_id,
                tracing.TOOL_NAME: intent.tool_name,
                tracing.INTENT_KIND: "APPROVAL" if kind == ToolIntent.APPROVAL else "TOOL",
                tracing.EXPIRES_AT: str(intent.expires_at_ms),
            },
        )
        if self._probe is not None:
            self._probe.intent(intent)
        return intent.intent_id


def _batch_attributes(inp: ActivationInput) -> dict[str, str]:
    if inp.batch_trigger is None:
        return {}
    return {tracing.BATCH_SIZE: str(len(inp.events)), tracing.BATCH_TRIGGER: inp.batch_trigger}
