"""Whether one build can be replayed here, and is what was added: all that is wrong with it, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.replay.rerun_pb2 import AgentCode, RerunRequest
from app.sandbox.drivers import FLINK
from app.sandbox.model import AgentPathError, SandboxError
from app.sandbox.runner import Sandbox

if TYPE_CHECKING:
    from app.settings import Build

# Imports the agent, in a run like any other, and does nothing with it.
_ENTRIES = {"runtime": "app.replay.importing:on_ours", "beam_agents": "app.replay.importing:on_theirs"}


def problems(build: Build, *, unconfined: bool = False) -> Iterator[str]:
    """Look at the files, start the build's environment, import the agent where it would run."""
    found = build.files_digest()
    if build.digest is not None and build.digest != found:
        yield (
            f"its files are not those that were added: their digest is {found}, not {build.digest}; bring them back, or"
            " add the build again with --replace"
        )
    entry = _ENTRIES.get(build.driver)
    try:
        with Sandbox(
            interpreter=build.interpreter,
            driver=build.driver,
            entry=entry,
            preload=() if entry else None,
            libraries=build.preload,
            unconfined=unconfined,
        ) as sandbox:
            yield from _differences(build, sandbox)
            if build.driver != FLINK:
                yield from _import(build, sandbox)
    except (SandboxError, AgentPathError) as error:
        yield str(error)


def _differences(build: Build, sandbox: Sandbox) -> Iterator[str]:
    from app.replay.provenance import Ran, attributed
    from app.replay.verdict import Outcome, Report, Verdict

    here = sandbox.environment()
    ran = Ran(build.name, build.digest or "", here.python, here.digest, here.packages)
    nothing = Report(Verdict(Outcome.UNUSABLE, ""))
    for suspect in attributed(nothing, ran, build.production()).verdict.code["suspects"]:
        yield f"{suspect['text']} (its lock)"


def _import(build: Build, sandbox: Sandbox) -> Iterator[str]:
    code = AgentCode(
        agent=build.agent,
        registry=build.registry or "",
        decode=build.decode or "",
        config=build.config or "",
        paths=[str(path) for path in build.paths],
    )
    finished = sandbox.run(RerunRequest(code=code))
    if finished.result is None:
        yield f"its agent cannot be imported: {finished.detail or finished.ending}"
    elif finished.result.refusal:
        yield f"its agent cannot be imported: {finished.result.refusal}"
