"""A real PostgreSQL of our own for the demo and the tests, so that nobody has to install one first.

It listens on a Unix socket only, steps down from root, and dies with the process that started it. One process owns it,
behind a file lock; others find it through `attach`. Our own supervisor, because the wheel's loosens permissions.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

from app.demo.places import Places, PostgresError, arrange, keep_folder, version
from app.demo.processes import die_with, end

__all__ = ["EmbeddedPostgres", "PostgresError", "Urls", "attach"]

SUPERUSER: Final = "postgres"
OWNER: Final = "hindcast_owner"
APPLICATION: Final = "hindcast_app"
PURGER: Final = "hindcast_purge"
DATABASE: Final = "hindcast"

_START_S: Final = 180.0  # ends what hangs; what dies is noticed at once
_STOP_S: Final = 20.0
_FIRST_START_BYTES: Final = 100 << 20

_SETTINGS: Final[dict[str, str]] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "password_encryption": "scram-sha-256",
}
# For tests: a crash may lose everything, and nobody minds.
_CARELESS: Final[dict[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "32MB",
}


@dataclass(frozen=True, slots=True)
class Urls:
    """How to reach the server, by role.

    `app` works, `owner` migrates, `purge` removes what need not be kept, `superuser` makes databases (tests only).
    """

    app: str
    owner: str
    superuser: str
    purge: str


class EmbeddedPostgres:
    """Owns one server in the state folder `home` from `start` to `stop`; a context manager does both.

    `durable=False` trades crash safety for speed (tests). `start` raises `PostgresError`, and must be called from the
    main thread: the kernel ties "die with your parent" to the thread that started the server.
    """

    def __init__(self, home: Path, *, durable: bool = True) -> None:
        self.home = home
        self._settings = _SETTINGS if durable else {**_SETTINGS, **_CARELESS}
        self._durable = durable
        self._lock: IO[str] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._places: Places | None = None

    def start(self) -> Urls:
        """Make the server ready, creating its files at the first start, and say how to reach it."""
        if threading.current_thread() is not threading.main_thread():
            raise PostgresError("the embedded PostgreSQL must be started from the main thread")
        places = self._places = arrange(self.home)
        self._lock = _own(places)
        try:
            known = _passwords(places)
            passwords = known if PURGER in known else {**known, PURGER: secrets.token_urlsafe(24)}
            fresh = self._prepare(places, passwords)
            urls = _urls(places, passwords)
            self._launch(places)
            if fresh:
                _create_roles(urls, passwords)
                places.prepared.touch()
            elif PURGER not in known:
                _create_role(urls, places, passwords)
            _write_private(places.urls, json.dumps({"pid": os.getpid(), **asdict(urls)}))
        except BaseException:
            self.stop()
            raise
        return urls

    def stop(self) -> None:
        """Shut the server down, quickly but cleanly, and give up the lock; harmless when it is not running."""
        if self._places is not None and self._lock is not None:
            self._places.urls.unlink(missing_ok=True)
        if self._server is not None:
            end(self._server, (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL), _STOP_S)
            self._server = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def alive(self) -> bool:
        """Whether the server process still runs."""
        return self._server is not None and self._server.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process id; raises `PostgresError` when it is not running."""
        if self._server is None:
            raise PostgresError("the embedded PostgreSQL is not running")
        return self._server.pid

    def __enter__(self) -> Urls:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self, places: Places, passwords: Mapping[str, str]) -> bool:
        """See that the data folder is whole and ours; True when it was made anew and its roles are still to come."""
        if not places.prepared.exists():
            _clear(places)  # a first start that was cut short left an unknown half
            self._initdb(places, passwords[SUPERUSER])
            return True
        _check_version(places)
        _wait_for_predecessor(places)
        return False

    def _initdb(self, places: Places, password: str) -> None:
        if (free := shutil.disk_usage(places.data).free) < _FIRST_START_BYTES:
            raise PostgresError(
                f"the disk of {places.data} has {free >> 20} MiB left, and an empty database takes"
                f" {_FIRST_START_BYTES >> 20}; free some space on it, or set HINDCAST_HOME elsewhere"
            )
        pwfile = _private(places.sockets / "initdb.pw")
        pwfile.write_text(password)
        if places.uid is not None:
            os.chown(pwfile, places.uid, places.uid)
        command: list[str | Path] = [places.bin / "initdb", "-D", places.data, "-U", SUPERUSER, f"--pwfile={pwfile}"]
        command += ["-E", "UTF8"]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--auth=scram-sha-256"]
        command += ["--wal-segsize=4", "--no-instructions", *([] if self._durable else ["--no-sync"])]
        try:
            done = subprocess.run(command, **_identity(places), capture_output=True, text=True, check=False)
        except OSError as error:
            message = f"cannot run {places.bin / 'initdb'}: {error.strerror}; run `make setup` again"
            raise PostgresError(message) from error
        finally:
            pwfile.unlink(missing_ok=True)
        if done.returncode:
            _clear(places)
            raise PostgresError(_explain("PostgreSQL could not create its files", done.stderr, places))

    def _launch(self, places: Places) -> None:
        arguments = [f"--{name}={value}" for name, value in self._settings.items()]
        arguments += [f"--unix_socket_directories={places.sockets}"]
        places.log.write_bytes(b"")
        with places.log.open("ab") as log:
            self._server = subprocess.Popen(
                [places.bin / "postgres", "-D", places.data, *arguments],
                **_identity(places),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in a terminal must reach us alone: we stop first, the server afterwards.
                start_new_session=True,
                preexec_fn=die_with(os.getpid(), signal.SIGINT),  # a fast shutdown
            )
        self._await_ready(places, self._server)

    def _await_ready(self, places: Places, server: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if server.poll() is not None:
                log = places.log.read_text(errors="replace")
                raise PostgresError(_explain("PostgreSQL stopped while starting", log, places))
            if _postmaster(places)[7:8] == ["ready"] and _postmaster(places)[0] == str(server.pid):
                return
            time.sleep(0.002)
        raise PostgresError(f"PostgreSQL was not ready after {_START_S:.0f} s; see {places.log}")


def attach(home: Path) -> Urls | None:
    """Find the server that another process owns in the state folder `home`; None when none is running."""
    keep = keep_folder(home)
    try:
        with (keep / "owner.lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # nobody holds it
    except FileNotFoundError:
        return None
    except BlockingIOError:
        pass
    except PermissionError as error:
        raise PostgresError(f"{keep} belongs to another user; run as that user, or set HINDCAST_HOME") from error
    try:
        told = json.loads((keep / "urls.json").read_text())
    except FileNotFoundError as error:
        raise PostgresError(f"the embedded PostgreSQL in {keep} is still starting or stopping; try again") from error
    return Urls(told["app"], told["owner"], told["superuser"], told.get("purge", ""))


def _own(places: Places) -> IO[str]:
    lock = _private(places.lock).open("r+")
    if not _locked(lock):
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise PostgresError(
            f"another Hindcast (process {holder}) already runs the embedded database in {places.keep}; stop it,"
            " attach to it with `hindcast serve` or `hindcast worker`, or set HINDCAST_HOME to another folder"
        )
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _locked(lock: IO[str]) -> bool:
    """Take the lock; try a few times, since `attach` holds it for an instant to see whether anybody does."""
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.02)
    return False


def _passwords(places: Places) -> dict[str, str]:
    """Read the passwords of the roles, made at random the first time."""
    try:
        known: dict[str, str] = json.loads(places.passwords.read_text())
        return known
    except FileNotFoundError:
        if places.prepared.exists() and places.data.parent == places.keep:
            raise PostgresError(
                f"{places.passwords} is gone, and the database in {places.data} opens with nothing else; move"
                f" {places.data.parent} away to start with an empty one"
            ) from None
        # Where the data lies elsewhere, the person removed the state folder to begin anew.
        places.prepared.unlink(missing_ok=True)
        made = {role: secrets.token_urlsafe(24) for role in (SUPERUSER, OWNER, APPLICATION, PURGER)}
        _write_private(places.passwords, json.dumps(made))
        return made


def _urls(places: Places, passwords: Mapping[str, str]) -> Urls:
    def url(role: str, database: str) -> str:
        return f"postgresql://{role}:{passwords[role]}@/{database}?host={quote(str(places.sockets), safe='')}"

    return Urls(url(APPLICATION, DATABASE), url(OWNER, DATABASE), url(SUPERUSER, "postgres"), url(PURGER, DATABASE))


def _create_roles(urls: Urls, passwords: Mapping[str, str]) -> None:
    """Make the owner of the tables, and roles that own nothing and may not create anything."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(urls.superuser, autocommit=True) as connection:
        for role in (OWNER, APPLICATION, PURGER):
            statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(role), sql.Literal(passwords[role])))
        connection.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        connection.execute(f"REVOKE ALL ON DATABASE {DATABASE} FROM PUBLIC")
        connection.execute(f"GRANT CONNECT ON DATABASE {DATABASE} TO {APPLICATION}, {PURGER}")


def _create_role(urls: Urls, places: Places, passwords: Mapping[str, str]) -> None:
    """Make the role of retention in a database that is older than it; its password is written once it is there."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(urls.superuser, autocommit=True) as connection:
        known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (PURGER,)).fetchone()
        verb = "ALTER" if known else "CREATE"
        statement = sql.SQL(verb + " ROLE {} LOGIN PASSWORD {}")
        connection.execute(statement.format(sql.Identifier(PURGER), sql.Literal(passwords[PURGER])))
        connection.execute(f"GRANT CONNECT ON DATABASE {DATABASE} TO {PURGER}")
    _write_private(places.passwords, json.dumps(dict(passwords)))


