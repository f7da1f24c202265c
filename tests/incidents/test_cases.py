"""A case is changed only from the state that its author saw, and all that was ever said of it is kept."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from app.incidents import case_notes, cases, listing, service
from app.incidents.cases import Case, checked
from app.incidents.errors import IncidentError, NotFound, Outdated
from app.incidents.models import AuditEvent, Incident
from app.incidents.service import InputRefused, Store
from tests.incidents.evidence import recording

PLAIN = Case("a title", "open", None, None, (), False)


async def opened(store: Store, title: str = "a title", scenario: str = "a01_fraud_completed") -> Incident:
    async with store.write() as session:
        return await service.import_evidence(session, recording(scenario), who="ada", title=title)


async def change(store: Store, incident: Incident, revision: int, who: str = "ada", **changes: object) -> Incident:
    async with store.write() as session:
        return await cases.change_case(session, incident, changes, revision=revision, who=who)


async def trail(store: Store) -> list[AuditEvent]:
    async with store.read() as session:
        return list(await session.scalars(select(AuditEvent).order_by(AuditEvent.id)))


async def test_a_change_is_kept_with_who_and_what_and_is_in_the_trail_without_its_words(store: Store) -> None:
    incident = await opened(store)
    assert (incident.status, incident.severity, incident.tags, incident.pinned) == ("open", None, [], False)
    now = await change(store, incident, 1, status="contained", severity="high", title="Refund of 4900", tags="a B, a")
    assert (now.status, now.severity, now.title, now.tags, now.revision) == (
        "contained", "high", "Refund of 4900", ["a", "b"], 2,
    )  # fmt: skip
    assert now.version == incident.version + 1
    async with store.read() as session:
        told = [(one.field, one.old, one.new, one.who) for one in await cases.changes_of(session, now)]
    assert told == [
        ("title", "a title", "Refund of 4900", "ada"), ("status", "open", "contained", "ada"),
        ("severity", None, "high", "ada"), ("tags", None, "a, b", "ada"),
    ]  # fmt: skip
    event = (await trail(store))[-1]
    assert (event.who, event.what, event.subject) == ("ada", "case.changed", incident.id)
    assert event.detail == {
        "title": "changed", "status": ["open", "contained"], "severity": [None, "high"], "tags": "changed",
    }  # fmt: skip
    again = await change(store, now, 2, status="contained")
    assert again.revision == 2, "what reads so already is no change"
    assert len(await trail(store)) == 2


async def test_closing_is_dated_and_reopening_takes_the_date_away(store: Store) -> None:
    incident = await opened(store)
    closed = await change(store, incident, 1, status="closed")
    assert closed.closed_at is not None
    assert closed.closed_at >= incident.created_at
    assert (await change(store, closed, 2, status="open")).closed_at is None


async def test_of_two_who_saw_the_same_only_the_first_is_written(store: Store) -> None:
    incident = await opened(store)

    async def attempt(who: str, title: str) -> str:
        try:
            await change(store, incident, 1, who=who, title=title)
        except Outdated as error:
            return f"{error.now}: {error}"
        return title

    results = await asyncio.gather(attempt("ada", "hers"), attempt("bob", "his"))
    async with store.read() as session:
        now = await service.get_incident(session, incident.id)
    assert now.title in results
    (refusal,) = [told for told in results if told != now.title]
    winner = "ada" if now.title == "hers" else "bob"
    assert refusal == (
        f"2: somebody else changed this case meanwhile: {winner} set title to {now.title}. Nothing of yours was saved"
    )
    with pytest.raises(Outdated, match="never at 9"):
        await change(store, incident, 9, title="x")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"title": " \n"}, "title"), ({"title": "x" * 201}, "title"), ({"status": "done"}, "status"),
        ({"severity": "sev1"}, "severity"), ({"owner": "x" * 81}, "owner"), ({"tags": "a <b>"}, "tags"),
        ({"tags": [f"t{n}" for n in range(21)]}, "tags"), ({"entity_key": "x"}, "entity_key"),
        ({"status": None}, "status"),
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_case_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputRefused) as caught:
        checked(PLAIN, changes)
    assert caught.value.field == field
    assert caught.value.expected


@given(st.text(max_size=300))
def test_a_title_or_an_owner_is_kept_as_one_line_or_refused(text: str) -> None:
    for name in ("title", "owner"):
        try:
            kept = getattr(checked(PLAIN, {name: text}), name)
        except InputRefused:
            continue
        assert kept is None or (kept == " ".join(text.split()) and len(kept) <= 200)


async def test_a_note_keeps_everything_that_it_ever_said(store: Store) -> None:
    incident = await opened(store)
    async with store.write() as session:
        note = await case_notes.add_note(session, incident, "first\r\nwords ", who="ada")
    async with store.write() as session:
        await case_notes.edit_note(session, incident, 1, "second", version=1, who="bob")
    with pytest.raises(Outdated, match=r"bob edited note 1 meanwhile. Nothing of yours was saved"):
        async with store.write() as session:
            await case_notes.edit_note(session, incident, 1, "third", version=1, who="ada")
    async with store.read() as session:
        (now,) = await case_notes.notes_of(session, incident)
        versions = await case_notes.versions_of(session, now)
    assert (now.text, now.version, now.created_by, now.edited_by) == ("second", 2, "ada", "bob")
    assert [(one.version, one.who, one.text) for one in versions] == [(1, "ada", "first\nwords"), (2, "bob", "second")]
    assert versions[0].at == note.created_at
    assert [event.what for event in await trail(store)] == ["incident.imported", "note.added", "note.edited"]
    assert "words" not in json.dumps([event.detail for event in await trail(store)])
    for text in ("", " \n ", "x" * 20_001):
        with pytest.raises(InputRefused):
            async with store.write() as session:
                await case_notes.add_note(session, incident, text, who="ada")
    with pytest.raises(NotFound):
        async with store.write() as session:
            await case_notes.edit_note(session, incident, 2, "x", version=1, who="ada")


async def test_incidents_of_one_key_are_linked_once_and_seen_from_both(store: Store) -> None:
    one, two = await opened(store, "one"), await opened(store, "two")
    stranger = await opened(store, "stranger", "b07_other_key_event")
    async with store.write() as session:
        await case_notes.link_incidents(session, one, two.id, "follows", who="ada")
    async with store.write() as session:
        await case_notes.link_incidents(session, two, one.id, "duplicate", who="bob")
    async with store.read() as session:
        (from_one,) = await case_notes.incidents_on_key(session, one)
        (from_two,) = await case_notes.incidents_on_key(session, two)
    assert (from_one.incident.id, from_one.words) == (two.id, "a duplicate of this")
    assert (from_two.incident.id, from_two.words) == (one.id, "this duplicates it")
    for other, kind, error, match in (
        (stranger.id, "related", IncidentError, "different keys"), (one.id, "related", IncidentError, "to itself"),
        ("inc_none", "related", NotFound, "no incident"), (two.id, "cousin", InputRefused, "no kind of link"),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            async with store.write() as session:
                await case_notes.link_incidents(session, one, other, kind, who="ada")
    async with store.write() as session:
        await case_notes.unlink_incidents(session, one, two.id, who="ada")
    with pytest.raises(NotFound):
        async with store.write() as session:
            await case_notes.unlink_incidents(session, one, two.id, who="ada")
    async with store.read() as session:
        (left,) = await case_notes.incidents_on_key(session, one)
    assert left.words is None


async def test_the_list_is_filtered_and_ordered_and_walked_in_every_order(store: Store) -> None:
    made = [await opened(store, f"incident {n}") for n in range(5)]
    await change(store, made[0], 1, severity="critical", owner="ada", tags="money")
    await change(store, made[1], 1, severity="low", status="closed", pinned=True)
    await change(store, made[2], 1, severity="critical", tags=["money", "night"], owner="bob")

    async def titles(after: str | None = None, limit: int = 2, **how: object) -> list[int]:
        found: list[int] = []
        while True:
            async with store.read() as session:
                which = listing.wanted(**how)  # type: ignore[arg-type]
                page = await listing.list_incidents(session, after=after, limit=limit, wanted=which)
                count, total = await listing.count_incidents(session, which)
            found += [int(one.title.rpartition(" ")[2]) for one in page.items]
            after = page.next
            if after is None:
                assert (count, total) == (len(found), 5)  # row 39: counts and rows come from the same conditions
                return found

    assert await titles() == [4, 3, 2, 1, 0]
    assert await titles(order="oldest") == [0, 1, 2, 3, 4]
    assert await titles(order="severity") == [2, 0, 1, 4, 3]
    assert await titles(order="changed") == [2, 1, 0, 4, 3]
    assert await titles(statuses=["closed"]) == [1]
    assert await titles(statuses=["open", "closed"], severities=["low", "-"]) == [4, 3, 1]
    assert await titles(owner="ada") == [0]
    assert await titles(owner="-", pinned=True) == [1]
    assert await titles(tags=["money"]) == [2, 0]
    assert await titles(tags=["Money", "night"]) == [2]
    assert await titles(text="INCIDENT 3") == [3]
    assert await titles(text=made[3].id) == [3]
    assert await titles(text="card-42", limit=3) == [4, 3, 2, 1, 0]
    for nothing in ("%", "_", "\\", "\0x"):
        assert await titles(text=nothing) == []
    async with store.read() as session:
        assert await listing.owners_and_tags(session) == (["ada", "bob"], ["money", "night"])
    for wrong in ({"statuses": ["x"]}, {"severities": ["x"]}, {"order": "x"}):
        with pytest.raises(InputRefused):
            listing.wanted(**wrong)  # type: ignore[arg-type]
