"""What the domain refuses, each with words for a person: what is wrong, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from app.replay.evidence import FileProblem

__all__ = [
    "BundleError",
    "FileProblem",
    "ImportRefused",
    "IncidentError",
    "NotFound",
    "Outdated",
    "Purged",
    "QueueFull",
    "UnknownBuild",
    "UnknownPipeline",
    "WrongState",
    "found",
]

T = TypeVar("T")


class IncidentError(Exception):
    """Anything that this room refuses; its text can be shown as it is."""


class ImportRefused(IncidentError):
    """Files that cannot be kept; nothing of the import was stored."""

    def __init__(self, problems: Iterable[FileProblem]) -> None:
        self.problems: tuple[FileProblem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class BundleError(IncidentError):
    """A `bundle.zip` that cannot be read; `entry` names the entry at fault, None when it is the archive as a whole."""

    def __init__(self, name: str, entry: str | None, problem: str, expected: str, remedy: str) -> None:
        self.name = name
        self.entry = entry
        self.problem = problem
        self.expected = expected
        self.remedy = remedy
        super().__init__(str(self.as_file_problem()))

    def as_file_problem(self) -> FileProblem:
        """The same as the problem of a file, for forms and reports that list those."""
        name = self.name if self.entry is None else f"{self.name}: {self.entry}"
        return FileProblem(name, "bundle", self.problem, self.expected, self.remedy)


class NotFound(IncidentError):
    """No such incident, evidence or run."""

    def __init__(self, kind: str, ident: object) -> None:
        self.kind = kind
        self.ident = str(ident)
        super().__init__(f"there is no {kind} {self.ident!r}; it may belong to another installation")


class UnknownBuild(IncidentError):
    """A build that the configuration does not name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        choice = f"known builds: {', '.join(known)}" if known else "no builds are configured: add [[builds]]"
        super().__init__(f"hindcast.toml names no build {name!r}; {choice}")


class UnknownPipeline(IncidentError):
    """A pipeline that the configuration does not name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        choice = f"known pipelines: {', '.join(known)}" if known else "no pipelines are configured: add [[pipelines]]"
        super().__init__(f"hindcast.toml names no pipeline {name!r}; {choice}")


class QueueFull(IncidentError):
    """So many runs wait already that another one would only wait behind them."""

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(f"{most} replays wait already, and no more may (console.max_waiting)")


class WrongState(IncidentError):
    """Something asked of a run, an export or a search that its state does not allow."""

    def __init__(self, action: str, state: str, allowed: str, what: str = "a run") -> None:
        self.state = state
        super().__init__(f"cannot {action} {what} that is {state.replace('_', ' ')}; it must be {allowed}")


class Purged(NotFound):
    """An incident that was here, and was removed for good; the rest is what its tombstone says."""

    def __init__(self, ident: str, when_ms: int, why: str, pipeline: str | None = None) -> None:
        super().__init__("incident", ident)
        self.pipeline = pipeline
        self.when_ms = when_ms
        self.why = why


class Outdated(IncidentError):
    """A change made from an older state than the present one: somebody else was faster, and nothing was changed.

    `now` is the version that it has now; whoever has seen that may try again.
    """

    def __init__(self, text: str, now: int) -> None:
        self.now = now
        super().__init__(text)


def found(value: T | None, kind: str, ident: object) -> T:
    """Return what a query found, or raise `NotFound`."""
    if value is None:
        raise NotFound(kind, ident)
    return value
