"""What the web needs to be told: a protocol, because settings know every room and so no room may import them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MIB = 1024 * 1024


class Build(Protocol):
    """One agent build of the configuration, as pages show it and as a browser may choose it by name."""

    @property
    def name(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def registry(self) -> str | None: ...
    @property
    def decode(self) -> str | None: ...
    @property
    def config(self) -> str | None: ...
    @property
    def paths(self) -> Sequence[object]: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def interpreter(self) -> object | None: ...
    @property
    def live_from_ms(self) -> int | None: ...
    @property
    def live_to_ms(self) -> int | None: ...


class Console(Protocol):
    """How much the console takes in: files in MiB, and runs that wait."""

    @property
    def max_file_mib(self) -> int: ...
    @property
    def max_import_mib(self) -> int: ...
    @property
    def max_waiting(self) -> int: ...


class Pipeline(Protocol):
    """One running pipeline of the configuration; pages know it by name, and hold no credentials of it."""

    @property
    def name(self) -> str: ...
    @property
    def builds(self) -> Sequence[str]: ...


class Collector(Protocol):
    """How long an export may wait for its answer, in seconds."""

    @property
    def export_timeout_s(self) -> float: ...


class Redaction(Protocol):
    """What stays hidden in shares whatever their owners open."""

    @property
    def attributes(self) -> Sequence[str]: ...
    @property
    def paths(self) -> Sequence[str]: ...
    @property
    def patterns(self) -> Sequence[str]: ...


class WebSettings(Protocol):
    """The part of the settings that the console works with."""

    @property
    def console(self) -> Console: ...
    @property
    def redaction(self) -> Redaction: ...
    @property
    def token(self) -> str: ...
    @property
    def allowed_hosts(self) -> Sequence[str]: ...
    @property
    def builds(self) -> Sequence[Build]: ...
    @property
    def pipelines(self) -> Sequence[Pipeline]: ...
    @property
    def collector(self) -> Collector: ...
    @property
    def database_url(self) -> str: ...
