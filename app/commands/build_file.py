"""Adds a build to `hindcast.toml` as a person would: every other line, comments too, stays as it is.

The changed file is read and checked as the console would read it before it takes the place of the old one, at once; two
that add at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

from app.commands.common import CommandError
from app.settings import SettingsError, load


def add(
    file: Path, build: Mapping[str, Any], *, replace: bool = False, after: str | None = None, pipelines: list[str]
) -> None:
    """Write one table of `[[builds]]`, with `build`'s settings in its order; raises `CommandError`.

    `replace` lets it take the place of a build of the same name. `after` names the build that it takes over from, whose
    `live_to` becomes the new one's `live_from`; `pipelines` are told that the build is theirs.
    """
    with _held(file):
        document = _read(file)
        builds = _tables(document, "builds", file)
        at = next((index for index, one in enumerate(builds) if one.get("name") == build["name"]), None)
        if at is not None and not replace:
            raise CommandError(f"{file} already has a build {build['name']!r}; give --replace to write it anew")
        if after is not None:
            _end(builds, after, build.get("live_from"), file)
        table = tomlkit.table()
        for name, value in build.items():
            table.add(name, value)
        table.add(tomlkit.nl())
        if at is None:
            builds.append(table)
        else:
            builds[at] = table
        for name in pipelines:
            _give(document, name, build["name"], file)
        _write(file, tomlkit.dumps(document))


def _read(file: Path) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(file.read_text(encoding="utf-8")) if file.exists() else tomlkit.document()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from None


def _tables(document: tomlkit.TOMLDocument, name: str, file: Path) -> AoT:
    tables = document.get(name)
    if tables is None:
        document.append(name, tomlkit.aot())
        tables = document[name]
    if not isinstance(tables, AoT):
        raise CommandError(f"{file}: {name} is not written as [[{name}]] tables; write it so, and try again")
    return tables


def _end(builds: AoT, name: str, moment: datetime | None, file: Path) -> None:
    """Say until when the earlier build was live, where it does not say so yet."""
    earlier = next((one for one in builds if one.get("name") == name), None)
    if earlier is None:
        raise CommandError(f"{file} has no build {name!r} to take over from (--after)")
    if moment is None:
        raise CommandError("--after needs --live-from: that is when the earlier build ended")
    if "live_to" not in earlier:
        earlier.add("live_to", moment)


def _give(document: tomlkit.TOMLDocument, pipeline: str, build: str, file: Path) -> None:
    for one in _tables(document, "pipelines", file):
        if one.get("name") == pipeline:
            names = one.setdefault("builds", tomlkit.array())
            if build not in names:
                names.append(build)
            return
    raise CommandError(f"{file} has no pipeline {pipeline!r} (--pipeline)")


def _write(file: Path, text: str) -> None:
    """Put the text in the file's place, if it can be read as a configuration; the old one stays otherwise."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            status = file.stat()
            Path(name).chmod(status.st_mode & 0o7777)
            with suppress(PermissionError):
                os.chown(name, status.st_uid, status.st_gid)
        else:
            Path(name).chmod(0o644)
        load(Path(name), {})
        os.replace(name, file)  # noqa: PTH105
    except SettingsError as error:
        raise CommandError(f"nothing was written: {str(error).replace(name, str(file))}") from None
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """Hold the file's folder against others who add; they wait."""
    try:
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise CommandError(f"the folder of {file} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def moment(text: str) -> datetime:
    """An RFC 3339 time with an offset, or `now`, in UTC and whole seconds; raises `CommandError`."""
    try:
        found = datetime.now(UTC) if text == "now" else datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise CommandError(f"{text!r} is not a time such as 2026-05-01T12:00:00Z, nor `now`")
    return found.astimezone(UTC).replace(microsecond=0)
