"""Who may see which incidents: roles, and the pipelines in which somebody has them.

A scope is a pipeline's name; incidents from files, which are of no pipeline, have one that the configuration names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What somebody is in a pipeline; each may what the one before it may."""

    VIEWER = "viewer"  # sees everything redacted
    RESPONDER = "responder"  # sees evidence, exports, replays, shares
    ADMIN = "admin"  # ends others' shares, makes tokens, reads the audit trail

    @property
    def rank(self) -> int:
        return RANKS.index(self)

    def includes(self, other: Role) -> bool:
        """Whether this role may all that the other may."""
        return self.rank >= other.rank


RANKS: Final = tuple(Role)
ANYWHERE: Final = "*"  # as a scope of a grant: every pipeline, and the files


@dataclass(frozen=True, slots=True)
class Scopes:
    """Of which incidents something may be shown: of these pipelines (None: of all), and of those from files or not."""

    pipelines: frozenset[str] | None = None
    files: bool = True

    @property
    def everything(self) -> bool:
        return self.pipelines is None and self.files

    def holds(self, pipeline: str | None) -> bool:
        """Whether an incident of this pipeline (None: from files) is among them."""
        if pipeline is None:
            return self.files
        return self.pipelines is None or pipeline in self.pipelines


EVERYWHERE: Final = Scopes()


@dataclass(frozen=True, slots=True)
class Grants:
    """The role that somebody has in each scope; under `*` the one that they have at least, everywhere."""

    roles: Mapping[str, Role]

    @classmethod
    def of(cls, given: Iterable[tuple[Role, Iterable[str]]]) -> Grants:
        """Put rules together: where several fit, the highest role counts."""
        roles: dict[str, Role] = {}
        for role, scopes in given:
            for scope in scopes:
                roles[scope] = max(role, roles.get(scope, role), key=lambda each: each.rank)
        return cls(roles)

    def role(self, scope: str) -> Role | None:
        """The role in one scope; None for somebody who has nothing to do with it."""
        found = [role for role in (self.roles.get(scope), self.roles.get(ANYWHERE)) if role is not None]
        return max(found, key=lambda each: each.rank, default=None)

    def highest(self) -> Role | None:
        """The highest role that somebody has anywhere."""
        return max(self.roles.values(), key=lambda each: each.rank, default=None)

    def includes(self, role: Role, scopes: Iterable[str]) -> bool:
        """Whether somebody has at least this role in all of these scopes; `*` needs one that holds everywhere."""
        return all((found := self.role(scope)) is not None and found.includes(role) for scope in scopes)

    def scopes(self, role: Role, files_scope: str) -> Scopes:
        """Where somebody has at least this role."""
        named = {scope for scope, has in self.roles.items() if has.includes(role)}
        if ANYWHERE in named:
            return EVERYWHERE
        return Scopes(frozenset(named), files_scope in named)
