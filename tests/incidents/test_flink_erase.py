"""After an erasure nothing of event logs holds the key, not even what is remembered of runs under way."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from app.incidents import erase
from app.incidents.errors import IncidentError
from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.flink.lines import nested
from tests.incidents.flink import bring_in

KEY = "customer-4711"


def held(database: Database) -> str:
    """All that the tables of event logs hold, as text."""
    with psycopg.connect(database.superuser) as connection:
        told = [
            row
            for table in ("flink_logs", "flink_runs")
            for row in connection.execute(f"SELECT CAST(t AS text) FROM {table} t").fetchall()
        ]
        lines = connection.execute("SELECT line FROM flink_records").fetchall()
    return "\n".join(str(row[0]) for row in told) + "\n".join(bytes(row[0]).decode() for row in lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two runs of 0.3.1 that are under way when the file ends."""
    given = [
        nested(at, "_input_event", {"input": {"k": key, "text": f"of {key}"}}) for at, key in ((1, KEY), (2, "c2"))
    ]
    asked = [
        nested(at, "_chat_request_event", {"model": "m", "messages": [{"role": "user", "content": key}]})
        for at, key in ((3, KEY), (4, "c2"))
    ]
    file = tmp_path / "some.log"
    file.write_bytes(b"\n".join([*given, *asked, b"no record, but it names " + KEY.encode()]) + b"\n")
    return file


async def test_the_state_of_placing_forgets_the_key_too(store: Store, database: Database, log: Path) -> None:
    bring_in(database.app, log)
    with psycopg.connect(database.superuser) as connection:
        (state,) = connection.execute("SELECT CAST(state AS text) FROM flink_logs").fetchone() or ("",)
    assert KEY in state
    remover = Store(database.purge)
    try:
        erased = await erase.erase(remover, KEY.encode(), who="ada", reason="request 1")
        assert (erased.counts["flink_runs"], erased.counts["flink_logs"]) == (1, 1)
        told = held(database)
        assert KEY not in told
        assert "of c2" in told
        again = await erase.erase(remover, KEY.encode(), who="ada", reason="request 1")
        assert (again.counts["flink_runs"], again.counts["flink_logs"]) == (0, 0)
    finally:
        await remover.close()
    # The other run goes on where it was.
    with log.open("ab") as file:
        file.write(nested(5, "_output_event", {"output": {"k": "c2", "text": "done"}}) + b"\n")
    bring_in(database.app, log)
    with psycopg.connect(database.superuser) as connection:
        runs = connection.execute("SELECT key, records FROM flink_runs").fetchall()
        loose = connection.execute("SELECT count(*) FROM flink_records WHERE run_id IS NULL").fetchone()
    assert (runs, loose) == ([("c2", 3)], (0,))


async def test_a_role_without_the_right_is_told_what_to_do(store: Store, database: Database) -> None:
    with psycopg.connect(database.owner) as connection:
        connection.execute("REVOKE UPDATE (state) ON flink_logs FROM hindcast_purge")
    remover = Store(database.purge)
    try:
        with pytest.raises(IncidentError, match="run `hindcast migrate`"):
            await erase.erase(remover, KEY.encode(), who="ada", reason="request 1")
    finally:
        await remover.close()
