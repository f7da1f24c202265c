"""Another interpreter, looked at before it is used: which Python it is, what is installed there, what it lacks.

Nothing of what is installed there runs here: the interpreter is started without `site`, whose `.pth` files would, and
packages are read off their names on disk. A linked (editable) installation is therefore not seen; an agent's own
code belongs into the build's paths.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.sandbox.drivers import PROTOBUF, PYTHON, Bounds, Driver, Version
from app.sandbox.model import SandboxError

_PATIENCE_S: Final = 60.0
_QUESTION: Final = """
import json, platform, sys, sysconfig
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "implementation": platform.python_implementation(),
    "prefix": sys.base_prefix,
    "folders": [sysconfig.get_path(name) for name in ("purelib", "platlib")],
}))
"""


class InterpreterError(SandboxError):
    """An interpreter that cannot run replays; the text names it, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One interpreter and what is installed for it.

    `packages` are versions by normalised name. `digest` (`sha256:…`) covers Python's version and, by their own lists
    of files and hashes, all packages: it is the lock that pre-loaded modules belong to. `stamp` changes whenever
    something is installed or removed; comparing it costs a few looks at the disk.
    """

    interpreter: Path
    python: str
    import_path: tuple[str, ...]
    packages: Mapping[str, str]
    digest: str
    stamp: tuple[object, ...]

    def is_current(self) -> bool:
        """Whether nothing was installed or removed since it was looked at."""
        return self.stamp == _stamp(self.interpreter, self.import_path)

    def require(self, name: str, driver: Driver) -> None:
        """Raise `InterpreterError` where a driver called `name` cannot run here: all that is missing, at once."""
        version = tuple(int(part) for part in self.python.split("."))
        if version < PYTHON:
            wanted = ".".join(map(str, PYTHON))
            raise InterpreterError(f"{self.interpreter} is Python {self.python}; a replay needs {wanted} or newer")
        lacking = [
            f"{package}{bounds} ({self.packages.get(package, 'not installed')})"
            for package, bounds in {"protobuf": PROTOBUF, **driver.needs}.items()
            if not _fits(self.packages.get(package), bounds)
        ]
        if lacking:
            raise InterpreterError(
                f"the environment of {self.interpreter} cannot run the driver {name!r}: it needs {', '.join(lacking)};"
                " install that there, or name another interpreter"
            )


def look_at(interpreter: Path) -> Environment:
    """Ask an interpreter what it is. Raises `InterpreterError` where it is none that could run replays."""
    said = _ask(interpreter)
    if said["implementation"] != "CPython":
        raise InterpreterError(f"{interpreter} is {said['implementation']}; a replay needs CPython")
    major, minor, _ = said["version"]
    import_path = tuple(_import_path(interpreter, said, f"python{major}.{minor}"))
    return _described(interpreter, ".".join(map(str, said["version"])), import_path)


def own(import_path: Iterable[str]) -> Environment:
    """This process's own interpreter, whose packages lie in the folders of `import_path`."""
    return _described(Path(sys.executable), ".".join(map(str, sys.version_info[:3])), tuple(import_path))


def _described(interpreter: Path, python: str, import_path: tuple[str, ...]) -> Environment:
    found = sorted(_installed(import_path))
    total = hashlib.sha256(f"{python}\n".encode())
    for name, version, record in found:
        total.update(f"{name}=={version} {hashlib.sha256(record).hexdigest()}\n".encode())
    return Environment(
        interpreter=interpreter,
        python=python,
        import_path=import_path,
        packages={name: version for name, version, _ in found},
        digest=f"sha256:{total.hexdigest()}",
        stamp=_stamp(interpreter, import_path),
    )


def _ask(interpreter: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [interpreter, "-I", "-S", "-c", _QUESTION],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        said: dict[str, Any] = json.loads(done.stdout)
        return {key: said[key] for key in ("version", "implementation", "prefix", "folders")}
    except OSError as error:
        raise InterpreterError(
            f"the interpreter {interpreter} cannot be started: {error.strerror}; name the python of an environment"
        ) from error
    except subprocess.TimeoutExpired:
        raise InterpreterError(f"the interpreter {interpreter} did not answer within {_PATIENCE_S:g} s") from None
    except (ValueError, KeyError, TypeError):
        told = done.stderr.decode(errors="replace").strip()[-500:]
        raise InterpreterError(
            f"{interpreter} does not answer as Python does{f': {told}' if told else ''}; name the python of an"
            " environment, such as venv/bin/python"
        ) from None


def _import_path(interpreter: Path, said: Mapping[str, Any], python: str) -> Iterator[str]:
    """The folders of installed packages that exist, each once: the environment's, else or as well the base's."""
    base = [*said["folders"], f"{said['prefix']}/local/lib/{python}/dist-packages", "/usr/lib/python3/dist-packages"]
    if not said["prefix"].startswith("/usr"):
        base.pop()  # Debian's, and of no concern to a Python from elsewhere
    settings = next((file for file in _settings_files(interpreter) if file.is_file()), None)
    wanted = base
    if settings is not None:
        own = [f"{settings.parent}/{lib}/{python}/site-packages" for lib in ("lib", "lib64")]
        wanted = [*own, *base] if _shares_base(settings) else own
    seen = set()
    for folder in wanted:
        real = os.path.realpath(folder)
        if Path(folder).is_dir() and real not in seen:
            seen.add(real)
            yield folder


def _settings_files(interpreter: Path) -> tuple[Path, Path]:
    """Where Python looks for what makes a folder a virtual environment."""
    return interpreter.parent / "pyvenv.cfg", interpreter.parent.parent / "pyvenv.cfg"


def _shares_base(settings: Path) -> bool:
    for line in settings.read_text(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip().lower() == "include-system-site-packages":
            return value.strip().lower() == "true"
    return False


def _installed(import_path: Iterable[str]) -> Iterator[tuple[str, str, bytes]]:
    """Name, version and list of files of each package; of one that is there twice, the one that Python finds."""
    seen = set()
    for folder in import_path:
        for entry in sorted(os.listdir(folder)):  # noqa: PTH208
            stem, kind = os.path.splitext(entry)  # noqa: PTH122  hundreds of them, at each start
            if kind not in (".dist-info", ".egg-info"):
                continue
            name, version, *_ = (*stem.split("-"), "unknown")
            name = re.sub(r"[-_.]+", "-", name).lower()
            if name in seen:
                continue
            seen.add(name)
            record = Path(folder, entry, "RECORD")
            yield name, version, record.read_bytes() if record.is_file() else b""


def _stamp(interpreter: Path, import_path: Iterable[str]) -> tuple[object, ...]:
    def of(path: Path) -> tuple[int, int] | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    return tuple(of(path) for path in (interpreter, *_settings_files(interpreter), *map(Path, import_path)))


def _fits(found: str | None, bounds: Bounds) -> bool:
    return found is not None and bounds.first <= numbers(found) < bounds.below


def numbers(version: str) -> Version:
    """The leading numbers of a version: `1.0.0a1` gives 1, 0, 0."""
    released = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in released[0].split(".")) if released else ()
