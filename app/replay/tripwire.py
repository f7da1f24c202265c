"""The provider's side of a re-run: recorded answers, the failures that came before them, and the wire that trips."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from app.replay.recorder import encodable
from app.replay.rerun_pb2 import RerunRequest
from app.runtime.model.client import LlmResponse, ProviderError
from app.wire import identity

IDLE_TURNS: Final = 20  # turns of the loop without a new request, after which nobody else is about to ask


class Tripwire:
    """Gives recorded answers, after as many failures as were recorded; a missing one trips the wire.

    A tripped request is never answered, not even with an error, so agent code cannot swallow it.
    """

    def __init__(
        self, request: RerunRequest, tripped: asyncio.Future[None], step_of: Callable[[str], int] = lambda _key: 0
    ) -> None:
        """`step_of` tells the step of a request that was just made, by its cache key."""
        self._key = request.entity_key
        self._seq = request.seq
        self._answers = {
            entry.cache_key: entry.response for entry in request.provider_answers.entries if not entry.digest_only
        }
        self._tripped = tripped
        self._failures = _Failures(request, step_of)
        self.turns = Turns(list(request.turns)) if request.in_turn else None
        self.missed: str | None = None
        self.calls = 0

    async def complete(self, request: Any) -> LlmResponse:
        material = self._material(request)
        key = identity.cache_key(material)
        recorded = self._answers.get(key)
        if recorded is not None:
            if self._failures.strike(key, str(request.model_id)):
                raise ProviderError("a try that failed before the recorded answer came")
            if self.turns is not None:
                await self.turns.wait()
            return LlmResponse(recorded)
        self.calls += 1
        if self.missed is None:
            self.missed = material
        if not self._tripped.done():
            self._tripped.set_result(None)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a tripped request is never answered")

    def _material(self, request: Any) -> str:
        """The request's canonical text; an agent that asks the provider itself may hand it what JSON cannot hold."""
        parts = {
            "model": request.model_id,
            "messages": request.messages,
            "tools": request.tools_schema,
            "params": request.sampling_params,
        }
        try:
            material = identity.request_material(entity_key=self._key, seq=self._seq, **parts)
            material.encode("utf-8")
        except (TypeError, ValueError):
            shown = {name: encodable(value) for name, value in parts.items()}
            return identity.request_material(entity_key=self._key, seq=self._seq, **shown)
        return material


class _Failures:
    """How often each call has yet to fail before it is answered."""

    def __init__(self, request: RerunRequest, step_of: Callable[[str], int]) -> None:
        self._step_of = step_of
        self._recorded = {(retries.step_index, retries.model): list(retries.failed) for retries in request.retries}
        self._left: dict[str, int] = {}

    def strike(self, key: str, model: str) -> bool:
        """Whether this try fails; the first try of a call takes up what was recorded for its step and model."""
        left = self._left.pop(key, None)
        if left is None:
            recorded = self._recorded.get((self._step_of(key), model), [0])
            left = recorded.pop(0) if len(recorded) > 1 else recorded[0]
        if left:
            self._left[key] = left - 1
        return left > 0


class Turns:
    """Answers waiting requests one at a time, each only once nobody else is about to ask; or at once.

    Two kinds of choices are made in turn, and `chosen` says how, 0 where it says nothing: of a request, whether it
    waits (0) or is answered at once (1); of the waiting ones, which is answered next, by age. `options` is how many
    there were: a request that never waited beside another one had one.
    """

    def __init__(self, chosen: list[int]) -> None:
        self._chosen = chosen
        self._waiting: list[tuple[asyncio.Future[None], int]] = []
        self._answering: asyncio.Task[None] | None = None
        self.options: list[int] = []

    async def wait(self) -> None:
        """Come back when it is this request's turn."""
        place, choice = self._choose(1)
        if choice:
            self.options[place] = 2
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, place))
        if len(self._waiting) > 1:
            for _, other in self._waiting:
                self.options[other] = 2
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer())
        await turn

    def _choose(self, options: int) -> tuple[int, int]:
        """The place of a choice, and what was chosen there."""
        place = len(self.options)
        self.options.append(options)
        return place, self._chosen[place] if place < len(self._chosen) else 0

    async def _answer(self) -> None:
        while self._waiting:
            await self._quiet()
            self._waiting = [waiting for waiting in self._waiting if not waiting[0].done()]
            if not self._waiting:
                return
            _, choice = self._choose(len(self._waiting))
            turn, _ = self._waiting.pop(min(choice, len(self._waiting) - 1))
            turn.set_result(None)

    async def _quiet(self) -> None:
        asked, idle = len(self._waiting), 0
        while idle < IDLE_TURNS:
            await asyncio.sleep(0)
            idle = idle + 1 if len(self._waiting) == asked else 0
            asked = len(self._waiting)
