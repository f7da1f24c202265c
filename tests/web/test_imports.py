"""The import form: every file's problem in its place, what was right is kept, and nothing is half-stored."""

from __future__ import annotations

import re

import psycopg
import pytest
from fastapi import FastAPI

from app.incidents import service
from app.incidents.service import Store
from app.web.forms import Limits
from tests.fixtures.postgres import Database
from tests.golden.scenarios import has_valid_command, names, scenario
from tests.web.conftest import Browser, raw, upload
from tests.web.html import Page

Parts = list[tuple[str, tuple[str, bytes]]]
D01 = "d01_intent_order"


async def sent(person: Browser, files: Parts, **data: object) -> Page | str:
    """Send the form as a browser does, untouched file inputs included; a page, or where it leads."""
    empty = [(role, ("", b"")) for role in ("snapshot", "traces", "event", "bundle", "outputs")]
    answer = await person.post("/import", {"title": "", "seq": "", "draft": "", **data}, [*empty, *files])
    if answer.status_code == 303:
        return answer.headers["location"]
    assert answer.status_code in (413, 422), answer.text[:300]
    return Page(answer)


def row(page: Page, role: str) -> str:
    """The form's row of one role, as text."""
    found = re.search(rf'data-role="{role}"[^>]*>(.*?)<input type="file"', page.html, re.DOTALL)
    assert found
    return " ".join(re.sub(r"<[^>]+>", " ", found[1]).split()).replace(" :", ":")


def kept(page: Page) -> dict[str, list[str]]:
    """What the form sends back about kept files."""
    draft = re.search(r'name="draft" value="([^"]*)"', page.html)
    assert draft
    return {"draft": [draft[1]], "keep": re.findall(r'name="keep" value="(\d+)" checked', page.html)}


async def stored(store: Store) -> int:
    async with store.read() as session:
        return len((await service.list_incidents(session)).items)


async def blobs(database: Database) -> int:
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        found = await (await connection.execute("SELECT count(*) FROM blobs")).fetchone()
        return int(found[0]) if found else -1


async def test_three_files_make_an_incident(person: Browser, store: Store) -> None:
    path = await sent(person, upload(D01), title=" Hold first ", seq="0")
    assert isinstance(path, str)
    async with store.read() as session:
        incident = await service.get_incident(session, path.removeprefix("/incidents/"))
    assert (incident.title, incident.wanted_seq, incident.created_by) == ("Hold first", 0, "operator")


async def test_only_the_bad_file_has_to_be_mended(person: Browser, store: Store, database: Database) -> None:
    snapshot, traces, event = upload(D01)
    torn = ("traces", ("broken.pb", b"\xff" * 20))
    page = await sent(person, [snapshot, torn, event], title="Mine")
    assert isinstance(page, Page)
    assert page.status == 422
    assert "1 file cannot be used. Nothing was stored. 2 other files are kept here" in page.text
    assert "broken.pb" in row(page, "traces")
    assert "Expected a varint-framed stream of TraceEvent records" in row(page, "traces")
    assert "snapshot.pb" in row(page, "snapshot")
    assert "kept" in row(page, "event")
    assert 'value="Mine"' in page.html
    assert (await stored(store), await blobs(database)) == (0, 0)
    again = Page(await person.get(f"/import?draft={kept(page)['draft'][0]}"))
    assert "2 files kept" in again.text
    path = await sent(person, [traces], title="Mine", **kept(page))
    assert isinstance(path, str)
    async with store.read() as session:
        incident = await service.get_incident(session, path.removeprefix("/incidents/"))
        files = await service.evidence_of(session, incident)
    assert sorted(file.role for file in files) == ["event", "snapshot", "traces"]
    gone = Page(await person.get(f"/import?draft={kept(page)['draft'][0]}"))
    assert "are gone" in gone.text


async def test_every_bad_file_is_named_in_its_own_row(person: Browser, store: Store) -> None:
    _, traces, event = upload(D01)
    page = await sent(
        person,
        [("snapshot", ("really-an-event.pb", event[1][1])), ("traces", ("empty.pb", b"")), ("event", traces[1])],
    )
    assert isinstance(page, Page)
    assert "3 files cannot be used" in page.text
    assert "really-an-event.pb" in row(page, "snapshot")
    assert "hand it in as `event`" in row(page, "snapshot")
    assert "empty.pb: the file is empty" in row(page, "traces")
    assert "traces.pb" in row(page, "event")
    assert await stored(store) == 0


async def test_a_kept_file_can_be_let_go(person: Browser, store: Store) -> None:
    snapshot, _, event = upload(D01)
    page = await sent(person, [snapshot, event, ("traces", ("x", b"\xff" * 20))])
    assert isinstance(page, Page)
    fields = kept(page) | {"keep": kept(page)["keep"][1:]}
    page = await sent(person, [("traces", ("y", b"\xff" * 20))], **fields)
    assert isinstance(page, Page)
    assert len(kept(page)["keep"]) == 1
    assert "kept" not in row(page, "snapshot")
    assert "kept" in row(page, "event")


