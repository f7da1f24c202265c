"""`hindcast flink` from the outside: logs counted, imported, and followed through rotation, a kill, and a restart."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import psycopg
import pytest

from tests.commands.test_services import hindcast, running
from tests.fixtures.postgres import Database
from tests.flink.lines import traced_run
from tests.incidents.flink import LOGS, NAMES
from tests.waiting import ended, until

FILES = [str(LOGS / name) for name in NAMES]
JOB = "296eb6d9a38437b2b6df303a45c35cee"


def test_a_dry_run_counts_and_needs_no_database(tmp_path: Path) -> None:
    done = hindcast(tmp_path, "flink", "import", "--dry-run", "--format", "json", *FILES)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    counted = {name: told[name] for name in ("runs", "events", "duplicates", "truncated", "unattributed", "unfinished")}
    assert counted == {
        "runs": 15, "events": 178, "duplicates": 0, "truncated": 0, "unattributed": 0, "unfinished": 2,
    }  # fmt: skip


def test_an_import_says_what_it_brought_and_again_that_it_was_here(tmp_path: Path, database: Database) -> None:
    words = ("flink", "import", "--key-path", "$.input.k", *FILES)
    first = hindcast(tmp_path, *words, HINDCAST_DATABASE_URL=database.app)
    assert (first.returncode, first.stderr) == (0, "")
    assert "15 runs\n" in first.stdout
    assert "2 runs without an end" in first.stdout
    again = hindcast(tmp_path, *words, "--format", "json", HINDCAST_DATABASE_URL=database.app)
    told = json.loads(again.stdout)
    assert (told["runs"], told["events"], sorted(told["already"])) == (15, 0, sorted(NAMES))
    with psycopg.connect(database.owner) as connection:
        noted = connection.execute("SELECT count(*) FROM audit_events WHERE what = 'event_log.imported'").fetchone()
        keys = connection.execute("SELECT count(*) FROM flink_runs WHERE key IS NOT NULL").fetchone()
    assert (noted, keys) == ((4,), (15,))


def test_what_is_wrong_is_named(tmp_path: Path, database: Database) -> None:
    missing = hindcast(tmp_path, "flink", "import", "nowhere.log", HINDCAST_DATABASE_URL=database.app)
    assert missing.returncode == 2
    assert missing.stderr.startswith("hindcast flink import: there is no file nowhere.log; name event logs")
    packed = tmp_path / "some.log.gz"
    packed.write_bytes(gzip.compress(Path(FILES[2]).read_bytes())[:2000])
    damaged = hindcast(tmp_path, "flink", "import", str(packed), HINDCAST_DATABASE_URL=database.app)
    assert damaged.returncode == 1
    assert "the packed file is damaged or cut short" in damaged.stderr
    wrong = hindcast(tmp_path, "flink", "import", "--key-path", "$..k", *FILES, HINDCAST_DATABASE_URL=database.app)
    assert (wrong.returncode, "'$..k' is no path to a key" in wrong.stderr) == (2, True)
    assert hindcast(tmp_path, "flink", "follow", "nowhere").returncode == 2


def test_a_folder_is_followed_through_rotation_a_kill_and_a_restart(tmp_path: Path, database: Database) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / f"events-{JOB}-agent-0.log"
    runs = [b"".join(line + b"\n" for line in traced_run(f"r{n}", "k", n * 10, f"text {n}")) for n in range(6)]
    (folder / "taskmanager.log").write_bytes(runs[5])  # another log, which nobody asked for
    words = ("flink", "follow", str(folder), "--every", "0.1")
    log.write_bytes(runs[0] + runs[1][:200])  # the writer is inside a line
    with running(tmp_path, *words, HINDCAST_DATABASE_URL=database.app) as first:
        wait(database, 6)
        with log.open("ab") as file:
            file.write(runs[1][200:])
        wait(database, 12)
        # Rotated with something unread in it, and packed right away.
        with log.open("ab") as file:
            file.write(runs[2])
        log.rename(folder / f"{log.name}.1")
        log.write_bytes(runs[3])
        wait(database, 24)
        first.kill()
        first.wait()
    rotated = folder / f"{log.name}.1"
    (folder / f"{log.name}.1.gz").write_bytes(gzip.compress(rotated.read_bytes()))
    rotated.unlink()
    with log.open("ab") as file:
        file.write(runs[4])
    with running(tmp_path, *words, HINDCAST_DATABASE_URL=database.app) as second:
        wait(database, 30)
        second.terminate()
        assert ended(second) == 0
    with psycopg.connect(database.owner) as connection:
        counted = connection.execute("SELECT ref, status, records FROM flink_runs ORDER BY ref").fetchall()
    assert counted == [(f"r{n}", "completed", 6) for n in range(5)]


def wait(database: Database, records: int) -> None:
    """Wait until so many lines are stored."""
    until(lambda: stored(database) >= records, lambda: f"{records} lines: there are {stored(database)}", pause_s=0.05)
    assert stored(database) == records


def stored(database: Database) -> int:
    with psycopg.connect(database.owner) as connection:
        (count,) = connection.execute("SELECT count(*) FROM flink_records").fetchone() or (0,)
    return int(count)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads what it may not")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    log = tmp_path / "some.log"
    log.write_bytes(b"")
    log.chmod(0)
    done = hindcast(tmp_path, "flink", "import", "--dry-run", str(log))
    assert "cannot be read (Permission denied)" in done.stderr + done.stdout
