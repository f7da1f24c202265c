"""Tell the recorder what an installed `beam_agents` does during one run, by wrapping methods that it makes public.

Only what agent code, compactor and summarizer ask for is told: what the package asks its own objects for is no read.
The classes are wrapped for good, which is as long as the process of one run lives.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from app.replay.recorder import Recorder
from app.replay.rerun_pb2 import RerunRequest
from app.wire import identity

_SCALAR: Final = b"\0"
_RING: Final = b"\1"


@dataclass(frozen=True)
class Watched:
    """The package's classes and modules that are wrapped or built upon."""

    context: Any
    memory: Any
    cache: Any
    facade: Any
    tools: Any
    stores: Any


class Watching:
    """One run's watch; `watch` makes it."""

    def __init__(self, parts: Watched, recorder: Recorder, request: RerunRequest) -> None:
        self.recorder = recorder
        self._parts = parts
        self._key, self._seq = request.entity_key, request.seq
        self._cached = {entry.cache_key for entry in request.cache.entries}
        self._inside = 0  # how many of the package's own methods we are in
        self._theirs = False  # whether code of the agent's side runs
        self._context: Any = None

    def agent(self, agent: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """The agent, with a mark on when its code runs and what it was given."""

        async def watched(context: Any) -> Any:
            self._context = context
            with self._theirs_runs():
                return await agent(context)

        return watched

    def staged(self) -> Any:
        """Events that the attempt has staged so far."""
        return () if self._context is None else self._context.staged_traces

    @property
    def step(self) -> int:
        return 0 if self._context is None else int(self._context.step_index)

    def compactor(self, compactor: Any) -> Any:
        """The compactor, whose reads count although it runs within a write."""
        if compactor is None:
            return None
        watching = self

        class Watched:
            def compact(self, memory: Any) -> None:
                inside, watching._inside = watching._inside, 0
                try:
                    compactor.compact(memory)
                finally:
                    watching._inside = inside

        return Watched()

    def summarizer(self, summarizer: Any) -> Any:
        """The summarizer, which reads the size of all memory before anything else."""
        if summarizer is None:
            return None
        watching = self

        class Watched:
            @property
            def trigger_bytes(self) -> int:
                size = watching._context.memory.size_bytes
                watching.recorder.memory_read("size_bytes", "", size)
                trigger: int = summarizer.trigger_bytes
                return trigger

            async def compact(self, view: Any) -> None:
                with watching._theirs_runs():
                    await summarizer.compact(view)

        return Watched()

    def answered(self, request: Any, response: bytes) -> None:
        """A recorded answer was given from the provider's side."""
        key, _ = self._material(request)
        self.recorder.model_answer(key, response, False, self.recorder.step_of(key))

    def tool_runner(self) -> Any:
        """Runs tools as the package does, or gives their recorded answers."""
        watching, tools, recorder = self, self._parts.tools, self.recorder

        class Runner(tools.ToolRunner):  # type: ignore[misc, name-defined]
            async def run(self, tool: Any, arguments: Mapping[str, object]) -> object:
                supplied = None if tool.side_effect else recorder.tool_answer(tool.name, arguments)
                step = watching.step
                try:
                    if supplied is None or not _fits(tool, arguments):
                        supplied = None
                        value = await super().run(tool, arguments)
                    else:
                        value = supplied.value
                except BaseException as error:
                    turned_down = isinstance(error, (tools.SideEffectToolError, tools.ToolArgumentError))
                    recorder.tool_done(tool.name, arguments, None, error, turned_down, False, step)
                    raise
                recorder.tool_done(tool.name, arguments, value, None, False, supplied is not None, step)
                return value

        return Runner()

    def store(self) -> Any:
        """An empty long-term store, which nobody captured."""
        recorder, stores = self.recorder, self._parts.stores

        class Store(stores.InMemoryMemoryStore):  # type: ignore[misc, name-defined]
            async def load(self, entity_key: bytes, key: str) -> Any:
                recorder.longterm_read("load", key)
                return await super().load(entity_key, key)

            async def search(self, entity_key: bytes, prefix: str, limit: int) -> Any:
                recorder.longterm_read("search", prefix)
                return await super().search(entity_key, prefix, limit)

        return Store()

    @contextmanager
    def _theirs_runs(self) -> Iterator[None]:
        self._theirs = True
        try:
            yield
        finally:
            self._theirs = False

    def _material(self, request: Any) -> tuple[str, str]:
        material = identity.request_material(
            entity_key=self._key,
            seq=self._seq,
            model=request.model_id,
            messages=request.messages,
            tools=request.tools_schema,
            params=request.sampling_params,
        )
        return identity.cache_key(material), material

    # What is wrapped. Each returns the method to put in the place of `original`.

    def reading(self, operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A method of memory that tells something of it."""

        @functools.wraps(original)
        def wrapped(memory: Any, *arguments: str, **named: str) -> Any:
            key = "".join((*arguments, *named.values()))
            with self._within() as outermost:
                try:
                    value = original(memory, *arguments, **named)
                except Exception as error:
                    # The size of what is absent; or what is there is of another kind, which tells as much as a value.
                    if outermost:
                        self.recorder.memory_read(operation, key, None if isinstance(error, KeyError) else b"")
                    raise
            if outermost:
                self.recorder.memory_read(operation, key, value)
            return value

        return wrapped

    def writing(self, operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A method of memory that changes it; of a ring, only what is added is told.

        An append that goes through tells that a ring was there, or nothing.
        """
        keys = self._parts.memory.keys

        @functools.wraps(original)
        def wrapped(memory: Any, key: str, *value: bytes, **options: Any) -> Any:
            with self._within() as outermost:
                found = operation == "append" and key in keys(memory)
                done = original(memory, key, *value, **options)
            if outermost and operation == "append":
                self.recorder.memory_read("kind", key, True if found else None)
            if outermost:
                self.recorder.memory_write(operation, key, None, _encoded(operation, *value, **options))
            return done

        return wrapped

    def asking_cache(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The look-up in the replay cache."""

        @functools.wraps(original)
        def wrapped(cache: Any, cache_key: str) -> Any:
            entry = original(cache, cache_key)
            if entry is None:
                if cache_key in self._cached:
                    self.recorder.cache_unusable(cache_key, "expired")
            elif entry.digest_only:
                self.recorder.cache_unusable(cache_key, "digest_only")
            else:
                self.recorder.model_answer(cache_key, entry.response, True, self.recorder.step_of(cache_key))
            return entry

        return wrapped

    def calling_model(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A model call of the context, or of a facade that the agent drives itself."""

        @functools.wraps(original)
        async def wrapped(caller: Any, request: Any, **options: Any) -> Any:
            step = options.get("step_index")
            if step is None:
                step = caller.step_index
            try:
                key, material = self._material(request)
            except (AttributeError, TypeError, ValueError):
                pass  # the package itself says what is wrong with it
            else:
                self.recorder.model_request(request, key, material, int(step))
            return await original(caller, request, **options)

        return wrapped

    def running_tool(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A tool run of the context; one that is turned down by its name never reaches the runner."""
        unknown = self._parts.tools.ToolNotFoundError

        @functools.wraps(original)
        async def wrapped(context: Any, tool_name: str, arguments: Any) -> Any:
            try:
                return await original(context, tool_name, arguments)
            except unknown as error:
                self.recorder.tool_done(tool_name, arguments, None, error, True, False, int(context.step_index))
                raise

        return wrapped

    def staging_intent(self, original: Callable[..., str]) -> Callable[..., str]:
        """A method of the context that stages an intent."""

        @functools.wraps(original)
        def wrapped(context: Any, *arguments: Any, **options: Any) -> str:
            intent_id = original(context, *arguments, **options)
            self.recorder.intent(context.staged_intents[-1])
            return intent_id

        return wrapped

    def showing_serving(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """What of the context shows how model calls were answered."""

        @functools.wraps(original)
        def wrapped(context: Any) -> Any:
            with self._within() as outermost:
                shown = original(context)
            if outermost:
                self.recorder.serving_seen(what)
            return shown

        return wrapped

    @contextmanager
    def _within(self) -> Iterator[bool]:
        """Whether this is a call by the agent's side, and not by another of these methods."""
        outermost = self._theirs and self._inside == 0
        self._inside += 1
        try:
            yield outermost
        finally:
            self._inside -= 1


def watch(parts: Watched, recorder: Recorder, request: RerunRequest) -> Watching:
    """Begin to watch; once in the life of a process."""
    watching = Watching(parts, recorder, request)
    memory, context = parts.memory, parts.context
    for name in ("get", "ring", "keys", "entry_size"):
        setattr(memory, name, watching.reading(name, getattr(memory, name)))
    memory.size_bytes = property(watching.reading("size_bytes", memory.size_bytes.fget))
    for name in ("set", "append", "delete"):
        setattr(memory, name, watching.writing(name, getattr(memory, name)))
    parts.cache.get = watching.asking_cache(parts.cache.get)
    context.call_model = watching.calling_model(context.call_model)
    parts.facade.complete = watching.calling_model(parts.facade.complete)
    context.run_tool = watching.running_tool(context.run_tool)
    context.tally = watching.showing_serving("tally", context.tally)
    context.staged_traces = property(watching.showing_serving("tally", context.staged_traces.fget))
    context.cache_blob = watching.showing_serving("cache", context.cache_blob)
    for name in ("act", "request_approval"):
        setattr(context, name, watching.staging_intent(getattr(context, name)))
    return watching


def _encoded(operation: str, value: bytes = b"", *, item: bytes = b"", **_: Any) -> bytes | None:
    """A written value as it lies in the blob; None for what is gone, or is no bytes and will be refused."""
    given = value or item
    if operation == "delete" or not isinstance(given, bytes):
        return None
    return _SCALAR + given if operation == "set" else _RING + len(given).to_bytes(4, "big") + given


def _fits(tool: Any, arguments: Mapping[str, object]) -> bool:
    """Whether the tool would take the arguments; where not, the package is asked, and refuses them in its own words."""
    try:
        tool.argument_model.model_validate(arguments)
    except ValueError:
        return False
    return True
