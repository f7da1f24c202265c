"""Log lines that say which incident, run and request they belong to: as text for a person, or a JSON object each."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

FORMATS: Final = ("text", "json")
VARIABLE: Final = "HINDCAST_LOG_FORMAT"
_NOISY: Final = ("procrastinate", "alembic", "psycopg.pool", "httpx", "httpcore", "authlib", "opentelemetry")

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_ABOUT: Final[ContextVar[Mapping[str, Any]]] = ContextVar("hindcast_log_about", default=_NOTHING)


@contextmanager
def about(**ids: Any) -> Iterator[None]:
    """Add ids (`incident`, `run`, `request`, …) to every line that is logged inside the block; None adds nothing."""
    token = _ABOUT.set({**_ABOUT.get(), **{name: value for name, value in ids.items() if value is not None}})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def told_about() -> Mapping[str, Any]:
    """The ids that lines carry at this place."""
    return _ABOUT.get()


class TextFormatter(logging.Formatter):
    """`2026-05-01 12:00:00,000 INFO app.jobs.tasks: words [incident=inc_… run=run_…]`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the library's name
        line = super().formatMessage(record)
        ids = " ".join(f"{name}={value}" for name, value in _ABOUT.get().items())
        return f"{line} [{ids}]" if ids else line


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, the ids, and `error` for a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_ABOUT.get(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start(level: str, form: str | None = None) -> None:
    """Write log lines to stderr, so that stdout carries only what a script may want to read.

    `form` is one of `FORMATS`; without it `HINDCAST_LOG_FORMAT` says, else it is text. Raises `ValueError`.
    """
    chosen = form or os.environ.get(VARIABLE) or FORMATS[0]
    if chosen not in FORMATS:
        raise ValueError(f"{VARIABLE} is {chosen!r}; expected text or json")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if chosen == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
