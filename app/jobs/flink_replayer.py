"""Replays the event log of an incident with a configured build of Flink Agents, beside the build that was live then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from app.flink.inside.messages import ToolAnswer, tool_digest
from app.flink.model import Run
from app.flink.rerun.case import Options, Runner
from app.flink.rerun.stretch import Stretch
from app.flink.treatment import Treatment
from app.incidents.flink_evidence import flink_run_of, leading_up
from app.jobs.flink_runs import Code, handling
from app.replay.evidence import EvidenceFile
from app.replay.verdict import Outcome, Reason, Report, Verdict
from app.sandbox.drivers import FLINK

_ROLE: Final = "event-log"


class Build(Code, Protocol):
    """What is asked of a configured build."""

    @property
    def driver(self) -> str: ...
    @property
    def resources(self) -> Mapping[str, Treatment]: ...
    @property
    def live_from_ms(self) -> int | None: ...
    @property
    def live_to_ms(self) -> int | None: ...


def is_of_flink(files: Sequence[EvidenceFile]) -> bool:
    """Whether the evidence is an event log, and not what Beam agents leave."""
    return any(file.role == _ROLE for file in files)


def replay_log(
    files: Sequence[EvidenceFile],
    sources: Sequence[Mapping[str, Any]],
    build: Build,
    builds: Sequence[Build],
    runner: Callable[[Build], Runner],
    *,
    key: bytes | None = None,
    answers: Sequence[Mapping[str, Any]] = (),
    live: bool = False,
) -> Report:
    """The verdict on the run that the evidence holds; `key` is the incident's, where the log itself has none.

    `sources` are the provenance of the files: where keys stand, and which of them only lead up to the run. `live` makes
    it a what-if: models that the build allows are asked what the record cannot answer.
    """
    run = flink_run_of(files, sources)
    if run is None:
        return _no_one_run()
    before = leading_up(files, sources)
    if run.key is None and key is not None:
        run = replace(run, key=key.decode("utf-8", "replace"))
    recording = recorded_by(builds, run)
    own = runner(build)
    reference = None if recording is None else own if recording.name == build.name else runner(recording)
    options = Options(live=live, handling=handling(build.resources), supplied=tuple(_supplied(answers)))
    (report,) = Stretch([*before, run], own, reference, options, frozenset({run.ref})).replay().reports
    return report


def recorded_by(builds: Sequence[Build], run: Run) -> Build | None:
    """The one build that was live when the run began."""
    at = run.first_ns // 1_000_000
    live = [
        one
        for one in builds
        if one.driver == FLINK
        and one.live_from_ms is not None
        and one.live_from_ms <= at
        and (one.live_to_ms is None or at < one.live_to_ms)
    ]
    return live[0] if len(live) == 1 else None


def _supplied(answers: Sequence[Mapping[str, Any]]) -> list[ToolAnswer]:
    return [
        ToolAnswer(
            tool=one["tool"], digest=tool_digest(one["tool"], one["arguments"]), value=one["value"], supplied=True
        )
        for one in answers
    ]


def _no_one_run() -> Report:
    text = "The event log does not hold exactly one run, and a replay of an incident is of one."
    remedy = "Open the incident from the run that you mean; several are re-run with hindcast flink replay."
    return Report(Verdict(Outcome.UNUSABLE, text, Reason("no_one_run", text, remedy)))
