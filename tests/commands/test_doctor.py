"""The doctor names each thing that is not as it should be, with its remedy, and nothing secret."""

import json
from pathlib import Path

from app.incidents import pool
from app.incidents.service import Store
from tests.commands.test_services import hindcast
from tests.fixtures.postgres import Database

BUILD = """
[[builds]]
name = "a"
agent = "m:A"
paths = ["code"]
"""


def diagnose(tmp_path: Path, *words: str, **environment: str) -> tuple[int, dict[str, dict[str, str]], str]:
    done = hindcast(tmp_path, "doctor", "--json", *words, **environment)
    found = json.loads(done.stdout)
    return done.returncode, {one["subject"]: one for one in found}, done.stdout + done.stderr


async def test_what_is_well_and_what_is_not(tmp_path: Path, database: Database, store: Store) -> None:
    (tmp_path / "code").mkdir()
    file = tmp_path / "hindcast.toml"
    broker = '[[pipelines]]\nname = "p"\nbrokers = ["127.0.0.1:1"]\n[pipelines.topics]\ntraces = "t"\n'
    file.write_text(BUILD + broker)
    async with store.write() as session:
        told = {"builds": ["a"], "jobs": 1, "running": 0, "draining": False}
        await pool.beat(session, "1", name="w", version="0.0.1", **told)
        # It shows signs of life for as long as the test may take.
        await session.execute(pool.text("UPDATE workers SET beat_at = beat_at + interval '1 hour'"))
    environment = {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_TOKEN": "a-token-for-tests-alone"}
    code, found, text = diagnose(tmp_path, "--no-brokers", **environment)
    assert code == 0, text
    assert found["confinement"]["status"] in ("well", "warning")
    assert (found["database"]["status"], found["migrations"]["status"]) == ("well", "well")
    assert found["database role"]["found"] == "can neither change evidence nor make itself able to"
    assert found["build a"]["remedy"].startswith('add digest = "sha256:')
    assert found["workers"]["found"] == "some are of version 0.0.1"
    assert found["pipeline p"]["remedy"] == "start `hindcast collect`"
    assert "a-token-for-tests-alone" not in text
    assert database.app.split(":")[2].split("@")[0] not in text
    file.write_text(BUILD + f'digest = "sha256:{"0" * 64}"\n[sandbox]\nunconfined = true\n')
    code, found, _ = diagnose(tmp_path, **{**environment, "HINDCAST_DATABASE_URL": database.owner})
    assert code == 1
    assert "bring the files back" in found["build a"]["remedy"]
    assert found["sandbox"]["status"] == "warning"
    assert found["database role"]["found"] == "the application's role owns the tables"


def test_without_a_database_it_goes_on_and_says_so(tmp_path: Path) -> None:
    code, found, _ = diagnose(tmp_path)
    assert code == 1
    assert found["database"]["found"].startswith("no database is configured")
    assert found["builds"]["remedy"] == "add [[builds]]: nothing can be replayed without"
    assert found["access"]["found"] == "the start-up token, from this machine alone"
    (tmp_path / "hindcast.toml").write_text('[console]\nhost = "0.0.0.0"\n')
    _, found, _ = diagnose(tmp_path)
    assert found["access"]["status"] == "wrong"
    assert found["access"]["remedy"].startswith('set access.mode to "oidc" or "proxy"')
    (tmp_path / "hindcast.toml").write_text("[console]\nprot = 1\n")
    done = hindcast(tmp_path, "doctor")
    assert done.returncode == 1
    assert "console.prot is not a setting; did you mean port?" in done.stdout
    assert "looked at, 1 wrong" in done.stdout
