"""The tables of `hindcast.toml`, one class each."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from app.flink.keys import parse_paths
from app.settings.access import network
from app.settings.base import Section

Network = Annotated[str, AfterValidator(network)]


class Console(Section):
    """Where the console listens, whom it answers, and how much it takes in."""

    host: str = Field("127.0.0.1", description="Address to listen on.", min_length=1)
    port: int = Field(8700, description="Port to listen on; 0 takes any free one.", ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names under which the console is reached, besides its own address and `localhost`."
    )
    url: str | None = Field(
        None,
        description="Address under which browsers reach the console, such as `https://hindcast.example.org`, where that"
        " is another than the one it listens on; links and log-ins lead to it.",
        pattern=r"^https?://[^/?#@\s]+/?$",
    )
    proxies: tuple[Network, ...] = Field(
        (),
        description="Addresses or networks of proxies in front, which are believed when they say whom they speak for"
        " (`X-Forwarded-For`).",
    )
    max_file_mib: int = Field(64, description="Largest single evidence file, in MiB.", ge=1, le=1024)
    max_import_mib: int = Field(256, description="Largest import altogether, in MiB.", ge=1, le=4096)
    max_waiting: int = Field(
        1000, description="Replays that may wait for a worker; further ones are refused until fewer do.", ge=1
    )


class Database(Section):
    """Which PostgreSQL holds the incidents; without one, an embedded database started by `hindcast demo` is used."""

    url: str | None = Field(
        None, description="The application's database, as `postgresql://user:password@host/name`.", repr=False
    )
    owner_url: str | None = Field(
        None, description="The same database as the owner of the tables; only `hindcast migrate` uses it.", repr=False
    )

    purge_url: str | None = Field(
        None,
        description="The same database as the role of retention, which alone may remove evidence; `hindcast purge`,"
        " `hindcast erase` and the workers' retention use it.",
        repr=False,
    )

    @field_validator("url", "owner_url", "purge_url")
    @classmethod
    def _is_postgresql(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"postgres(ql)?(\+\w+)?://", value):
            raise ValueError("the database must be PostgreSQL: postgresql://user:password@host/name")
        return value


class Sandbox(Section):
    """How the agent's code is held while it is replayed."""

    unconfined: bool = Field(
        False,
        description="Replay even where the machine cannot confine agent code. It can then read and reach anything.",
    )
    allow_network: bool = Field(False, description="Let replayed agent code use the network.")
    memory_mib: int = Field(512, description="Memory that one replay may use, in MiB.", ge=16, le=65536)
    wall_s: float = Field(60.0, description="Seconds after which a re-run is ended.", gt=0, le=3600)


class Worker(Section):
    """How the processes that run replays behave."""

    jobs: int = Field(2, description="Replays that one worker runs at the same time.", ge=1, le=64)
    lease_s: float = Field(
        20.0, description="Seconds without a sign of life after which a running replay counts as lost.", ge=1, le=600
    )
    limit_s: float = Field(
        300.0,
        description="Seconds after which a run as a whole (loading, re-run, comparison) is timed out.",
        gt=0,
        le=86400,
    )
    drain_s: float = Field(
        25.0,
        description="Seconds that running replays may still take once the worker is told to stop; then others begin"
        " them anew.",
        ge=0,
        le=86400,
    )


class Redaction(Section):
    """What stays hidden from everybody who may not see everything, whatever else is opened to them."""

    attributes: tuple[str, ...] = Field(
        (), description="Names of attributes, arguments and keys of memory; `*` and `?` as in file names."
    )
    paths: tuple[str, ...] = Field(
        (), description="Places in JSON values: `$.card.number`, `$.items[*].name`, `$..email`."
    )
    patterns: tuple[str, ...] = Field((), description="Regular expressions; what they match in any text is hidden.")

    @field_validator("paths")
    @classmethod
    def _are_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not re.fullmatch(r"\$?(\.{0,2}[^.\[\]$]+|\[(\d+|\*)\])(\.{1,2}[^.\[\]]+|\[(\d+|\*)\])*", path):
                raise ValueError(f"{path!r} is not a JSON path such as $.card.number, $.items[*].name or $..email")
        return value

    @field_validator("patterns")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
            if compiled.match(""):
                raise ValueError(f"{pattern!r} matches nothing at all, and so everywhere; name what it has to hold")
        return value


class Flink(Section):
    """How event logs of Flink Agents are read."""

    key_paths: tuple[str, ...] = Field(
        (),
        description="Where the key stands in a record's payload, for logs that carry none (release 0.3.1):"
        " `$.input.customer.id`. The first path that leads to a value gives the key.",
    )
    keep_days: int | None = Field(
        None,
        description="Days after which imported runs and lines are removed; without it they stay.",
        ge=1,
        le=36500,
    )
    keep_gib: float | None = Field(
        None,
        description="GiB of imported lines that are kept; whole logs go, the longest unchanged first.",
        gt=0,
    )

    @field_validator("key_paths")
    @classmethod
    def _are_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_paths(value)
        return value


class Collector(Section):
    """How the process that follows the pipelines behaves, and how long it keeps what it read."""

    start: Literal["beginning", "end"] = Field(
        "beginning", description="Where to begin in a topic that was never followed: `beginning` or `end`."
    )
    keep_days: int = Field(14, description="Days after which collected records are dropped.", ge=1, le=3650)
    keep_gib: float = Field(
        50.0, description="Disk that collected records may take, in GiB; the oldest days are dropped first.", gt=0
    )
    export_timeout_s: float = Field(
        60.0, description="Seconds after which an export that was not answered is timed out.", gt=0, le=86400
    )


class Retention(Section):
    """How long incidents are kept."""

    closed_days: int | None = Field(
        None,
        description="Days after which an incident that was closed, and is not pinned, is removed; without it none is.",
        ge=1,
        le=36500,
    )
    every_h: float = Field(
        1.0, description="Hours between two looks of a worker for incidents to remove.", gt=0, le=8760
    )
