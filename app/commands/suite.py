"""Replay a folder of bundles: a regression suite for an agent's own CI, with a summary and a JUnit file."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from app.incidents.bundle import Bundle, read
from app.incidents.errors import BundleError
from app.replay.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from app.replay.verdict import Report

# The first of these that any bundle came to is the exit code of the whole.
_WORST_FIRST: Final = (Outcome.DIVERGED, Outcome.UNUSABLE, Outcome.IRREPRODUCIBLE)

_JUNIT: Final = {
    Outcome.DIVERGED: "failure",
    Outcome.UNUSABLE: "error",
    Outcome.IRREPRODUCIBLE: "skipped",
    Outcome.WHAT_IF: "skipped",
}


@dataclass(frozen=True)
class Case:
    """What one bundle came to."""

    name: str
    outcome: Outcome
    headline: str
    seconds: float
    verdict: Verdict | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "bundle": self.name,
            "verdict": str(self.outcome),
            "exit_code": self.outcome.exit_code,
            "headline": self.headline,
            "seconds": round(self.seconds, 4),
            "report": None if self.verdict is None else self.verdict.as_json(),
        }


Replay = Callable[[Bundle], "Report"]


def run(folder: Path, replay: Replay, *, jobs: int, form: str, junit: Path | None) -> int:
    """Replay every bundle below a folder, print the summary, write the JUnit file; returns the exit code."""
    files = sorted(folder.rglob("*.zip"))
    if not files:
        print(f"hindcast replay: {folder} holds no *.zip", file=sys.stderr)
        return Outcome.UNUSABLE.exit_code
    begun = time.monotonic()
    cases = list(_cases(files, folder, replay, jobs))
    seconds = time.monotonic() - begun
    if junit is not None:
        _write_junit(junit, folder, cases, seconds)
    print(
        json.dumps(_summary(cases, seconds), ensure_ascii=False, indent=2) if form == "json" else _text(cases, seconds)
    )
    found = {case.outcome for case in cases}
    return next((outcome.exit_code for outcome in _WORST_FIRST if outcome in found), 0)


def _cases(files: Sequence[Path], folder: Path, replay: Replay, jobs: int) -> Iterator[Case]:
    shown = sys.stderr.isatty()
    with ThreadPoolExecutor(jobs) as pool:
        for done, case in enumerate(pool.map(lambda file: _case(file, folder, replay), files), 1):
            if shown:
                print(f"\r{done} of {len(files)} bundles", end="", file=sys.stderr, flush=True)
            yield case
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _case(file: Path, folder: Path, replay: Replay) -> Case:
    name = str(file.relative_to(folder))
    begun = time.monotonic()
    try:
        bundle = read(file.read_bytes())
    except BundleError as error:
        return Case(name, Outcome.UNUSABLE, str(error), time.monotonic() - begun)
    except OSError as error:
        return Case(name, Outcome.UNUSABLE, f"{error.strerror or error}", time.monotonic() - begun)
    verdict = replay(bundle).verdict
    return Case(name, verdict.outcome, verdict.headline, time.monotonic() - begun, verdict)


def _summary(cases: Sequence[Case], seconds: float) -> dict[str, Any]:
    return {
        "bundles": len(cases),
        "seconds": round(seconds, 3),
        "counts": _counts(cases),
        "results": [case.as_json() for case in cases],
    }


def _counts(cases: Sequence[Case]) -> dict[str, int]:
    counted = Counter(case.outcome for case in cases)
    return {str(outcome): counted[outcome] for outcome in Outcome}


def _text(cases: Sequence[Case], seconds: float) -> str:
    width = max(len(case.name) for case in cases)
    lines = [
        f"{case.name:<{width}}  {case.outcome}: {case.headline}"
        for case in cases
        if case.outcome is not Outcome.REPRODUCED
    ]
    counts = ", ".join(f"{number} {name}" for name, number in _counts(cases).items() if number)
    return "\n".join([*lines, f"{len(cases)} bundles in {seconds:.1f} s: {counts}"])


def _write_junit(path: Path, folder: Path, cases: Sequence[Case], seconds: float) -> None:
    counted = Counter(_JUNIT.get(case.outcome) for case in cases)
    suite = ElementTree.Element(
        "testsuite",
        name=f"hindcast {folder.name}",
        tests=str(len(cases)),
        failures=str(counted["failure"]),
        errors=str(counted["error"]),
        skipped=str(counted["skipped"]),
        time=f"{seconds:.3f}",
    )
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=folder.name, name=case.name, time=f"{case.seconds:.3f}"
        )
        kind = _JUNIT.get(case.outcome)
        if kind is not None:
            ElementTree.SubElement(element, kind, type=str(case.outcome), message=_printable(case.headline))
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Text that XML can hold: control characters have no place in it, escaped or not."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
