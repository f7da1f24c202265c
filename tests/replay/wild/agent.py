"""An agent that does what its event says; what it learned flows wherever the script lets it.

Loaded twice: by the pipeline that records it, and by the replay. It gives the same results from the same inputs,
whatever else happens in either process, but for the tool `noisy`.
"""

import asyncio
import json
import random
import time
import uuid
import zlib
from datetime import UTC, datetime

from beam_agents import Escalate, HitlPolicy
from beam_agents._protos import TraceEvent
from beam_agents.core.agent import Complete, Suspend
from beam_agents.core.batching import BatchPolicy
from beam_agents.model.client import LlmRequest, LlmResponse, ProviderError, ServerError
from beam_agents.model.facade import CircuitBreaker, DecodedResponse, LlmFacade, RetryPolicy, TokenUsage
from beam_agents.tools import ToolRegistry, tool

WORLD = {"calls": 0, "retries": {}}


def escalate(fallback):
    return Escalate("boss", timeout_ms=500)


CONFIG = {"hitl_policy": HitlPolicy(timeout_ms=900, intent_ttl_ms=800, max_escalations=2, on_timeout=escalate)}
BATCH = {**CONFIG, "batch_policy": BatchPolicy.ADAPTIVE, "max_batch_size": 3}

TOOLS = ToolRegistry()


@tool
def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


@tool
def noisy(x: int) -> str:
    """Another answer each time."""
    return f"{x}/{random.random()}"


@tool
def order_of(x: int) -> str:
    """The order of a number."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(x)))


TOOLS.register(double)
TOOLS.register(order_of)
TOOLS.register(noisy)


def decode(data):
    return DecodedResponse(TokenUsage(len(data), 1, len(data) + 1), data.decode())


class Provider:
    """Answers every question anew, after a number of turns of the loop that hangs on the question."""

    async def complete(self, request):
        text = request.messages[-1]
        WORLD["calls"] += 1
        for _ in range(zlib.crc32(text.encode()) % 4):
            await asyncio.sleep(0)
        tried = WORLD["retries"].get(text, 0)
        WORLD["retries"][text] = tried + 1
        if text.startswith("shaky") and tried % 3 != 2:
            raise ServerError(503)
        return LlmResponse(f"{WORLD['calls']}:{text}".encode())


def make_provider():
    return Provider()


class Learned:
    """What one activation has learned so far."""

    def __init__(self, ctx):
        self.ctx = ctx
        self.facts = []

    def add(self, fact):
        self.facts.append(str(fact))

    def digest(self):
        return f"{zlib.crc32('|'.join(self.facts).encode()):08x}"


async def follow_event(ctx):
    learned = Learned(ctx)
    if ctx.is_resume:
        scripts = [ctx.snapshot]
        answer = ctx.resume_approval or ctx.resume_result
        learned.add(str(answer))
    else:
        scripts = ctx.events
    for script in scripts:
        outcome = await follow(learned, json.loads(script or b"[]"))
        if outcome is not None:
            return outcome
    return Complete()


AGENT = follow_event


async def follow(learned, script):
    for name, *arguments in script:
        outcome = await globals()[f"do_{name}"](learned, *arguments)
        if outcome is not None:
            return outcome
    return None


# Memory


async def do_get(learned, key):
    try:
        learned.add(learned.ctx.memory.get(key))
    except TypeError:
        learned.add("no scalar")


async def do_ring(learned, key):
    try:
        learned.add(learned.ctx.memory.ring(key))
    except TypeError:
        learned.add("no ring")


async def do_keys(learned):
    learned.add(learned.ctx.memory.keys())


async def do_size(learned):
    learned.add(learned.ctx.memory.size_bytes)


async def do_set(learned, key, value):
    learned.ctx.memory.set(key, value.encode())


async def do_keep(learned, key):
    learned.ctx.memory.set(key, learned.digest().encode())


async def do_stamp(learned, key):
    learned.ctx.memory.set(key, str(time.time_ns()).encode())


async def do_checkpoint(learned, text):
    """As frameworks keep their own state: what was there, and one more message with an id and the time of day."""
    held = learned.ctx.memory.get("__graph__/state") or b""
    name, now = uuid.uuid4(), datetime.now(UTC).isoformat()
    learned.ctx.memory.set("__graph__/state", held + f"{name} at {now}: {text}; last {name}\n".encode())


async def do_note(learned, source, value):
    """Keep in a framework's state what the activation was given: by its event, a model, its memory or a tool."""
    ctx = learned.ctx
    if source == "model":
        value = (await ctx.call_model(request(value))).response.decode()
    elif source == "memory":
        value = ctx.memory.get(value).decode()
    elif source == "tool":
        value = await ctx.run_tool("order_of", {"x": value})
    held = ctx.memory.get("__graph__/state") or b""
    ctx.memory.set("__graph__/state", held + f"order {value}\n".encode())


