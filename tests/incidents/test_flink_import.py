"""Event logs in the database: every line exactly once, however often, under whatever name, and in what pieces."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from app.demo.postgres import Urls
from app.flink.counting import count_logs
from app.flink.keys import parse_paths
from app.flink.logs import read_log
from app.flink.reading import LogError
from app.incidents import flink_import, flink_runs, flink_store
from app.incidents.flink_import import Changed, Importer
from app.incidents.flink_runs import RunFilter
from app.incidents.service import NotFound, Store
from tests.fixtures.postgres import Database, _copy
from tests.flink.lines import flat, nested, traced_run
from tests.incidents.flink import KEY_PATHS, LOGS, NAMES, bring_in, bring_in_all, engine_of

JOB = "296eb6d9a38437b2b6df303a45c35cee"


@pytest.fixture
def other_database(postgres: Urls, template: str) -> Iterator[Database]:
    """A second database, to hold the first one against."""
    with _copy(postgres, template) as made:
        yield made


def rows(database: Database, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database.owner) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def stored(database: Database) -> list[tuple[object, ...]]:
    """Everything that matters of what is stored, but for ids."""
    return rows(
        database,
        "SELECT r.ref, r.status, r.records, r.duplicates, r.truncated, r.key, l.how, l.line FROM flink_records l"
        " LEFT JOIN flink_runs r ON r.id = l.run_id ORDER BY l.line, r.ref",
    )


async def test_the_four_logs_are_stored_as_they_read(database: Database, store: Store) -> None:
    done = bring_in_all(database.app)
    assert [(one.records, one.garbage, one.unattributed, one.already) for one in done] == [
        (16, 0, 0, False), (30, 0, 0, False), (66, 0, 0, False), (66, 0, 0, False),
    ]  # fmt: skip
    for name, log in zip(NAMES, done, strict=True):
        expected = read_log((LOGS / name).read_bytes(), name, parse_paths(KEY_PATHS))
        async with store.read() as session:
            page = await flink_runs.list_runs(session, RunFilter(log=log.log_id))
            whole = [await flink_runs.get_flink_run(session, row.id) for row in page.items]
        assert page.total == len(expected.runs)
        assert sorted((one.run for one in whole), key=lambda run: run.first_ns) == list(expected.runs)
        assert {line for one in whole for line in one.lines} == set((LOGS / name).read_bytes().splitlines())


def test_the_same_log_again_changes_nothing_whatever_it_is_called(database: Database, tmp_path: Path) -> None:
    bring_in_all(database.app)
    before = stored(database)
    renamed, packed = tmp_path / "moved.log.1", tmp_path / "moved.log.2.gz"
    shutil.copy(LOGS / NAMES[2], renamed)
    packed.write_bytes(gzip.compress((LOGS / NAMES[3]).read_bytes()))
    assert all(one.already for one in bring_in(database.app, LOGS / NAMES[0], renamed, packed))
    assert stored(database) == before
    assert rows(database, "SELECT count(*) FROM flink_logs") == [(4,)]


@pytest.mark.parametrize("name", [NAMES[1], NAMES[2]])
def test_a_log_that_grows_is_read_as_if_it_had_been_whole(
    database: Database, other_database: Database, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut anywhere, also inside a line, and stored in small batches."""
    monkeypatch.setattr(flink_import, "BATCH_LINES", 7)
    data = (LOGS / name).read_bytes()
    log = tmp_path / name
    for end in (*range(97, len(data), len(data) // 9), len(data)):
        log.write_bytes(data[:end])
        bring_in(database.app, log, growing=True)
    bring_in(other_database.app, LOGS / name)
    assert stored(database) == stored(other_database)


def test_a_last_line_without_an_end_is_left_until_it_has_one(database: Database, tmp_path: Path) -> None:
    lines = traced_run("r1", "k", 5, "hello")
    log = tmp_path / "some.log"
    log.write_bytes(b"\n".join(lines) + b'\n{"timestamp":"2026')
    (done,) = bring_in(database.app, log)
    assert (done.records, done.garbage, done.incomplete) == (6, 0, 18)
    log.write_bytes(b"\n".join(lines) + b"\n" + flat(99, "r1", "k", "_output_event", {"output": "late"}))
    # A whole record without a line end is one, unless the file still grows.
    assert bring_in(database.app, log, growing=True)[0].records == 0
    assert bring_in(database.app, log)[0].records == 1


def test_what_is_no_record_and_what_has_no_run_is_kept(database: Database, tmp_path: Path) -> None:
    noise, lost = b"not a record \xff\x00", nested(1, "_output_event", {"output": "whose?"})
    log = tmp_path / "mixed.log"
    log.write_bytes(b"\n".join([lost, noise, b"", *traced_run("r1", "k", 5, "hello"), b""]))
    (done,) = bring_in(database.app, log)
    assert (done.records, done.garbage, done.unattributed) == (7, 1, 1)
    assert done.reasons == {"not JSON": 1}
    kept = rows(database, "SELECT note, line FROM flink_records WHERE run_id IS NULL ORDER BY position")
    assert kept == [(None, lost), ("not JSON", noise)]


def test_a_rotated_log_of_a_subtask_goes_on_where_the_last_one_ended(database: Database, tmp_path: Path) -> None:
    """A log without run ids: the second file answers what the first one asked."""
    lines = (LOGS / NAMES[0]).read_bytes().splitlines(keepends=True)
    one, two = (tmp_path / f"events-{JOB}-agent-0.log{end}" for end in (".1", ""))
    one.write_bytes(b"".join(lines[:6]))
    two.write_bytes(b"".join(lines[6:]))
    done = bring_in(database.app, one, two)
    assert [each.unattributed for each in done] == [0, 0]
    assert rows(database, "SELECT key, status, records FROM flink_runs ORDER BY first_ns") == [
        ("c1", "completed", 6), ("c2", "completed", 4), ("c1", "completed", 6),
    ]  # fmt: skip


def test_a_log_that_was_rewritten_is_refused(database: Database, tmp_path: Path) -> None:
    lines = traced_run("r1", "k", 5, "hello")
    log = tmp_path / "some.log"
    log.write_bytes(b"\n".join(lines) + b"\n")
    bring_in(database.app, log)
    before = stored(database)
    log.write_bytes(b"\n".join([lines[0], *traced_run("r2", "k", 5, "else")]) + b"\n")
    with pytest.raises(Changed, match=r"some\.log: it was read up to byte \d+, and what stood before it is no longer"):
        bring_in(database.app, log)
    assert stored(database) == before


def test_of_two_importers_of_one_log_only_one_stores(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "some.log"
    log.write_bytes(b"\n".join(traced_run("r1", "k", 5, "hello")) + b"\n")
    with engine_of(database.app) as engine:
        importer = Importer(engine, "first")
        found = Importer._find

        def overtaken(self: Importer, *args: object) -> object:
            known = found(self, *args)  # type: ignore[arg-type]
            monkeypatch.setattr(Importer, "_find", found)
            bring_in(database.app, log)
            return known

        monkeypatch.setattr(Importer, "_find", overtaken)
        with pytest.raises(Changed, match="another process"):
            importer.import_file(log)
    assert len(stored(database)) == 6


def test_a_damaged_archive_gives_what_can_be_read_and_says_so(database: Database, tmp_path: Path) -> None:
    packed = tmp_path / "some.log.gz"
    data = gzip.compress(b"".join(line + b"\n" for n in range(400) for line in traced_run(f"r{n}", "k", n * 10, "x")))
    packed.write_bytes(data[: len(data) // 2])
    with pytest.raises(LogError, match="damaged or cut short"):
        bring_in(database.app, packed)


def test_a_run_too_long_to_be_held_is_counted_and_its_first_records_are_shown(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flink_store, "WHOLE_RUN", 10)
    monkeypatch.setattr(flink_import, "BATCH_LINES", 8)
    log = tmp_path / "some.log"
    log.write_bytes(b"".join(flat(n, "r1", "k", f"_x{n}", {"n": n}) + b"\n" for n in range(40)))
    bring_in(database.app, log)
    assert rows(database, "SELECT records, partial FROM flink_runs") == [(40, True)]


async def test_events_of_a_recovery_are_told_to_be_in_both_runs(
    database: Database, store: Store, tmp_path: Path
) -> None:
    first = traced_run("r1", "k", 5, "hello")
    reused = json.dumps({**json.loads(first[-1]), "inputRunId": "r2", "upstreamEventId": "new"}).encode()
    log = tmp_path / "some.log"
    log.write_bytes(b"\n".join([*first, *traced_run("r2", "k", 100, "hello")[:3], reused]) + b"\n")
    bring_in(database.app, log)
    async with store.read() as session:
        two, one = (await flink_runs.list_runs(session, RunFilter())).items
        assert (one.ref, two.ref) == ("r1", "r2")
        assert two.shared == 1
        whole = await flink_runs.get_flink_run(session, two.id)
    assert [(other.ref, count) for other, count in whole.again] == [("r1", 1)]
    assert whole.ordinal == 2
    assert count_logs([log]).duplicates == 1


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        (RunFilter(key="c2"), ["c2"] * 5),
        (RunFilter(tool="issue_refund", key="c2"), ["c2", "c2"]),
        (RunFilter(status="unfinished"), ["c1", "c2"]),
        (RunFilter(category="tool_call_failed"), ["c1"]),
        (RunFilter(text="gateway said no"), ["c1"]),
        (RunFilter(text='"refund order-9"'), ["c2", "c2"]),
        (RunFilter(text="no such words"), []),
        (RunFilter(until_ms=0), []),
    ],
)
async def test_runs_are_found(database: Database, store: Store, chosen: RunFilter, keys: list[str]) -> None:
    bring_in_all(database.app)
    async with store.read() as session:
        page = await flink_runs.list_runs(session, chosen)
    assert sorted(str(row.key) for row in page.items) == keys
    assert page.total == len(keys)


async def test_a_list_is_read_page_by_page(database: Database, store: Store) -> None:
    bring_in_all(database.app)
    seen: list[int] = []
    cursor = None
    async with store.read() as session:
        while True:
            page = await flink_runs.list_runs(session, RunFilter(), after=cursor, limit=4)
            seen += [row.id for row in page.items]
            if (cursor := page.next) is None:
                break
        assert len(seen) == len(set(seen)) == page.total == 15
        with pytest.raises(NotFound):
            await flink_runs.get_flink_run(session, 10**9)


def test_a_stored_line_never_changes(database: Database) -> None:
    bring_in(database.app, LOGS / NAMES[0])
    for statement in ("UPDATE flink_records SET line = ''", "DELETE FROM flink_records"):
        with psycopg.connect(database.owner) as connection, pytest.raises(psycopg.Error, match="only ever added to"):
            connection.execute(statement)


def test_a_look_before_an_import_counts_what_the_import_stores(database: Database, tmp_path: Path) -> None:
    files = [LOGS / name for name in NAMES]
    mixed = tmp_path / "mixed.log"
    again = traced_run("r1", "k", 5, "hello")
    mixed.write_bytes(b"\n".join([*again, again[0], b"noise", nested(1, "_output_event", {"output": "?"})]) + b"\n")
    files.append(mixed)
    counts = count_logs(files, parse_paths(KEY_PATHS))
    done = bring_in(database.app, *files)
    with engine_of(database.app) as engine:
        totals = flink_import.totals(engine, [one.log_id for one in done])
    assert counts.events == sum(one.records for one in done) == 186
    assert counts.garbage == 1
    assert counts.unattributed == sum(one.unattributed for one in done) == 1
    told = counts.as_json()
    assert totals == {name: told[name] for name in totals}
    assert totals["runs"] == 16
    assert totals["duplicates"] == 1
    assert totals["unfinished"] == 2
