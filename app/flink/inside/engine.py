"""Feeds inputs to a plan: events to the actions they trigger, first in, first out, until nothing is left to do.

What the built-in actions do (chat rounds, retries, tool calls, retrieval) is the framework's own code, over contained
resources. Waiting is skipped, for nothing waits for anybody here.
"""

from __future__ import annotations

import inspect
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from flink_agents.api.events.event import Event, InputEvent

from app.flink.inside.contained import Bench
from app.flink.inside.context import Context, context_class
from app.flink.inside.memory import Store
from app.flink.inside.messages import Ending, Input, InputResult, Request
from app.flink.inside.resources import Resources
from app.flink.inside.run import Run
from app.flink.inside.stops import Stopped

_DETAIL: Final = 4_000
_OWN: Final = "flink_agents."
_OUTPUT: Final = "_output_event"


class Engine:
    """Runs the inputs of one request over one plan; memory is kept by key from input to input."""

    def __init__(self, plan: Any, request: Request) -> None:
        self._plan = plan
        self._request = request
        self._bench = Bench()
        self._resources = Resources(plan, self._bench)
        self._memories: dict[str, Store] = {}
        self._context_class = context_class()

    def feed(self, given: Input) -> InputResult:
        """Run one input to its end, whatever that is."""
        memory = self._memories.setdefault(given.key, Store())
        memory.begin()
        if given.memory is not None:
            memory.load(given.memory)
        run = self._bench.run = Run(self._request, given)
        context = self._context_class(run, self._plan, self._resources, memory)
        error: Exception | None = None
        try:
            with _no_waiting():
                self._begin(run, given)
                self._work(run, context)
            ending, detail = Ending.FINISHED, ""
        except Stopped as stopped:
            ending, detail = stopped.ending, stopped.detail
        except Exception as raised:  # noqa: BLE001  agent code failed: that is a result
            if run.stopped is not None:  # agent code swallowed the end of the run, and failed over it
                ending, detail = run.stopped.ending, run.stopped.detail
            else:
                ending, detail, error = Ending.FAILED, _told(raised), raised
        finally:
            self._bench.run = None
        return InputResult(
            key=given.key,
            seq=given.seq,
            ending=ending,
            detail=detail[:_DETAIL],
            error_type="" if error is None else type(error).__name__,
            error_message=str(error or "")[:_DETAIL],
            action=None if ending is Ending.FINISHED else run.action,
            events=run.sent,
            calls=run.calls,
            memory=memory.dump(),
            reads=sorted(memory.reads),
        )

    def _begin(self, run: Run, given: Input) -> None:
        text = InputEvent(input=given.value).model_dump_json()
        run.send(Event.from_json(text), json.loads(text)["attributes"])

    def _work(self, run: Run, context: Context) -> None:
        while run.queue:
            run.at, event = run.queue.popleft()
            if event.type == _OUTPUT:
                continue
            for name in self._plan.actions_by_event.get(event.type, ()):
                run.action = name
                self._act(run, self._plan.actions[name], event, context)
                run.check()
        run.action = None

    def _act(self, run: Run, action: Any, event: Any, context: Context) -> None:
        function = action.exec
        if type(function).__name__ == "JavaFunction":
            raise run.unsupported(f"the Java action {action.name!r}")
        run.builtin = function.module.startswith(_OWN)
        returned = function(event, context)
        if inspect.isgenerator(returned) or inspect.iscoroutine(returned):
            self._drive(run, action.name, returned)

    def _drive(self, run: Run, name: str, awaiting: Any) -> None:
        """Take an awaiting action to its end; the only thing that it can wait for here is at hand at once."""
        try:
            awaiting.send(None)
        except StopIteration:
            return
        except RuntimeError as error:
            if "event loop" in str(error):
                what = f"the action {name!r}, which uses asyncio beyond awaiting durable_execute_async,"
                raise run.unsupported(what) from error
            raise
        awaiting.close()
        raise run.unsupported(f"the action {name!r}, which awaits something else than durable_execute_async,")


@contextmanager
def _no_waiting() -> Iterator[None]:
    sleep, time.sleep = time.sleep, lambda _seconds: None
    try:
        yield
    finally:
        time.sleep = sleep


def _told(error: Exception) -> str:
    """The error and where in the agent it was raised."""
    return "".join(traceback.format_exception(error, limit=-6))