async def test_files_that_do_not_fit_together_are_the_persons_choice(person: Browser, store: Store) -> None:
    page = await sent(person, upload("b07_other_key_event"))
    assert isinstance(page, Page)
    assert "together they select no attempt" in page.text
    assert "the envelope is of key" in page.text
    assert len(kept(page)["keep"]) == 3
    assert await stored(store) == 0
    path = await sent(person, [], anyway="yes", **kept(page))
    assert isinstance(path, str)
    assert "No attempt is selected yet" in Page(await person.get(path)).text


async def test_nothing_chosen_is_said_so(person: Browser, store: Store) -> None:
    page = await sent(person, [])
    assert isinstance(page, Page)
    assert "No file was chosen" in page.text


async def test_a_seq_is_a_number(person: Browser, store: Store) -> None:
    for seq in ("x", "-1", "1.5", "9" * 30, "٣"):
        page = await sent(person, upload(D01), seq=seq)
        assert isinstance(page, Page)
        assert "is not a seq" in page.text
        assert len(kept(page)["keep"]) == 3
    assert await stored(store) == 0
    path = await sent(person, [], seq="0", **kept(page))
    assert isinstance(path, str)


async def test_kept_files_expire(person: Browser, store: Store, database: Database) -> None:
    page = await sent(person, [upload(D01)[0], ("traces", ("x", b"\xff" * 20))])
    assert isinstance(page, Page)
    async with await psycopg.AsyncConnection.connect(database.owner, autocommit=True) as connection:
        await connection.execute("UPDATE drafts SET expires_at = now() - interval '1 second'")
    late = await sent(person, upload(D01)[1:], **kept(page))
    assert isinstance(late, Page)
    assert "The files kept from before are gone" in late.text
    assert len(kept(late)["keep"]) == 2
    assert await stored(store) == 0


async def test_a_file_too_large_is_a_message_beside_it(person: Browser, store: Store) -> None:
    snapshot, _, event = upload(D01)
    page = await sent(person, [snapshot, ("traces", ("large.bin", bytes(65 * 1024 * 1024))), event])
    assert isinstance(page, Page)
    assert page.status == 413
    assert "large.bin: the file is too large (65 MiB)" in row(page, "traces")
    assert "at most 64 MiB a file" in row(page, "traces")
    assert len(kept(page)["keep"]) == 2
    assert await stored(store) == 0


async def test_a_bundle_imports_alone(person: Browser, store: Store) -> None:
    path = await sent(person, upload(D01))
    bundle = (await person.get(f"{path}/bundle.zip")).content
    again = await sent(person, [("bundle", ("b.zip", bundle))])
    assert isinstance(again, str)
    assert "imported from a bundle" in Page(await person.get(again)).text
    both = await sent(person, [("bundle", ("b.zip", bundle)), *upload(D01)])
    assert isinstance(both, Page)
    assert "import it alone" in row(both, "bundle")
    assert len(kept(both)["keep"]) == 3
    broken = await sent(person, [("bundle", ("b.zip", bundle[:-30]))])
    assert isinstance(broken, Page)
    assert "b.zip" in row(broken, "bundle")
    assert await stored(store) == 2


async def test_what_is_downloaded_is_never_too_large_to_come_back(person: Browser, app: FastAPI) -> None:
    path = await sent(person, upload(D01))
    bundle = (await person.get(f"{path}/bundle.zip")).content
    largest = max(len(data) for _, (_, data) in upload(D01))
    app.state.limits = Limits(file=largest, kept=sum(len(data) for _, (_, data) in upload(D01)))
    assert len(bundle) > largest
    assert isinstance(await sent(person, [("bundle", ("b.zip", bundle))]), str)
    app.state.limits = Limits(file=largest - 1, kept=10_000)
    page = await sent(person, [("bundle", ("b.zip", bundle))])
    assert isinstance(page, Page)
    assert "b.zip" in row(page, "bundle")


async def test_streams_open_the_rows_that_are_folded_away(person: Browser) -> None:
    page = await sent(
        person, [*upload(D01), ("intents", ("i.bin", raw(D01, "traces"))), ("outputs", ("o.bin", b"\x05a"))]
    )
    assert isinstance(page, Page)
    assert "<details open>" in page.html
    assert "i.bin" in row(page, "intents")


@pytest.mark.parametrize("family", ["b", "c", "t"])
async def test_every_damaged_recording_is_refused_in_place_or_said_not_to_fit(
    person: Browser, store: Store, family: str
) -> None:
    opened = 0
    for name in (each for each in names("corpus") if each[0] == family and has_valid_command(scenario(each))):
        page = await sent(person, upload(name))
        if isinstance(page, str):
            opened += 1
            continue
        named = [role for role in ("snapshot", "traces", "event") if "Expected " in row(page, role)]
        assert named or "together they select no attempt" in page.text, name
        assert len(kept(page)["keep"]) == 3 - len(named), name
    assert await stored(store) == opened
