"""The post-mortem: page and Markdown say the same in the same order, and no record becomes markup in either."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from app.incidents import case_notes, cases, service, shares
from app.incidents.service import Store
from app.web.postmortem_md import cell, code, fenced, words
from tests.web.conftest import Browser
from tests.web.html import Page
from tests.web.test_pages import D01, U01, asked, opened, page
from tests.web.work import work

SECTIONS = [
    "What happened", "Verdicts", "What the model saw, said, and what followed", "Timeline of what people did",
    "Evidence", "The same in a terminal",
]  # fmt: skip


# row 47: what is exported is ordered as the page is
async def test_page_and_markdown_tell_the_same_in_the_same_order(person: Browser, store: Store) -> None:
    incident = await opened(store, U01, level="full", title="Refund <b>4900</b> | twice")
    await work(store, (await asked(store, incident, U01)).id)
    async with store.write() as session:
        await case_notes.add_note(session, incident, "It was the **comma**.", who="ada")
        incident = await cases.change_case(
            session, incident, {"status": "explained", "severity": "high", "pinned": True}, revision=1, who="bob"
        )
        await shares.create_share(session, incident, who="ada")
    home = f"/incidents/{incident.id}"
    shown = await page(person, f"{home}/post-mortem")
    answer = await person.get(f"{home}/post-mortem.md")
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    text = answer.text
    assert re.findall(r"<h2 id=.*?>(.*?)</h2>", shown.html)[: len(SECTIONS)] == SECTIONS
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert "status explained severity high" in shown.text
    files = re.findall(r"\b[0-9a-f]{64}\b", text)
    async with store.read() as session:
        kept = [file.sha256 for file in await service.evidence_of(session, incident)]
    assert files == kept
    assert re.findall(r'class="whole">([0-9a-f]{64})', shown.html) == kept
    marks = [
        "first divergence at event 4", "asked for run 1 with u01_changed_tool_args", "run 1 ended: diverged",
        "wrote note 1", "it was the", "set the status to explained, set the severity to high, pinned it",
        "shared it with a link", kept[0], "hindcast replay",
    ]  # fmt: skip
    for told in (shown.text.lower(), re.sub(r"\\(.)", r"\1", text).lower()):
        places = [told.find(mark) for mark in marks]
        assert -1 not in places, dict(zip(marks, places, strict=True))
        assert places == sorted(places)
    assert "# Post-mortem: Refund \\<b\\>4900\\</b\\> \\| twice" in text
    events = re.findall(r"^\| (\d+) \| ([A-Z_\\]+) \|", text, re.MULTILINE)
    ordinals = [int(number) for number, _ in events]
    assert ordinals == sorted(ordinals)
    assert ordinals == [int(n) for n in re.findall(r"\?at=(\d+)#e\d+\"", shown.html)]
    assert "**comma**" in text
    assert "<strong>comma</strong>" in shown.html
    assert "model saw" in shown.text
    assert "**model saw**" in text


async def test_an_incident_that_nobody_replayed_has_one_too(person: Browser, store: Store) -> None:
    incident = await opened(store, "b07_other_key_event")
    shown = await page(person, f"/incidents/{incident.id}/post-mortem")
    for told in ("No attempt of the activation is selected", "It was not replayed.", "No run has told it yet."):
        assert told in shown.text
    text = (await person.get(f"/incidents/{incident.id}/post-mortem.md")).text
    assert "It was not replayed." in text
    assert "No build of these runs is configured any more." in text


async def test_a_run_that_waits_or_has_no_divergence_is_told_as_it_is(person: Browser, store: Store) -> None:
    incident = await opened(store, D01)
    await asked(store, incident, D01)
    shown = await page(person, f"/incidents/{incident.id}/post-mortem")
    assert "… queued run 1 of d01_intent_order" in shown.text
    assert "▸" not in shown.text


async def test_reading_it_is_in_the_trail(person: Browser, store: Store) -> None:
    from sqlalchemy import select

    from app.incidents.models import AuditEvent

    incident = await opened(store, D01)
    await person.get(f"/incidents/{incident.id}/post-mortem")
    await person.get(f"/incidents/{incident.id}/post-mortem.md")
    async with store.read() as session:
        events = (await session.scalars(select(AuditEvent).where(AuditEvent.what == "evidence.read"))).all()
    assert [event.detail["post_mortem"] for event in events] == ["page", "markdown"]


def tags(text: str) -> set[str]:
    return {
        token.tag for token in MarkdownIt().enable("table").parse(text) for token in (token, *(token.children or ()))
    }


NASTY = st.text(st.sampled_from(list("`*_[]()#+-!|<>~&\\ \nab1.:/\"'=")), max_size=40) | st.text(max_size=20)


@given(NASTY)
def test_words_of_a_record_are_words_in_markdown(text: str) -> None:
    assert tags(f"- x {words(text)}") <= {"ul", "li", "p", "", "hr"} - {"hr"}
    assert tags(f"| a | b |\n| - | - |\n| {cell(text)} | x |") <= {"table", "thead", "tbody", "tr", "th", "td", ""}


@given(NASTY)
def test_code_of_a_record_stays_code(text: str) -> None:
    assert tags(f"x {code(text)} y") <= {"p", "code", ""}
    (block,) = MarkdownIt().parse("\n".join(fenced(text)))
    assert block.tag == "code"
    assert block.content.rstrip("\n") == text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd").rstrip(
        "\n"
    )


@pytest.mark.parametrize("path", ["post-mortem", "post-mortem.md"])
async def test_of_an_incident_that_is_not_there_there_is_none(person: Browser, path: str) -> None:
    answer = await person.get(f"/incidents/inc_none/{path}")
    assert answer.status_code == 404
    assert "There is no incident" in Page(answer).text