async def do_entry(learned):
    """One more entry of a framework's ring, under an id of its own."""
    learned.ctx.memory.append("__graph__/entries", str(uuid.uuid4()).encode(), max_items=9)


async def do_clock(learned, grain):
    """Two readings of the clock, the first of them kept twice."""
    if grain == "epoch":
        first, second = time.time(), time.time()
    else:
        first, second = (datetime.now(UTC).isoformat(timespec=grain) for _ in range(2))
    held = learned.ctx.memory.get("__graph__/state") or b""
    learned.ctx.memory.set("__graph__/state", held + f"made {first}, sent {second}, seen {first}\n".encode())


async def do_append(learned, key, value):
    try:
        learned.ctx.memory.append(key, value.encode(), max_items=3)
    except TypeError:
        learned.add("scalar there")


async def do_delete(learned, key):
    learned.ctx.memory.delete(key)


# Model and tools


async def do_ask(learned, text):
    learned.add((await learned.ctx.call_model(request(text))).response)


async def do_tell(learned, text):
    await do_ask(learned, f"{text} {learned.digest()}")


def request(text):
    return LlmRequest(model_id="m", messages=[text], tools_schema=None, sampling_params=None)


async def do_race(learned, *texts):
    """Several questions at once; what comes back first is learned first."""

    async def one(text):
        learned.add((await learned.ctx.call_model(request(text))).response)

    await asyncio.gather(*(one(text) for text in texts))


async def do_gather(learned, *texts):
    """Several questions at once, learned in the order of the questions."""
    for answer in await asyncio.gather(*(learned.ctx.call_model(request(text)) for text in texts)):
        learned.add(answer.response)


async def do_facade(learned, text, step):
    ctx = learned.ctx
    facade = LlmFacade(
        ctx._provider,
        ctx._replay_cache,
        now_ms=ctx.now_ms,
        rng=random.Random(1),
        sleep=pause,
        breaker=CircuitBreaker(endpoint="m", threshold=2, cooldown_ms=10),
        retry_policy=RetryPolicy(3, 1, 2),
        decode=decode,
        staging=ctx,
    )
    try:
        found = await facade.complete(request(text), entity_key=ctx.entity_key, seq=ctx.seq, step_index=step)
    except ProviderError:
        learned.add("provider failed")
        return
    learned.add(found.response.response)


async def pause(ms):
    await asyncio.sleep(0)


async def do_double(learned, x):
    learned.add(await learned.ctx.run_tool("double", {"x": x}))


async def do_noisy(learned, x):
    learned.add(await learned.ctx.run_tool("noisy", {"x": x}))


# How it is served


async def do_tally(learned):
    learned.add(learned.ctx.tally())


async def do_blob(learned):
    learned.add([(entry.cache_key, entry.created_at_ms) for entry in learned.ctx.cache_blob().entries])


async def do_staged(learned):
    learned.add([dict(sorted(event.attributes.items())) for event in learned.ctx.staged_traces])


# Events of its own


async def do_nest(learned, depth, trace):
    """A span of its own and others inside it, under the activation's trace id or one of its own."""
    ctx = learned.ctx
    parent = ctx.trace.span_id
    for level in range(depth):
        span = bytes([level + 1]) * 8
        event = TraceEvent(span_id=span, parent_span_id=parent, event_type=3, start_ms=ctx.now_ms, end_ms=ctx.now_ms)
        event.attributes["depth"] = str(level)
        if trace:
            event.trace_id = trace.encode() * 16
        if not trace or trace == "k":
            event.entity_key, event.seq = ctx.entity_key, ctx.seq
        ctx.stage_trace(event)
        parent = span


# Endings


async def do_act(learned, name, ttl_ms=None):
    learned.ctx.act(name, '{"n": 1}', ttl_ms=ttl_ms)


async def do_do(learned, name):
    learned.ctx.act(name, json.dumps({"learned": learned.digest()}))


async def do_approve(learned):
    learned.ctx.request_approval(json.dumps({"learned": learned.digest()}))


async def do_if(learned, then, otherwise):
    return await follow(learned, then if int(learned.digest(), 16) % 2 else otherwise)


async def do_suspend(learned, then):
    return Suspend(json.dumps(then).encode())


async def do_wait(learned, then):
    return Suspend(json.dumps([["fact", learned.digest()], *then]).encode())


async def do_pause(learned, then):
    """As frameworks suspend: under an id of the pause."""
    return Suspend(json.dumps([["resume", uuid.uuid4().hex], *then]).encode(), adapter="graph")


async def do_resume(learned, name):
    """As frameworks resume: what goes on is noted with the id of the pause."""
    held = learned.ctx.memory.get("__graph__/state") or b""
    learned.ctx.memory.set("__graph__/state", held + f"resumed {name}\n".encode())


async def do_fact(learned, fact):
    learned.add(fact)


async def do_out(learned):
    return Complete(learned.digest().encode())


async def do_end(learned):
    return Complete(b"done")


async def do_fail(learned):
    raise ValueError(learned.digest())
