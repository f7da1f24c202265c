"""Load once, in the process that runs are forked from, what most agents would load again in every run."""

from __future__ import annotations

import asyncio
import importlib

from app.runtime import standin

# What the re-run imports only once it has an agent.
_MODULES = ("app.runtime.config", "app.runtime.model.fake")


def names() -> None:
    """Import what agents name of the runtime, and no Pydantic: most tools do without, and it is slow to load."""
    for name in _MODULES:
        importlib.import_module(name)
    standin.install()
    standin.preload()


def agents() -> None:
    """The same, build and call a tool with Pydantic, turn an event loop once; keeps nothing of it."""
    names()
    _use_a_tool()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def _use_a_tool() -> None:
    from app.runtime.tools import tool

    @tool
    def throwaway(text: str, count: int = 1, ratio: float | None = None, tags: list[str] | None = None) -> str:
        """Never called; its argument model has Pydantic load its parts and find its plug-ins."""
        return f"{text} {count} {ratio} {tags}"

    assert throwaway.schema
    throwaway.validate({"text": "x", "tags": ["y"]})
