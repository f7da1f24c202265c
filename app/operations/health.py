"""Whether a process can do its work: a list of checks, each with its word, that needs no permission to be read.

Nothing in them is secret: no address, no name of a pipeline or a build, no words of an exception.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from app import __version__
from app.incidents import pool
from app.incidents.live import collector_statuses
from app.incidents.schema import SchemaError, standing
from app.incidents.store import Store

_LOG: Final = logging.getLogger(__name__)


class Word(StrEnum):
    """`warning` is told and stops nothing; `failing` means that the process cannot work."""

    OK = "ok"
    WARNING = "warning"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    word: Word
    told: str
    values: dict[str, int] | None = None

    def as_json(self) -> dict[str, Any]:
        return {"check": self.name, "status": str(self.word), "detail": self.told, **(self.values or {})}


# What is raised where the database is away.
AWAY: Final = (SQLAlchemyError, OSError)

Checks = Callable[[], Awaitable[Sequence[Check]]]


def answer(checks: Sequence[Check]) -> tuple[int, bytes]:
    """The status code and the body of `/readyz`: 503 where something fails, 200 otherwise."""
    words = {check.word for check in checks}
    worst = next((word for word in (Word.FAILING, Word.WARNING) if word in words), Word.OK)
    body = {"status": str(worst), "version": __version__, "checks": [check.as_json() for check in checks]}
    return 503 if worst is Word.FAILING else 200, json.dumps(body).encode()


def alive() -> tuple[int, bytes]:
    """The answer of `/healthz`: whoever can give it lives."""
    return 200, json.dumps({"status": "ok", "version": __version__}).encode()


async def database(store: Store) -> list[Check]:
    """Whether the database answers and has the form that this version works with."""
    try:
        async with store.read() as session:
            told = await standing(session)
    except SchemaError as error:
        _LOG.warning("not ready: %s", error)
        reached = Check("database", Word.OK, "it answers")
        return [reached, Check("migrations", Word.FAILING, "the schema does not fit this version: hindcast migrate")]
    except AWAY as error:
        _LOG.warning("not ready: the database does not answer: %s", error)
        return [Check("database", Word.FAILING, "it does not answer")]
    word = Word.OK if told.at == told.wanted else Word.WARNING
    return [
        Check("database", Word.OK, "it answers"),
        Check("migrations", word, f"at revision {told.at}; this version brings {told.wanted}"),
    ]


async def workers(store: Store) -> Check:
    """Whether somebody takes the runs that wait."""
    async with store.read() as session:
        status = await pool.pool_status(session)
    hands = [worker for worker in status.alive if not worker.draining]
    values = {"alive": len(hands), "waiting": status.waiting}
    if not hands:
        return Check("workers", Word.WARNING, "none is running: hindcast worker", values)
    if status.unserved:
        return Check("workers", Word.WARNING, "runs wait for builds that no worker serves", values)
    return Check("workers", Word.OK, "they show signs of life", values)


async def collectors(store: Store, pipelines: Sequence[str]) -> Check:
    """Whether every configured pipeline is followed, without trouble with its broker, and how far behind."""
    if not pipelines:
        return Check("collector", Word.OK, "no pipelines are configured")
    async with store.read() as session:
        told = {each.pipeline: each for each in await collector_statuses(session)}
    followed = [told[name] for name in pipelines if name in told and told[name].alive]
    values = {
        "pipelines": len(pipelines),
        "followed": len(followed),
        "lag_records": sum(sum(each.lags.values()) for each in followed),
    }
    if len(followed) < len(pipelines):
        return Check("collector", Word.WARNING, "not every pipeline is followed: hindcast collect", values)
    if any(each.trouble for each in followed):
        return Check("collector", Word.WARNING, "a collector has trouble with its broker; its log says which", values)
    return Check("collector", Word.OK, "every pipeline is followed", values)
