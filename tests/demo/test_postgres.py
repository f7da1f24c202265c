"""The embedded database: reachable by its owner alone, gone with its owner, and clear about what stands in its way."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from app.demo import places
from app.demo.postgres import APPLICATION, EmbeddedPostgres, PostgresError, attach
from tests.waiting import until

ROOT = os.geteuid() == 0
RECORDS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A state folder for all tests here, since the first start takes longest; who breaks it mends it.

    Another user may pass through it, as through pytest's own temporary folders he may not.
    """
    folder = Path(tempfile.mkdtemp(prefix="hindcast-pg-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be collected has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    until(lambda: gone(pid), f"the end of process {pid}")


@contextlib.contextmanager
def broken(file: Path, text: str | None) -> Iterator[None]:
    """Replace what is in a file, or take it away, and put it back at the end."""
    before = file.read_bytes()
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    yield
    file.write_bytes(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: stat.filemode(path.stat().st_mode) for path in folder.iterdir()}


def test_it_starts_keeps_its_data_and_starts_again(home: Path) -> None:
    with EmbeddedPostgres(home) as urls, psycopg.connect(urls.owner, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        connection.execute(f"GRANT SELECT ON kept TO {APPLICATION}")
    with EmbeddedPostgres(home) as again:
        assert again == urls
        with psycopg.connect(again.app) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_no_port_is_open_and_no_file_is_readable_by_others(home: Path) -> None:
    server = EmbeddedPostgres(home, durable=False)
    urls = server.start()
    try:
        with psycopg.connect(urls.app) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        found = modes(home / "postgres")
        assert found["passwords.json"] == found["urls.json"] == found["owner.lock"] == "-rw-------"
        assert found["data"] == found["run"] == "drwx------"
        if ROOT:
            assert Path(f"/proc/{server.pid}").stat().st_uid == places.UNPRIVILEGED
            assert (home / "postgres" / "passwords.json").stat().st_uid == 0  # the server cannot read the others'
    finally:
        server.stop()


def test_the_password_is_needed(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False) as urls:
        for url in (urls.app, urls.owner, urls.superuser):
            head, _, tail = url.partition(":")[2].partition("@")
            role = head.removeprefix("//").partition(":")[0]
            for password in ("", ":wrong"):
                with pytest.raises(psycopg.OperationalError, match="password"):
                    psycopg.connect(f"postgresql://{role}{password}@{tail}")


def test_one_owner_and_others_attach(home: Path) -> None:
    assert attach(home) is None
    with EmbeddedPostgres(home, durable=False) as urls:
        assert attach(home) == urls
        with pytest.raises(PostgresError, match=rf"another Hindcast \(process {os.getpid()}\) already runs"):
            EmbeddedPostgres(home, durable=False).start()
        assert attach(home) == urls  # the refused one took nothing down
    assert attach(home) is None


OWNER = """
import sys, time
from pathlib import Path
from app.demo.postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def own(home: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Let another process own the server; returns it, and the server's process id."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(home)], stdout=subprocess.PIPE, cwd=RECORDS)
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def test_it_dies_with_its_owner_and_the_next_one_takes_over(home: Path) -> None:
    owner, server = own(home)
    owner.kill()
    owner.wait()
    # At once, while the old server may still be stopping: the new owner waits for it.
    with EmbeddedPostgres(home) as urls, psycopg.connect(urls.app) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    wait_until_gone(server)
    assert owner.stdout is not None
    owner.stdout.close()


def test_a_killed_server_recovers(home: Path) -> None:
    server = EmbeddedPostgres(home)
    urls = server.start()
    with psycopg.connect(urls.owner, autocommit=True) as connection:
        connection.execute("CREATE TABLE survived AS SELECT 1")
    os.kill(server.pid, signal.SIGKILL)
    wait_until_gone(server.pid)
    assert not server.alive()
    server.stop()
    with EmbeddedPostgres(home) as again, psycopg.connect(again.owner) as connection:
        assert connection.execute("SELECT count(*) FROM survived").fetchone() == (1,)


def test_a_stale_pid_file_of_a_recycled_process_is_no_obstacle(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False):
        pass
    (home / "postgres" / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")  # ours, surely no server
    with EmbeddedPostgres(home, durable=False):
        pass


def test_a_first_start_that_was_cut_short_begins_anew(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False):
        pass
    kept = home / "postgres"
    (kept / "prepared").unlink()
    (kept / "data" / "PG_VERSION").unlink()
    with EmbeddedPostgres(home, durable=False) as urls, psycopg.connect(urls.app) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_data_of_another_version_is_named(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False):
        pass
    server = EmbeddedPostgres(home, durable=False)
    with (
        broken(home / "postgres" / "data" / "PG_VERSION", "12\n"),
        pytest.raises(PostgresError, match="was written by PostgreSQL 12, and this Hindcast brings 18"),
    ):
        server.start()


def test_lost_passwords_are_named_and_the_data_is_left_alone(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False):
        pass
    server = EmbeddedPostgres(home, durable=False)
    with (
        broken(home / "postgres" / "passwords.json", None),
        pytest.raises(PostgresError, match=r"passwords\.json is gone"),
    ):
        server.start()
    assert (home / "postgres" / "data" / "PG_VERSION").exists()


def test_what_the_server_says_becomes_one_line_with_a_remedy(home: Path) -> None:
    with EmbeddedPostgres(home, durable=False):
        pass
    server = EmbeddedPostgres(home, durable=False)
    with (
        broken(home / "postgres" / "data" / "postgresql.auto.conf", "no_such_setting = 1\n"),
        pytest.raises(PostgresError, match=r"PostgreSQL stopped while starting: .*no_such.*; the whole log is .*\.log"),
    ):
        server.start()
    assert attach(home) is None


@pytest.mark.skipif(not ROOT, reason="only root can mount a small disk")
@pytest.mark.parametrize("size", ["8m", "110m"])
def test_a_full_disk_is_named(size: str) -> None:
    small = Path(tempfile.mkdtemp(prefix="hindcast-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=711", "tmpfs", small]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        small.rmdir()
        pytest.skip("this container may not mount")
    server = EmbeddedPostgres(small, durable=False)
    try:
        if size == "110m":  # room to begin with, and none later
            server.start()
            server.stop()
            with contextlib.suppress(OSError):
                (small / "filler").write_bytes(b"x" * (120 << 20))
            (small / "postgres" / "data" / "postmaster.pid").unlink(missing_ok=True)
        with pytest.raises(PostgresError, match="free some space on"):
            server.start()
    finally:
        server.stop()
        subprocess.run(["umount", "-l", small], check=True)
        small.rmdir()


def test_it_must_be_started_from_the_main_thread(home: Path) -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(home).start()
        except PostgresError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(PostgresError, match="cannot prepare /proc/nowhere/postgres"):
        EmbeddedPostgres(Path("/proc/nowhere")).start()


def test_a_long_path_gets_its_sockets_elsewhere(home: Path) -> None:
    deep = home / ("d" * 120)
    with EmbeddedPostgres(deep, durable=False) as urls, psycopg.connect(urls.app):
        assert "d" * 120 not in urls.app
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(Path(tempfile.gettempdir()) / f"hindcast-{places.digest(deep)}")


@pytest.mark.skipif(not ROOT, reason="only root's own folders are closed to the server")
def test_below_a_closed_folder_the_server_gets_a_place_of_its_own(home: Path) -> None:
    """As in a clone below /root."""
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    public = Path("/var/tmp") / f"hindcast-{places.digest(closed / 'state')}"
    try:
        with EmbeddedPostgres(closed / "state", durable=False) as urls, psycopg.connect(urls.app):
            assert str(public) in urls.app.replace("%2F", "/")
            assert json.loads((closed / "state" / "postgres" / "urls.json").read_text())["app"] == urls.app
            assert stat.filemode(public.stat().st_mode) == "drwx--x--x"
        shutil.rmtree(closed / "state")  # which is how the demo says to begin anew
        with EmbeddedPostgres(closed / "state", durable=False) as urls, psycopg.connect(urls.app):
            pass
    finally:
        shutil.rmtree(public, ignore_errors=True)


@pytest.mark.skipif(not ROOT, reason="needs another user")
def test_a_public_place_that_somebody_else_made_is_not_trusted(home: Path) -> None:
    closed = home / "private"
    closed.mkdir(mode=0o700)
    public = Path("/var/tmp") / f"hindcast-{places.digest(closed)}"
    public.mkdir()
    os.chown(public, 12345, 12345)
    try:
        with pytest.raises(PostgresError, match="is not a folder of ours"):
            EmbeddedPostgres(closed, durable=False).start()
    finally:
        public.rmdir()


@pytest.mark.skipif(not ROOT, reason="needs another user")
def test_programs_that_the_server_cannot_read_are_copied_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a virtual environment below /root."""
    monkeypatch.setattr(places, "_reachable", lambda folder, uid: "site-packages" not in str(folder))
    with EmbeddedPostgres(home, durable=False) as urls, psycopg.connect(urls.app):
        pass
    copies = list((home / "postgres").glob("postgresql-*"))
    assert len(copies) == 1
    before = copies[0].stat().st_mtime_ns
    with EmbeddedPostgres(home, durable=False):
        assert copies[0].stat().st_mtime_ns == before
