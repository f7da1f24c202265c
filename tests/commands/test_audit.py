"""`hindcast audit verify` from the outside: whole, changed, cut off, and asked wrongly."""

from __future__ import annotations

from pathlib import Path

import psycopg

from app.incidents.audit import Action, record_event
from app.incidents.service import Store
from tests.commands.test_services import hindcast
from tests.fixtures.postgres import Database


async def test_verify(store: Store, database: Database, tmp_path: Path) -> None:
    def verify(*words: str) -> tuple[int, str]:
        done = hindcast(tmp_path, "audit", "verify", *words, HINDCAST_DATABASE_URL=database.app)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    for number in range(3):
        async with store.write() as session:
            record_event(session, Action.EVIDENCE_READ, who="x", subject="inc_x", detail={"number": number})
    code, said = verify()
    assert (code, said.startswith("the audit trail is whole: 3 entries, head 3:")) == (0, True), said
    head = said.split()[-1]
    assert verify("--head", head)[0] == 0
    with psycopg.connect(database.superuser, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE audit_events SET detail = '{}' WHERE id = 2")
    code, said = verify()
    assert code == 1
    assert said.startswith("entry 2 (link 2) is not as it was written\nthe audit trail is not whole: 3 links")
    code, said = verify("--head", "4:" + "0" * 64)
    assert (code, "link 4, which the log noted, is gone" in said) == (1, True)
    code, said = verify("--head", "nonsense")
    assert (code, "not a head as the log has it" in said) == (2, True)


def test_without_a_database_it_says_so(tmp_path: Path) -> None:
    done = hindcast(tmp_path, "audit", "verify")
    assert done.returncode == 2
    assert "no database is configured" in done.stderr
