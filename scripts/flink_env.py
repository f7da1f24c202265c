"""A slim environment of Flink Agents, made once from the package registry and kept in the user's cache.

`scripts/flink.lock` says what is in it, with hashes: the Python API, enough to compile an agent's plan and to run it in
one process; no Java, no cluster. It is for the interpreters of agent builds, in tests, benchmarks and the example; the
console's own environment never holds these packages. `python -m scripts.flink_env` prints the path of its Python, and
with `--link PATH` makes a link to the environment, for a hindcast.toml to name.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).with_name("flink.lock")
OLDEST: Final = (3, 11)
TOO_NEW: Final = (3, 13)  # of which this release of Flink Agents says that it does not run there
_KEPT_LINES: Final = 12
_PATIENCE_S: Final = 600.0


class FlinkMissing(Exception):
    """The environment cannot be had here; the text says why and what to do."""


def python() -> Path:
    """The Python of the environment, which is made first where it is not there. Raises `FlinkMissing`."""
    base = _base()
    told = f"{LOCK.read_text(encoding='utf-8')}\n{base}\n{_version(base)}"
    folder = _cache() / f"flink-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    found = folder / "bin" / "python"
    with _alone(folder):
        if not (folder / ".ready").is_file():
            try:
                _make(folder, base)
            except subprocess.TimeoutExpired as slow:
                raise FlinkMissing(f"installing Flink Agents took more than {slow.timeout:g} s") from None
            (folder / ".ready").touch()
    return found


def _make(folder: Path, base: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run("the environment could not be made", [str(base), "-m", "venv", str(folder)])
    # Jars are of no use without Java, and come from elsewhere.
    environment = os.environ | {"FLINK_AGENTS_SKIP_JAR_DOWNLOAD": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    # Flink Agents is built here, with the locked tool: an isolated build would fetch one that nobody has checked.
    builder = folder / "builder.lock"
    builder.write_text(_entry("setuptools"), encoding="utf-8")
    for more in (["-r", str(builder)], ["--no-build-isolation", "-r", str(LOCK)]):
        _run("its packages could not be installed from the registry", [*install, *more], environment)


def _entry(name: str) -> str:
    """One package's lines of the lock."""
    lines, inside = [], False
    for line in LOCK.read_text(encoding="utf-8").splitlines(keepends=True):
        inside = line.startswith(f"{name}==") or (inside and line.startswith(" "))
        lines += [line] if inside else []
    return "".join(lines)


def _run(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S, check=False
    )
    if done.returncode:
        told = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-_KEPT_LINES:]
        raise FlinkMissing(f"{what}: {' / '.join(told)}")


def _base() -> Path:
    """The Python to build on: the one behind ours, else another that is on the path."""
    ours = Path(os.path.realpath(sys.executable))
    others = (shutil.which(f"python{major}.{minor}") for major, minor in ((3, 11), (3, 12)))
    for candidate in (ours, *(Path(found) for found in others if found)):
        version = tuple(int(part) for part in _version(candidate).split(".")[:2] if part.isdigit())
        if OLDEST <= version < TOO_NEW:
            return candidate
    raise FlinkMissing("Flink Agents needs Python 3.11 or 3.12, and neither is here; install one of them")


def _version(candidate: Path) -> str:
    question = [str(candidate), "-I", "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(question, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    except OSError:
        return ""


def _cache() -> Path:
    told = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(told) if told else Path.home() / ".cache") / "hindcast"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlinkMissing(f"{folder} cannot be made: {error.strerror}; set XDG_CACHE_HOME") from None
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process makes it, the others wait."""
    try:
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        raise FlinkMissing(f"{folder.parent} cannot be written: {error.strerror}; set XDG_CACHE_HOME") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def link(path: Path) -> None:
    """Make `path` a link to the environment; a link that is there is replaced, anything else is left alone."""
    wanted = python().parent.parent
    if path.is_symlink():
        path.unlink()
    path.symlink_to(wanted, target_is_directory=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the slim environment of Flink Agents, once.")
    parser.add_argument("--link", type=Path, metavar="PATH", help="also make a link to it")
    args = parser.parse_args()
    try:
        print(python())
        if args.link is not None:
            link(args.link)
    except FlinkMissing as missing:
        sys.exit(f"no Flink Agents here: {missing}")


if __name__ == "__main__":
    main()
