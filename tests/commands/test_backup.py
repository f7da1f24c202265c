"""A back-up is restored whole: evidence by its digests, the trail by its chain; and damage shows."""

from pathlib import Path

import psycopg

from app.incidents import service
from app.incidents.service import Store
from tests.commands.test_services import hindcast
from tests.fixtures.postgres import Database
from tests.golden.scenarios import scenario
from tests.incidents.evidence import report


def urls(database: Database) -> dict[str, str]:
    return {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_DATABASE_OWNER_URL": database.owner}


async def fill(store: Store) -> None:
    for name in ("a01_fraud_completed", "d01_intent_order"):
        async with store.write() as session:
            incident = await service.import_evidence(session, scenario(name).bundle(), who="ada")
            asked = await service.request_replay(session, incident, "v1", who="ada", known=["v1"])
        async with store.write() as session:
            run = await service.claim_run(session, asked.id, worker="w", lease_s=60)
            assert run is not None
            await service.finish_run(session, run.id, run.attempt, report(3))


def everything(url: str) -> dict[str, object]:
    """All rows of all tables, but for who works and what is queued."""
    with psycopg.connect(url) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            if not name.startswith("procrastinate")
        ]
        return {name: sorted(map(str, connection.execute(f"SELECT * FROM {name}"))) for name in sorted(tables)}


async def test_a_back_up_is_restored_whole(
    tmp_path: Path, database: Database, bare_database: Database, store: Store
) -> None:
    await fill(store)
    done = hindcast(tmp_path, "backup", "all.dump", **urls(database))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "all.dump").stat().st_mode & 0o077 == 0
    again = hindcast(tmp_path, "backup", "all.dump", **urls(database))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    over = hindcast(tmp_path, "restore", "all.dump", **urls(database))
    assert (over.returncode, "the database is not empty" in over.stderr) == (2, True)
    done = hindcast(tmp_path, "restore", "all.dump", **urls(bare_database))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("6 files of evidence in ")
    assert done.stdout.endswith("2 runs, 4 entries of the audit trail: all whole\n")
    assert everything(bare_database.owner) == everything(database.owner)
    # It is worked with as before: the application has its rights, and ids go on where they ended.
    restored = Store(bare_database.app)
    await fill(restored)
    await restored.close()
    (tmp_path / "half.dump").write_bytes((tmp_path / "all.dump").read_bytes()[:5000])
    with psycopg.connect(bare_database.superuser, autocommit=True) as connection:
        connection.execute("DROP OWNED BY hindcast_owner CASCADE")
        connection.execute("GRANT ALL ON SCHEMA public TO hindcast_owner")
    cut = hindcast(tmp_path, "restore", "half.dump", **urls(bare_database))
    assert (cut.returncode, "pg_restore failed" in cut.stderr) == (2, True)


async def test_verify_names_what_is_damaged(tmp_path: Path, database: Database, store: Store) -> None:
    await fill(store)
    whole = hindcast(tmp_path, "verify", **urls(database))
    assert (whole.returncode, whole.stderr) == (0, "")
    with psycopg.connect(database.superuser, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # as a disk does it: no trigger is asked
        connection.execute("UPDATE blobs SET codec = 'raw', data = 'x' WHERE sha256 = (SELECT min(sha256) FROM blobs)")
        connection.execute("UPDATE blobs SET data = 'x' WHERE sha256 = (SELECT max(sha256) FROM blobs)")
    damaged = hindcast(tmp_path, "verify", **urls(database))
    assert damaged.returncode == 1
    assert "its bytes have the digest" in damaged.stdout
    assert damaged.stdout.endswith("DAMAGED\n")
    assert len(damaged.stdout.splitlines()) == 3