def _check_version(places: Places) -> None:
    try:
        found = (places.data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        found = "unknown"
    ours = version().split(".")[0]
    if found != ours:
        raise PostgresError(
            f"{places.data} was written by PostgreSQL {found}, and this Hindcast brings {ours}; move"
            f" {places.data.parent} away to start with an empty database, or install the Hindcast that wrote it"
        )


def _wait_for_predecessor(places: Places) -> None:
    """Let a server whose owner was killed finish stopping, and drop the file of one that no longer exists."""
    deadline = time.monotonic() + _STOP_S
    while (lines := _postmaster(places)) and lines[0].isdecimal():
        if not _is_server(int(lines[0]), places):
            (places.data / "postmaster.pid").unlink(missing_ok=True)
            return
        if time.monotonic() > deadline:
            raise PostgresError(
                f"an earlier PostgreSQL (process {lines[0]}) still uses {places.data}; stop it: kill -INT {lines[0]}"
            )
        time.sleep(0.02)


def _is_server(pid: int, places: Places) -> bool:
    """Whether that process is a PostgreSQL over our data folder (process ids are used again after a restart)."""
    try:
        return Path(f"/proc/{pid}/cwd").resolve(strict=True) == places.data.resolve()
    except OSError:
        return False


def _postmaster(places: Places) -> list[str]:
    """Read the lines of `postmaster.pid`: line 1 is the process id, line 8 the state."""
    try:
        return [line.strip() for line in (places.data / "postmaster.pid").read_text().splitlines()]
    except FileNotFoundError:
        return []


def _identity(places: Places) -> dict[str, Any]:
    """Process settings that every program of the server shares: its user, an empty environment, its folder."""
    identity: dict[str, Any] = {"env": {"LC_ALL": "C", "TZ": "UTC"}, "cwd": places.data}
    if places.uid is not None:
        identity |= {"user": places.uid, "group": places.uid, "extra_groups": []}
    return identity


def _clear(places: Places) -> None:
    for child in places.data.iterdir():
        shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def _private(path: Path) -> Path:
    path.touch(mode=0o600)
    path.chmod(0o600)
    return path


def _write_private(path: Path, text: str) -> None:
    """Write a file that only we may read, so that it is there whole or not at all."""
    scratch = _private(path.with_name(f"{path.name}.new"))
    scratch.write_text(text)
    scratch.replace(path)


def _explain(what: str, output: str, places: Places) -> str:
    """Turn the server's last words into one message with a remedy."""
    remedies = {
        "No space left on device": f"free some space on the disk of {places.data}, or set HINDCAST_HOME elsewhere",
        "Permission denied": f"user {places.uid or os.geteuid()} must be able to reach {places.data}",
        "could not create shared memory segment": "the machine has too little shared memory (/dev/shm)",
        "incompatible with server": f"move {places.data.parent} away to start with an empty database",
        "user does not exist": f"PostgreSQL needs a user with a name; add one: useradd --uid {os.geteuid()} hindcast",
        "lock file": f"another server uses {places.data}; stop it first",
    }
    if shutil.disk_usage(places.data).free < 16 << 20:
        output += "No space left on device"  # PostgreSQL does not always get to say it
    remedy = next((text for sign, text in remedies.items() if sign in output), f"the whole log is {places.log}")
    last = [line for line in output.strip().splitlines() if line.strip()][-4:]
    return f"{what}: {' / '.join(line.strip() for line in last) or 'it said nothing'}; {remedy}"
