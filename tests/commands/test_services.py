"""`serve`, `worker` and `migrate` from the outside: one line that says what is wrong, and clean ends."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from app.demo.desk import example
from app.demo.postgres import APPLICATION, Urls
from app.demo.story import endings, tell
from app.incidents import schema
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.waiting import PATIENCE_S, ended

ROOT = Path(__file__).parents[2]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HINDCAST_")}
    return {**kept, "HINDCAST_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), **more}


def hindcast(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        check=False,
    )


@contextlib.contextmanager
def running(tmp_path: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path, **more),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", ["serve", "worker", "migrate"])
def test_without_a_database_it_says_how_to_get_one(tmp_path: Path, command: str) -> None:
    done = hindcast(tmp_path, command)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hindcast {command}: no database is configured: set HINDCAST_DATABASE_URL")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_bare_database_wants_to_be_migrated(tmp_path: Path, command: str, bare_database: Database) -> None:
    done = hindcast(tmp_path, command, HINDCAST_DATABASE_URL=bare_database.app)
    assert done.returncode == 2
    assert re.search(r"has no tables of Hindcast yet; run `hindcast migrate`$", done.stderr.strip())


def test_migrate_gives_the_application_its_role_and_shows_no_password(tmp_path: Path, bare_database: Database) -> None:
    urls = {"HINDCAST_DATABASE_URL": bare_database.app, "HINDCAST_DATABASE_OWNER_URL": bare_database.owner}
    for _ in range(2):
        done = hindcast(tmp_path, "migrate", **urls)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(f"is at revision {schema.HEAD}; role {APPLICATION} has its rights\n")
        assert ":***@" in done.stdout
    schema.check(bare_database.app)


def test_migrate_works_where_one_user_is_both(tmp_path: Path, bare_database: Database) -> None:
    done = hindcast(tmp_path, "migrate", HINDCAST_DATABASE_URL=bare_database.owner)
    assert (done.returncode, done.stderr) == (0, "")
    schema.check(bare_database.owner)


def test_migrate_by_the_application_is_refused_by_the_database(tmp_path: Path, bare_database: Database) -> None:
    done = hindcast(tmp_path, "migrate", HINDCAST_DATABASE_URL=bare_database.app)
    assert done.returncode == 2
    assert "permission denied" in done.stderr


def test_a_mistake_in_the_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "hindcast.toml").write_text("[console]\nprot = 1\n")
    done = hindcast(tmp_path, "serve")
    expected = f"hindcast serve: {tmp_path}/hindcast.toml: console.prot is not a setting; did you mean port?\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_a_build_that_is_not_configured_is_named(tmp_path: Path, database: Database) -> None:
    done = hindcast(tmp_path, "worker", "--builds", "x", HINDCAST_DATABASE_URL=database.app)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "hindcast worker: --builds names 'x'; configured builds: none (see [[builds]] in hindcast.toml)",
    )


def test_serve_opens_its_door_to_the_token_alone_and_ends_cleanly(tmp_path: Path, database: Database) -> None:
    token = "0123456789abcdef"
    urls = {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_TOKEN": token}
    with running(tmp_path, "serve", "--port", "0", "--log-level", "warning", **urls) as process:
        assert process.stdout is not None
        base, _, shown = process.stdout.readline().strip().partition("/enter?token=")
        assert shown == token
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{base}/api/v1/incidents", timeout=PATIENCE_S)
        request = urllib.request.Request(f"{base}/api/v1/incidents", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert json.load(answer)["incidents"] == []
        busy = hindcast(tmp_path, "serve", "--port", base.rpartition(":")[2], **urls)
        assert busy.returncode == 2
        assert "is in use; stop the program that has it" in busy.stderr
        open_to_all = hindcast(tmp_path, "serve", "--host", "0.0.0.0", **urls)
        assert open_to_all.returncode == 2
        assert "can be reached from other machines, and access.mode is not set" in open_to_all.stderr
        (tmp_path / "hindcast.toml").write_text('[access]\nmode = "token"\n')
        wrong = hindcast(tmp_path, "serve", "--host", "no.such.host.invalid", **urls)
        assert "console.host 'no.such.host.invalid' is not an address" in wrong.stderr
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0


def test_serve_and_worker_attach_to_the_embedded_database(tmp_path: Path, postgres: Urls) -> None:
    """As beside a running demo: the owner's state folder is enough to find everything."""
    home = Path(re.search(r"host=([^&]+)", postgres.app)[1].replace("%2F", "/")).parents[1]  # type: ignore[index]
    with psycopg.connect(postgres.superuser, autocommit=True) as connection:
        missing = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'hindcast'").fetchone() is None
        assert not missing
    done = hindcast(tmp_path, "migrate", HINDCAST_HOME=str(home))
    assert done.returncode == 0, done.stderr
    with running(tmp_path, "serve", "--port", "0", HINDCAST_HOME=str(home)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")


async def test_the_worker_replays_what_was_asked_for_and_drains(
    tmp_path: Path, database: Database, store: Store
) -> None:
    runs = await tell(store, ["refunds-v1", "refunds-v2"])
    config = str(example() / "hindcast.toml")
    with running(tmp_path, "worker", "--jobs", "1", "--config", config, HINDCAST_DATABASE_URL=database.app) as process:
        there = await endings(store, runs, PATIENCE_S)
        assert [(run.build, run.outcome) for run in there] == [("refunds-v1", "reproduced"), ("refunds-v2", "diverged")]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(ended, process) == 0


def test_the_command_line_loads_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys\nfrom app import cli\n"
        "try:\n    cli.main(['{0}', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {{'sqlalchemy', 'fastapi', 'procrastinate', 'pydantic', 'google', 'alembic', 'psycopg', 'jinja2'}}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    for command in ("serve", "worker", "migrate", "demo", "replay"):
        done = subprocess.run(
            [sys.executable, "-c", script.format(command)], capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert done.stdout.splitlines()[-1] == "[]", command
