"""Dropping, summarising, and saving before a wipe; and when the runtime calls each of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.compaction import (
    DropOldestCompactor,
    ExpiringMemory,
    FlushToLongterm,
    SummarizationView,
    SummarizeCompactor,
)
from app.runtime.context import ActivationContext
from app.runtime.memory import Memory
from app.runtime.model.client import LlmRequest
from app.runtime.outcome import Complete, Suspend
from app.runtime.stores import InMemoryMemoryStore
from app.wire.records import MemoryBlob, serialize
from tests.runtime.running import KEY, NOW, Recorder, answering, ask, names, run


async def test_the_default_compactor_keeps_the_newest_below_its_target() -> None:
    async def agent(ctx: ActivationContext) -> Complete:
        for key in ("a", "b", "c"):
            ctx.memory.set(key, b"x" * 400_000)
        return Complete()

    result = await run(agent)
    assert [entry.key for entry in result.memory.entries] == ["b", "c"]
    bare = await run(agent, settings={"compactor": None})
    assert type(bare.error).__name__ == "MemoryOverflow"


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.integers(0, 20)), max_size=8), st.integers(0, 60)
)
def test_dropping_spares_the_protected_and_stops_at_the_target(sizes: list[tuple[str, bool, int]], target: int) -> None:
    memory = Memory(now_ms=NOW)
    for name, protected, size in sizes:
        memory.set(f"keep/{name}" if protected else name, b"x" * size)
    before = {key: memory.entry_size(key) for key in memory.keys()}  # noqa: SIM118 - Memory is no mapping
    DropOldestCompactor(target_bytes=target, protected_prefixes=("keep/",)).compact(memory)
    left = memory.keys()
    dropped = [key for key in before if key not in left]
    assert not any(key.startswith("keep/") for key in dropped)
    assert dropped == [key for key in before if not key.startswith("keep/")][: len(dropped)]
    if memory.size_bytes > target:
        assert all(key.startswith("keep/") for key in left)
    if dropped:
        assert memory.size_bytes + before[dropped[-1]] > target


def summarizer(**changes: Any) -> SummarizeCompactor:
    def build(old: tuple[bytes, ...], previous: bytes | None) -> LlmRequest:
        return ask(b"|".join([previous or b"-", *old]).decode())

    options: dict[str, Any] = {
        "build_request": build,
        "extract_summary": lambda response: response,
        "source_keys": ("r", "q", "none"),
        "keep_recent": 2,
        "trigger_bytes": 1,
    }
    return SummarizeCompactor(**{**options, **changes})


async def chatty(ctx: ActivationContext) -> Complete:
    ctx.memory.set("summary", b"so far")
    for number in range(4):
        ctx.memory.append("r", f"item {number}".encode())
    ctx.memory.append("q", b"only one")
    ctx.act("pay", "{}")
    return Complete(b"done")


async def test_summarising_folds_all_but_the_newest() -> None:
    provider = answering(b"short")
    result = await run(chatty, provider=provider, settings={"summarizer": summarizer()})
    assert [request.messages for request in provider.requests] == [["so far|item 0|item 1"]]
    memory = Memory(result.memory, now_ms=NOW)
    assert memory.keys() == ("q", "r", "summary")
    assert (memory.ring("r"), memory.get("summary")) == ((b"item 2", b"item 3"), b"short")
    assert names(result.events) == ["ACTIVATION_START", "INTENT_EMITTED", "LLM_CALL", "ACTIVATION_END"]
    assert result.events[-1].step_index == 2


async def test_nothing_old_no_call() -> None:
    provider = answering()
    await run(chatty, provider=provider, settings={"summarizer": summarizer(keep_recent=4)})
    assert provider.call_count == 0


async def test_a_summary_that_saves_nothing_fails_the_activation() -> None:
    result = await run(chatty, provider=answering(b"x" * 12), settings={"summarizer": summarizer()})
    assert isinstance(result.error, ValueError)
    assert result.events[0].attributes["beam_agents.failure.last_event"] == "LLM_CALL"


async def test_keeping_nothing_empties_the_rings() -> None:
    result = await run(chatty, provider=answering(b"s"), settings={"summarizer": summarizer(keep_recent=0)})
    assert [entry.key for entry in result.memory.entries] == ["summary"]


class Watching:
    """A summarizer that asks the model once and remembers what it was given."""

    def __init__(self, trigger_bytes: int) -> None:
        self.trigger_bytes = trigger_bytes
        self.views: list[SummarizationView] = []

    async def compact(self, view: SummarizationView) -> None:
        self.views.append(view)
        await view.call_model(ask("summarize"))


async def test_a_summarizer_runs_once_after_the_agent_and_counts_in_the_continuation() -> None:
    async def agent(ctx: ActivationContext) -> Suspend:
        ctx.memory.set("k", b"v" * 9)
        ctx.request_approval("{}")
        return Suspend()

    watching, probe = Watching(10), Recorder()
    result = await run(agent, settings={"summarizer": watching}, probe=probe)
    assert len(watching.views) == 1
    assert isinstance(watching.views[0], ActivationContext)
    assert names(result.events)[1:] == ["INTENT_EMITTED", "LLM_CALL", "SUSPENDED", "ACTIVATION_END"]
    assert result.continuation is not None
    assert result.continuation.step_index == 2
    assert [report[3] for report in probe.of("model_request")] == [1]
    assert probe.of("memory_read") == [("size_bytes", "", 10)]


async def test_below_its_trigger_a_summarizer_rests_and_a_refused_return_comes_after_it() -> None:
    async def agent(ctx: ActivationContext) -> Any:
        ctx.memory.set("k", b"v" * 8)

    resting = Watching(10)
    await run(agent, settings={"summarizer": resting})
    assert resting.views == []
    running = Watching(9)
    result = await run(agent, settings={"summarizer": running})
    assert len(running.views) == 1
    assert (type(result.error), result.events[0].attributes["beam_agents.failure.step"]) == (TypeError, "1")


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="source_keys"):
        summarizer(source_keys=())
    with pytest.raises(ValueError, match="keep_recent"):
        summarizer(keep_recent=-1)
    with pytest.raises(ValueError, match="target_bytes"):
        DropOldestCompactor(target_bytes=-1)


async def test_a_wiped_memory_can_be_saved_first() -> None:
    store, blob = InMemoryMemoryStore(), MemoryBlob(state_schema_version=1)
    await FlushToLongterm()(store, ExpiringMemory(KEY, 4, blob, NOW))
    record = await store.load(KEY, "working_memory")
    assert record is not None
    assert (record.value, record.seq, record.updated_at_ms) == (serialize(blob), 4, NOW)
