"""What the domain refuses, each with words for a person: what is wrong, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.replay.evidence import FileProblem

__all__ = ["FileProblem", "ImportRefused", "IncidentError", "NotFound", "UnknownBuild", "WrongState"]


class IncidentError(Exception):
    """Anything that this room refuses; its text can be shown as it is."""


class ImportRefused(IncidentError):
    """Files that cannot be kept; nothing of the import was stored."""

    def __init__(self, problems: Iterable[FileProblem]) -> None:
        self.problems: tuple[FileProblem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


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


class WrongState(IncidentError):
    """Something asked of a run that its state does not allow."""

    def __init__(self, action: str, state: str, allowed: str) -> None:
        self.state = state
        super().__init__(f"cannot {action} a run that is {state.replace('_', ' ')}; it must be {allowed}")
