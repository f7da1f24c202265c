"""Which code a run executed, and where that is not what production ran: the first suspects of a difference.

The trace does not say by which code it was made. What is known of production is what the build's configuration says:
the digest of its files, its lock, and since when and until when it was live.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from app.replay.verdict import Outcome, Report, Verdict

# A lock names Python too, as if it were a package.
PYTHON: Final = "python"
MOST_TOLD: Final = 5


@dataclass(frozen=True)
class Ran:
    """What a run executed: digests are `sha256:…`, `packages` versions by normalised name."""

    build: str
    files: str
    python: str
    environment: str
    packages: Mapping[str, str]


@dataclass(frozen=True)
class Production:
    """What the configuration says of the same build in production; None is not said. Times are epoch milliseconds."""

    files: str | None = None
    locked: Mapping[str, str] | None = None
    live_from_ms: int | None = None
    live_to_ms: int | None = None


def attributed(report: Report, ran: Ran, production: Production) -> Report:
    """The same report, whose verdict says what ran and what of it is suspect."""
    attempt = report.verdict.attempt
    suspects = list(_suspects(ran, production, None if attempt is None else attempt.clock_ms))
    code = {
        "build": ran.build,
        "files": ran.files,
        "python": ran.python,
        "environment": ran.environment,
        "packages": dict(sorted(ran.packages.items())),
        "suspects": suspects,
    }
    return replace(report, verdict=replace(report.verdict, code=code))


def first_suspects(verdict: Verdict) -> list[str]:
    """What to look at before anything else, a sentence each; nothing where there is nothing to explain."""
    if verdict.outcome in (Outcome.REPRODUCED, Outcome.WHAT_IF):
        return []
    suspects = verdict.code.get("suspects", ())
    left = len(suspects) - MOST_TOLD
    told = [suspect["text"] for suspect in suspects[:MOST_TOLD]]
    return [*told, f"and {left} more packages have other versions"] if left > 0 else told


def _suspects(ran: Ran, production: Production, clock_ms: int | None) -> Iterator[dict[str, str]]:
    if production.files is not None and production.files != ran.files:
        yield _suspect("files", ran.build, ran.files, production.files)
    if clock_ms is not None and not _was_live(production, clock_ms):
        yield _suspect("live", ran.build, _utc(clock_ms), _interval(production))
    locked = production.locked or {}
    here = {PYTHON: ran.python, **ran.packages}
    # What is not installed here is no suspect: an import of it would have failed.
    for name in sorted(locked, key=lambda name: (name != PYTHON, name)):
        if name in here and here[name] != locked[name]:
            yield _suspect(PYTHON if name == PYTHON else "package", name, here[name], locked[name])


def _suspect(what: str, name: str, here: str, production: str) -> dict[str, str]:
    match what:
        case "files":
            text = f"the build's files have changed: their digest is {here}, and production's is {production}"
        case "live":
            text = f"the attempt ran at {here}, when another build was live: {name} was live {production}"
        case _:
            text = f"{name} is {here} here, and {production} in production"
    return {"what": what, "name": name, "here": here, "production": production, "text": text}


def _was_live(production: Production, clock_ms: int) -> bool:
    begun = production.live_from_ms is None or production.live_from_ms <= clock_ms
    return begun and (production.live_to_ms is None or clock_ms < production.live_to_ms)


def _interval(production: Production) -> str:
    ends = [
        f"{word} {_utc(moment)}"
        for word, moment in (("from", production.live_from_ms), ("until", production.live_to_ms))
        if moment is not None
    ]
    return " ".join(ends)


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
