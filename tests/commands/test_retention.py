"""`hindcast purge` and `hindcast erase` from the outside: listed first, then gone, and refused without their role."""

from __future__ import annotations

from pathlib import Path

import psycopg

from app.incidents import cases, service
from app.incidents.service import Store
from tests.commands.test_services import hindcast
from tests.fixtures.postgres import Database
from tests.incidents.evidence import recording
from tests.incidents.flink import LOGS, NAMES, bring_in


async def test_purge_and_erase(store: Store, database: Database, tmp_path: Path) -> None:
    def run(*words: str, purge: str | None = database.purge) -> tuple[int, str]:
        urls = {
            "HINDCAST_DATABASE_URL": database.app,
            **({} if purge is None else {"HINDCAST_DATABASE_PURGE_URL": purge}),
        }
        done = hindcast(tmp_path, *words, **urls)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    async with store.write() as session:
        old = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada", title="old one")
        await cases.change_case(session, old, {"status": "closed"}, revision=1, who="ada")
        other = await service.import_evidence(session, recording("a01_fraud_completed"), who="ada")
    with psycopg.connect(database.superuser) as connection:
        connection.execute("UPDATE incidents SET closed_at = closed_at - interval '40 days' WHERE status = 'closed'")

    code, said = run("purge", "--closed-days", "30", purge=None)
    assert (code, "no role of retention is configured" in said) == (2, True), said
    code, said = run("purge", "--closed-days", "30", purge=database.app)
    assert (code, "is not the role of retention" in said) == (2, True), said
    code, said = run("purge")
    assert (code, "set retention.closed_days" in said) == (2, True), said
    code, said = run("purge", "--closed-days", "30", "--dry-run")
    assert (code, said.count(old.id), "old one" in said, "1 incidents would go" in said) == (0, 1, True, True), said
    code, said = run("purge", "--closed-days", "30", "--reason", "spring cleaning")
    assert (code, "1 incidents are gone" in said) == (0, True), said

    code, said = run("erase", "--key", "card-4242", "--reason", "request 1", "--dry-run")
    assert (code, f"incident {other.id} would go" in said, old.id in said) == (0, True, False), said
    code, said = run("erase", "--key-hex", b"card-4242".hex(), "--reason", "for card-4242")
    assert (code, "the reason quotes the key" in said) == (2, True), said
    code, said = run("erase", "--key-hex", "xyz", "--reason", "request 1")
    assert (code, "is not hex" in said) == (2, True), said
    code, said = run("erase", "--key-hex", b"card-4242".hex(), "--reason", "request 1")
    assert (code, "1 incidents" in said, "3 evidence" in said, "3 blobs" in said) == (0, True, True, True), said
    with psycopg.connect(database.app) as connection:
        stones = connection.execute("SELECT what, subject, reason FROM tombstones ORDER BY id").fetchall()
        assert connection.execute("SELECT count(*) FROM incidents").fetchone() == (0,)
    assert stones == [
        ("purged", old.id, "spring cleaning"), ("erased", other.id, "request 1"), ("erased", "key", "request 1"),
    ]  # fmt: skip


def test_imported_logs_are_purged_by_what_is_configured(database: Database, tmp_path: Path) -> None:
    bring_in(database.app, LOGS / NAMES[2])
    with psycopg.connect(database.superuser) as connection:
        connection.execute("UPDATE flink_logs SET created_at = created_at - interval '40 days'")
        connection.execute("UPDATE flink_runs SET last_ns = 0")
        (runs,) = connection.execute("SELECT count(*) FROM flink_runs").fetchone() or (0,)
    config = tmp_path / "hindcast.toml"
    config.write_text("[flink]\nkeep_days = 30\nkeep_gib = 10\n")
    urls = {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_DATABASE_PURGE_URL": database.purge}
    listed = hindcast(tmp_path, "purge", "--config", str(config), "--dry-run", **urls)
    assert (listed.returncode, f"{runs} runs of event logs would go" in listed.stdout) == (0, True), listed.stderr
    done = hindcast(tmp_path, "purge", "--config", str(config), **urls)
    assert (done.returncode, f"{runs} runs of event logs are gone, with 66 lines" in done.stdout) == (0, True), done
    assert "incidents" not in done.stdout


def test_migrating_refuses_to_let_the_application_remove(database: Database, tmp_path: Path) -> None:
    urls = {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_DATABASE_OWNER_URL": database.owner}
    done = hindcast(tmp_path, "migrate", "--purge-role", "hindcast_app", **urls)
    assert done.returncode == 2
    assert "is the owner or the application as well" in done.stderr
    done = hindcast(tmp_path, "migrate", "--purge-role", "hindcast_purge", **urls)
    assert (done.returncode, "role hindcast_purge may remove evidence" in done.stdout) == (0, True), done.stderr
