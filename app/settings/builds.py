"""The builds of agents that may be replayed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, field_validator, model_validator

from app.sandbox.drivers import DEFAULT, DRIVERS, FLINK, driver
from app.sandbox.locks import read_lock
from app.settings.base import Module, Moment, Reference, Section, SettingsError
from app.settings.resources import Resources

if TYPE_CHECKING:
    from app.replay.provenance import Production


class Build(Section):
    """One build of an agent that may be replayed: how to import it, and the files it consists of."""

    name: str = Field(description="What people choose it by; unique.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    agent: Reference = Field(description="The agent, as `module:attribute`.")
    registry: Reference | None = Field(None, description="Its tool registry, as `module:attribute`.")
    decode: Reference | None = Field(None, description="Its decode hook, as `module:attribute`.")
    config: Reference | None = Field(None, description="Its keyword arguments of `AgentConfig`, as `module:attribute`.")
    paths: tuple[Path, ...] = Field(
        description="Folders to import it from, relative to the file; nothing else of the machine's files is readable.",
        min_length=1,
    )
    interpreter: Path | None = Field(
        None,
        description="The `bin/python` of an environment with the agent's packages, relative to the file; without it,"
        " the console's own.",
    )
    driver: str = Field(
        DEFAULT, description=f"What runs its activations: {', '.join(f'`{name}`' for name in DRIVERS)}."
    )
    preload: tuple[Module, ...] = Field(
        (), description="Modules of its environment that are imported once, before any replay, to make each one faster."
    )
    resources: Resources = Field(
        {},
        description="Of Flink Agents: how its resources are treated in a re-run, by type or `type:name`; all others"
        " are `record`.",
    )
    lock: Path | None = Field(
        None,
        description="What production has installed, as lines `name==version` (`pip freeze`), relative to the file;"
        " other versions are the first suspects of a difference.",
    )
    digest: str | None = Field(
        None,
        description="`sha256:…` of the files below `paths`; when it no longer fits, the build is not replayed.",
        pattern=r"^sha256:[0-9a-f]{64}$",
    )
    live_from: Moment | None = Field(None, description="Since when it ran in production (RFC 3339).")
    live_to: Moment | None = Field(None, description="Until when it ran in production (RFC 3339).")

    @property
    def live_from_ms(self) -> int | None:
        return self.live_from

    @property
    def live_to_ms(self) -> int | None:
        return self.live_to

    @field_validator("driver")
    @classmethod
    def _is_a_driver(cls, value: str) -> str:
        driver(value)
        return value

    @model_validator(mode="after")
    def _fits_its_driver(self) -> Self:
        if self.driver != FLINK:
            if self.resources:
                raise ValueError(f"build {self.name!r}: resources are treated by the driver {FLINK!r} only")
            return self
        for name in ("registry", "decode"):
            if getattr(self, name) is not None:
                raise ValueError(f"build {self.name!r}: the driver {FLINK!r} knows no {name}; the agent's plan has it")
        return self

    @model_validator(mode="after")
    def _lives_forward(self) -> Self:
        if self.live_from is not None and self.live_to is not None and self.live_to <= self.live_from:
            raise ValueError(f"build {self.name!r}: live_to must be later than live_from")
        return self

    def production(self) -> Production:
        """What is known of this build in production; raises `OSError` where its lock is gone."""
        from app.replay.provenance import Production  # a process that only reads settings needs nothing of it

        locked = None if self.lock is None else read_lock(self.lock.read_text(encoding="utf-8", errors="replace"))
        return Production(self.digest, locked, self.live_from, self.live_to)

    def files_digest(self) -> str:
        """Compute `sha256:…` over the names and contents of all files below `paths`, compiled ones left out."""
        total = hashlib.sha256()
        for path in self.paths:
            total.update(b"path\0")
            for name, file in sorted(_files(path)):
                content = hashlib.sha256(file.read_bytes()).digest()
                total.update(name.encode("utf-8", "surrogateescape") + b"\0" + content)
        return f"sha256:{total.hexdigest()}"


def placed(build: Build, source: Path | None) -> Build:
    """Make a build's paths absolute, and see that they are there."""
    base = source.parent if source is not None else Path.cwd()
    paths = tuple((base / path.expanduser()).resolve() for path in build.paths)
    for told, path in zip(build.paths, paths, strict=True):
        if not path.is_dir():
            raise SettingsError(
                f"{source}: build {build.name!r}: paths names {str(told)!r}, and {path} is not a folder; paths are"
                " relative to the file"
            )
    updates = {"paths": paths, "interpreter": _interpreter(build, base, source), "lock": _lock(build, base, source)}
    return build.model_copy(update=updates)


def _lock(build: Build, base: Path, source: Path | None) -> Path | None:
    if build.lock is None:
        return None
    path = (base / build.lock.expanduser()).resolve()
    try:
        if read_lock(path.read_text(encoding="utf-8", errors="replace")):
            return path
        wrong = "it has no line of the form name==version"
    except OSError as error:
        wrong = f"{error.strerror}"
    raise SettingsError(
        f"{source}: build {build.name!r}: lock names {str(build.lock)!r}, and {path} cannot be used: {wrong}; write it"
        " with pip freeze where production runs"
    )


def _interpreter(build: Build, base: Path, source: Path | None) -> Path | None:
    """Where it is; not resolved, for an environment is known by the place of the link to its Python."""
    if build.interpreter is None:
        return None
    path = (base / build.interpreter.expanduser()).absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise SettingsError(
            f"{source}: build {build.name!r}: interpreter names {str(build.interpreter)!r}, and {path} is not a"
            " program; name the bin/python of an environment, relative to the file"
        )
    return path


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            file = Path(where, name)
            if file.is_file() and file.suffix != ".pyc":
                yield file.relative_to(folder).as_posix(), file
