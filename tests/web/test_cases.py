"""The case on its page and in the API: what is refused comes back as it was typed, and no note can do anything."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.incidents.service import Store
from app.web.markdown import markdown
from tests.web.conftest import Browser
from tests.web.html import Page
from tests.web.test_pages import opened, page

FORM: dict[str, object] = {
    "title": "Two refunds",
    "status": "contained",
    "severity": "high",
    "owner": "ada",
    "tags": "money night",
}


async def test_the_case_is_changed_on_its_page_and_shown_in_the_list(person: Browser, store: Store) -> None:
    home = f"/incidents/{(await opened(store, title='Hold')).id}"
    answer = await person.post(f"{home}/case", {**FORM, "revision": 1, "pinned": "on"})
    assert (answer.status_code, answer.headers["location"]) == (303, home)
    shown = await page(person, home)
    for words in ("Two refunds ◐ contained ▲ high", "owner ada", "money night", "pinned yes: never purged"):
        assert words in shown.text
    listed = await page(person, "/?tag=money&status=contained&sort=severity")
    assert "Two refunds" in listed.text
    assert "1 of 1 incident match" in listed.text.replace("\u202f", "")
    assert "No incident is like that" in (await page(person, "/?status=closed")).text
    assert "one of changed, oldest, opened, severity" in (await page(person, "/?sort=size", 422)).text


async def test_a_slower_form_overwrites_nothing_and_comes_back_as_it_was_typed(person: Browser, store: Store) -> None:
    home = f"/incidents/{(await opened(store)).id}"
    await person.post(f"{home}/case", {**FORM, "revision": 1})
    answer = await person.post(f"{home}/case", {**FORM, "revision": 1, "title": "My words", "owner": "bob"})
    assert answer.status_code == 409
    shown = Page(answer)
    assert "Somebody else changed this case meanwhile: operator set title to Two refunds" in shown.text
    assert 'value="My words"' in shown.html
    assert 'name="revision" value="2"' in shown.html
    assert (await person.post(f"{home}/case", {**FORM, "revision": 2, "title": "My words"})).status_code == 303
    refused = await person.post(f"{home}/case", {**FORM, "revision": 3, "status": "lost", "title": "typed"})
    assert refused.status_code == 422
    assert "'lost' is no status" in Page(refused).text
    assert 'value="typed"' in refused.text
    assert (await person.post(f"{home}/case", {**FORM, "revision": "x"})).status_code == 422


async def test_notes_are_written_edited_and_kept(person: Browser, store: Store) -> None:
    home = f"/incidents/{(await opened(store)).id}"
    answer = await person.post(f"{home}/notes", {"text": "The ticket said **48,00**."})
    assert answer.headers["location"] == f"{home}#notes"
    assert "<strong>48,00</strong>" in (await page(person, home)).html
    await person.post(f"{home}/notes/1", {"text": "It said 4800.", "version": 1})
    late = await person.post(f"{home}/notes/1", {"text": "mine", "version": 1})
    assert late.status_code == 409
    assert "Operator edited note 1 meanwhile" in Page(late).text
    assert ">mine</textarea>" in late.text
    history = await page(person, f"{home}/notes/1")
    assert "Note 1, 2 versions" in history.text
    assert history.text.index("It said 4800") < history.text.index("The ticket said 48,00")
    assert (await person.post(f"{home}/notes", {"text": " "})).status_code == 422
    assert (await person.get(f"{home}/notes/2")).status_code == 404


async def test_incidents_of_a_key_are_linked_on_the_page(person: Browser, store: Store) -> None:
    one, two = await opened(store, title="one"), await opened(store, title="two")
    assert "two ○ open opened by ada" in (await page(person, f"/incidents/{one.id}")).text
    await person.post(f"/incidents/{one.id}/links", {"other": two.id, "kind": "duplicate"})
    assert "this duplicates it, opened by ada" in (await page(person, f"/incidents/{one.id}")).text
    assert "a duplicate of this, opened by ada" in (await page(person, f"/incidents/{two.id}")).text
    await person.post(f"/incidents/{two.id}/links", {"other": one.id, "kind": ""})
    assert "duplicate of this" not in (await page(person, f"/incidents/{two.id}")).text


async def test_scripts_change_cases_and_hear_of_others(api: httpx.AsyncClient, store: Store) -> None:
    incident = await opened(store)
    other = await opened(store, title="other")
    base = f"/api/v1/incidents/{incident.id}"
    seen: dict[str, Any] = (await api.get(base)).json()["case"]
    assert (seen["status"], seen["revision"], seen["tags"]) == ("open", 1, [])
    changed = await api.patch(base, json={"revision": 1, "status": "explained", "tags": ["money"], "owner": None})
    assert changed.status_code == 200
    assert changed.json()["case"]["status"] == "explained"
    late = await api.patch(base, json={"revision": 1, "pinned": True})
    assert late.status_code == 409
    assert "script set status to explained" in late.json()["what"]
    assert late.json()["remedy"]
    for body, status in (
        ({"status": "open"}, 422), ({"revision": 2, "status": "x"}, 422), ({"revision": 2, "pinned": "yes"}, 422),
        ({"revision": 2, "seq": 1}, 422),
    ):  # fmt: skip
        assert (await api.patch(base, json=body)).status_code == status
    made = await api.post(f"{base}/notes", json={"text": "why"})
    assert (made.status_code, made.headers["location"]) == (201, f"{base}/notes/1")
    assert (await api.patch(f"{base}/notes/1", json={"version": 1, "text": "because"})).json()["version"] == 2
    assert (await api.patch(f"{base}/notes/1", json={"version": 1, "text": "late"})).status_code == 409
    note = (await api.get(f"{base}/notes/1")).json()
    assert [one["text"] for one in note["versions"]] == ["why", "because"]
    assert [one["text"] for one in (await api.get(f"{base}/notes")).json()["notes"]] == ["because"]
    assert (await api.put(f"{base}/links/{other.id}", json={"kind": "follows"})).status_code == 204
    (linked,) = (await api.get(f"{base}/links")).json()["incidents"]
    assert linked == {"incident_id": other.id, "title": "other", "kind": "follows", "points": "to"}
    assert (await api.delete(f"{base}/links/{other.id}")).status_code == 204
    assert (await api.delete(f"{base}/links/{other.id}")).status_code == 404
    listed = (await api.get("/api/v1/incidents", params={"tag": "money", "sort": "changed"})).json()["incidents"]
    assert [one["id"] for one in listed] == [incident.id]
    assert (await api.get("/api/v1/incidents", params={"severity": "sev1"})).status_code == 422


@pytest.mark.parametrize("path", ["/incidents/%00", "/?owner=%00&tag=%00&q=%00", "/api/v1/incidents?tag=a%00"])
async def test_what_no_text_can_hold_is_no_fault_of_ours(api: httpx.AsyncClient, path: str) -> None:
    assert (await api.get(path)).status_code in (200, 404)


async def test_words_that_no_database_can_hold_are_kept_with_stand_ins(api: httpx.AsyncClient, store: Store) -> None:
    base = f"/api/v1/incidents/{(await opened(store)).id}"
    odd = json.dumps({"revision": 1, "title": "a\0b", "owner": "\0"})
    headers = {"content-type": "application/json"}
    assert (await api.patch(base, content=odd, headers=headers)).json()["title"] == "a\u2400b"
    note = await api.post(f"{base}/notes", content=json.dumps({"text": "\0x"}), headers=headers)
    assert note.status_code == 201
    for method in ("PUT", "DELETE"):
        answer = await api.request(method, f"{base}/links/%00", content='{"kind": "related"}', headers=headers)
        assert answer.status_code == 404


HARMFUL = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "![x](https://e.example/p.png)",
    '<a href="https://e.example" style="position:fixed">x</a>', "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "<https://e.example/\"onmouseover=alert(1)>", "[x]: //e.example\n[x]", "<style>*{}</style>", "<form action=/leave>",
    "[x](vbscript:x)", "`<b>`", "<!-- <b> -->",
]  # fmt: skip


@pytest.mark.parametrize("text", HARMFUL)
def test_no_note_can_bring_a_page_anything_but_words(text: str) -> None:
    harmless(str(markdown(text)))


@given(
    st.lists(
        st.sampled_from([*HARMFUL, "# ", "\n\n", "* ", "> ", "```\n", "|a|b|\n|-|-|\n", "<", '"', "'"])
        | st.text(max_size=20)
    )
)
def test_no_mixture_of_them_can_either(parts: list[str]) -> None:
    harmless(str(markdown("".join(parts))))


def harmless(html: str) -> None:
    for tag in re.findall(r"<[^>]*>", html):
        known = re.fullmatch(
            r"</?(blockquote|br|code|del|em|h[3456]|hr|li|p|pre|s|strong|table|tbody|td|th|thead|tr|ul)/?>|</a>|</ol>"
            r"|<ol( start=\"\d+\")?>"
            r"|<a( href=\"(https?://|mailto:|[^:\"]*\")[^\"]*\"?)?( title=\"[^\"]*\")?"
            r" rel=\"noopener noreferrer nofollow\">",
            tag,
        )
        assert known, tag


def test_markdown_is_what_people_expect_of_it() -> None:
    html = str(
        markdown(
            "# Head\n\n##### Sub\n\n- one\n- **two**\n\n```\ncode <b>\n```\nline\nbreak ~~old~~\n\n|a|b|\n|-|-|\n|1|2|"
        )
    )
    for part in (
        "<h3>Head</h3>",
        "<h4>Sub</h4>",
        "<strong>two</strong>",
        "code &lt;b&gt;",
        "line<br>",
        "<s>old</s>",
        "<td>1</td>",
    ):
        assert part in html
