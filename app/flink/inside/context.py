"""What an action is given: events to send, resources, memory of the key, functions executed once."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Generator
from typing import Any, Final

from flink_agents.api.events.event import Event
from flink_agents.api.memory_object import MemoryType
from flink_agents.api.runner_context import RunnerContext

from app.flink.inside.contained import is_own
from app.flink.inside.memory import Memory, Store
from app.flink.inside.messages import Ending, Outcome, Policy, tool_digest
from app.flink.inside.resources import Resources
from app.flink.inside.run import Run, plain


class Context(RunnerContext):
    """The context of all actions of one input."""

    def __init__(self, run: Run, plan: Any, resources: Resources, short_term: Store) -> None:
        self._run = run
        self._plan = plan
        self._resources = resources
        self._short_term = short_term
        self._sensory = Store()

    def send_event(self, event: Any) -> None:
        """Send an event on, as Flink does: through JSON, so that what was no part of it is gone."""
        text = event.model_dump_json()
        self._run.send(Event.from_json(text), json.loads(text).get("attributes") or {})

    def get_resource(self, name: str, type: Any, metric_group: Any = None) -> Any:  # noqa: A002  their name for it
        self._run.check()
        return self._resources.get_resource(name, type)

    @property
    def action_config(self) -> Any:
        return self._plan.get_action_config(self._run.action)

    def get_action_config_value(self, key: str) -> Any:
        return (self.action_config or {}).get(key)

    @property
    def sensory_memory(self) -> Memory:
        self._run.check()
        return Memory(MemoryType.SENSORY, self._sensory)

    @property
    def short_term_memory(self) -> Memory:
        self._run.check()
        return Memory(MemoryType.SHORT_TERM, self._short_term)

    @property
    def long_term_memory(self) -> Any:
        raise self._run.unsupported("long-term memory")

    @property
    def agent_metric_group(self) -> Unmeasured:
        return Unmeasured()

    @property
    def action_metric_group(self) -> Unmeasured:
        return Unmeasured()

    @property
    def config(self) -> Any:
        return self._plan.config

    def durable_execute(
        self, func: Callable[..., Any], *args: Any, reconciler: Callable[[], Any] | None = None, **kwargs: Any
    ) -> Any:
        """Give the result of a function, as the job would after a recovery: without calling it again.

        A resource's own is contained already. The job keeps the results of all others outside its event log, so only
        what was handed in answers them; nothing but the policy `allow` runs them. No reconciler is asked.
        """
        run = self._run
        run.check()
        if is_own(func):
            return func(*args, **kwargs)
        name = f"{getattr(func, '__module__', '?')}.{getattr(func, '__qualname__', repr(func))}"
        told = _by_name(func, args, kwargs)
        handling = run.handling("function", name)
        if handling.policy is Policy.BLOCK:
            run.note("function", name, Outcome.REFUSED, request=told, detail="its policy is block")
            raise run.stop(Ending.REFUSED, f"the durable function {name} was called, and its policy is block")
        if handling.policy is Policy.ALLOW:
            return run.execute("function", name, told, lambda: func(*args, **kwargs))
        found = run.tool_answer(tool_digest(name, told))
        if found is not None and found.supplied:
            run.note("function", name, Outcome.ANSWERED, request=told, value=found.value, detail="supplied")
            return copy.deepcopy(found.value)
        if handling.policy is Policy.RECORD and handling.has_answer:
            run.note("function", name, Outcome.STAND_IN, request=told, value=handling.answer)
            return copy.deepcopy(handling.answer)
        run.note("function", name, Outcome.MISSED, request=told)
        raise run.stop(Ending.MISSED, f"no event log holds what the durable function {name} gave")

    def durable_execute_async(
        self, func: Callable[..., Any], *args: Any, reconciler: Callable[[], Any] | None = None, **kwargs: Any
    ) -> Any:
        """The same to be awaited; it runs when it is awaited, at once."""
        return _Awaited(lambda: self.durable_execute(func, *args, **kwargs))

    def close(self) -> None:
        """Nothing is held open."""

    def refuse(self, name: str) -> Any:
        """What a newer release of the framework offers and this engine does not know."""
        raise self._run.unsupported(f"{name} of the runner context")


def _by_name(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call by their names, as far as the function tells them."""
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return plain({"*": list(args), **kwargs} if args else kwargs)
    return plain(dict(bound.arguments))


class _Awaited:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from ()  # makes this a generator, which never waits
        return self._call()


class Unmeasured:
    """A metric group, and every metric in it, that nobody reads."""

    _GROUPS: Final = ("get_sub_group", "get_counter", "get_meter", "get_gauge", "get_histogram")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: self if name in self._GROUPS else 0 if name.startswith("get_") else None


def context_class() -> type[Context]:
    """`Context` with whatever the installed release asks for beyond it, refused by name when it is used."""
    unknown: frozenset[str] = getattr(Context, "__abstractmethods__", frozenset())
    return type("Context", (Context,), {name: _refusing(name) for name in unknown}) if unknown else Context


def _refusing(name: str) -> property:
    return property(lambda context: context.refuse(name))
