"""What the sandbox kept the agent from doing in this process: written by the sandbox, read by the re-run."""

from __future__ import annotations

from typing import Final

LIMIT: Final = 100

_noted: list[str] = []


def note(text: str) -> None:
    """Remember one refusal, such as `connect to 10.0.0.1:443`; equal ones once, bounded in number."""
    if text not in _noted and len(_noted) < LIMIT:
        _noted.append(text)


def noted() -> list[str]:
    """All refusals of this process, oldest first."""
    return list(_noted)


def forget() -> None:
    _noted.clear()
