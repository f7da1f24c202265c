"""Run a throwaway activation some times in the process that runs are forked from.

Whatever happens only the first few times (lazy imports, caches of types, the interpreter's own specialisation) then has
happened, and is not repeated by every run. It is our own code throughout; nothing of it stays but what is warm.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any, Final

from app.replay.code import LoadedCode
from app.replay.rerun import execute
from app.replay.rerun_pb2 import RerunRequest, RerunResult
from app.runtime import standin
from app.runtime.model.client import LlmRequest
from app.runtime.model.usage import DecodedResponse, TokenUsage
from app.runtime.outcome import Complete
from app.runtime.tools import ToolRegistry, tool
from app.wire import identity

# The interpreter specialises a function after eight calls.
_TIMES: Final = 10
_KEY: Final = b"rehearsal"
_CLOCK_MS: Final = 1_000_000
_MESSAGES: Final = [{"role": "user", "content": "rehearse é"}]
_ANSWER: Final = json.dumps({"text": "well", "usage": [3, 2, 5]}).encode()


def rehearse() -> None:
    """Do it; an activation that does not come out as expected is a fault of ours, and ends the process."""
    request = _request()
    loop = asyncio.new_event_loop()
    try:
        for _ in range(_TIMES):
            # What a run gets and gives passes through bytes.
            result = execute(RerunRequest.FromString(request), _code(), loop)
            again = RerunResult.FromString(result.SerializeToString())
            assert again.outcome == RerunResult.COMPLETED, again
    finally:
        loop.close()
    standin.preload()  # by now all of the runtime is loaded that runs use


def _request() -> bytes:
    request = RerunRequest(entity_key=_KEY, seq=0, clock_ms=_CLOCK_MS, kind=RerunRequest.START, ledger_bytes=1 << 16)
    envelope = request.envelopes.add(entity_key=_KEY, event_time_ms=_CLOCK_MS)
    envelope.external_event = b'{"txn": "t1"}'
    material = identity.request_material(
        entity_key=_KEY, seq=0, model="m", messages=_MESSAGES, tools=None, params={"temperature": 0}
    )
    request.cache.entries.add(
        cache_key=identity.cache_key(material),
        response=_ANSWER,
        response_digest=hashlib.sha256(_ANSWER).digest(),
        created_at_ms=_CLOCK_MS,
    )
    return request.SerializeToString()


def _code() -> LoadedCode:
    """The throwaway agent, made anew as a run would import it."""

    @tool
    def look_up(card: str, limit: int = 5) -> str:
        """Read-only."""
        return f"{card} {limit}"

    @tool(side_effect=True)
    def hold(txn: str) -> str:
        """Never runs."""
        raise AssertionError(txn)

    registry = ToolRegistry()
    registry.register(look_up)
    registry.register(hold)

    def decode(data: bytes) -> DecodedResponse:
        said = json.loads(data)
        return DecodedResponse(TokenUsage(*said["usage"]), said["text"])

    async def agent(ctx: Any) -> Complete:
        event = json.loads(ctx.single_event)
        found = await ctx.run_tool("look_up", {"card": event["txn"]})
        asked = LlmRequest(model_id="m", messages=_MESSAGES, tools_schema=None, sampling_params={"temperature": 0})
        answer = await ctx.call_model(asked)
        ctx.act("hold", json.dumps({"txn": event["txn"]}))
        ctx.memory.get("last")
        ctx.memory.append("recent", event["txn"].encode(), max_items=3)
        ctx.memory.set("last", decode(answer.response).text.encode())
        return Complete(output=found.encode())

    return LoadedCode(agent=agent, registry=registry, decode=decode, config={})
