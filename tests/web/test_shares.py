"""A link shows what its owner chose, to whoever holds it, until it is dead; and it opens nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from app.incidents.service import Store
from tests.fixtures.postgres import Database
from tests.web.conftest import HOME, TOKEN, Browser, client, within_a_minute
from tests.web.html import Page
from tests.web.test_api import PROBLEM, imported, replayed

U01 = "u01_changed_tool_args"
NOW = 1_800_000_000_000


class Clock:
    """The time at which links are judged, in milliseconds."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(app: FastAPI) -> Clock:
    made = Clock()
    app.state.clock = made
    return made


async def case(api: httpx.AsyncClient, store: Store) -> str:
    """An incident with one finished run."""
    incident = await imported(api, U01)
    await replayed(api, store, incident["id"], U01)
    return str(incident["id"])


async def share(api: httpx.AsyncClient, incident: str, **options: object) -> tuple[str, str]:
    """The id and the path of a new link."""
    answer = await api.post(f"/api/v1/incidents/{incident}/shares", json=options)
    assert answer.status_code == 201, answer.text
    assert set(answer.json()) == {"id", "url"}
    url = answer.json()["url"]
    assert url.startswith(f"{HOME}/s/")
    return answer.json()["id"], url.removeprefix(HOME)


# complaint 21
async def test_a_link_is_random_and_only_its_hash_is_kept(api: httpx.AsyncClient, database: Database) -> None:
    incident = (await imported(api, U01))["id"]
    tokens = {(await share(api, incident))[1].removeprefix("/s/") for _ in range(3)}
    assert len(tokens) == 3
    assert all(re.fullmatch(r"[\w-]{32}", token, re.ASCII) for token in tokens)  # 192 bits
    with psycopg.connect(database.superuser) as connection:
        for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
            kept = str(connection.execute(f"SELECT * FROM {table}").fetchall())  # type: ignore[arg-type]
            assert not [token for token in tokens if token in kept], table


async def test_a_link_shows_the_incident_without_any_token(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, store: Store
) -> None:
    _, path = await share(api, await case(api, store))
    front = Page(await stranger.get(path))
    assert (front.status, "shared incident, read-only" in front.text) == (200, True)
    assert "redacted" in front.text
    run = Page(await stranger.get(f"{path}/runs/1"))
    assert "First divergence at event 4, INTENT_EMITTED TOOL" in run.text
    assert "args.‹" in run.text
    assert re.search(r"recorded ‹number · ?[0-9a-f]{10} ?›", run.text)
    event = Page(await stranger.get(f"{path}/runs/1/events/4"))
    assert "step_index" in event.text
    told = (await stranger.get(f"{path}/runs/1/verdict.json")).json()
    assert (told["verdict"], told["first_divergence"]) == ("diverged", 4)


async def test_no_page_of_a_link_runs_or_keeps_or_tells_anything(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, store: Store
) -> None:
    _, path = await share(api, await case(api, store))
    for place in ("", "/runs/1", "/runs/1/events/4", "/runs/1/verdict.json", "/nothing", "/runs/2", "/runs/x"):
        answer = await stranger.get(path + place)
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-robots-tag"].startswith("noindex")
        assert answer.headers["cache-control"] == "no-store"
        assert "set-cookie" not in answer.headers
        if not place.endswith("json"):
            page = Page(answer)
            assert "<script" not in page.html
            assert "<form" not in page.html
            assert '<meta name="referrer" content="no-referrer">' in page.html
            assert '<meta name="robots" content="noindex, nofollow, noarchive">' in page.html
            assert 'hx-history="false"' in page.html
            if answer.status_code == 200:
                assert "script-src" not in answer.headers["content-security-policy"]
                own = [link for link in page.links if link.startswith("/") and not link.startswith("/static/")]
                assert all(link.startswith(path) for link in own), own


# complaint 21
async def test_nothing_but_the_link_grants_anything(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, store: Store
) -> None:
    incident = await case(api, store)
    ident, path = await share(api, incident)
    token = path.removeprefix("/s/")
    run = (await api.get(f"/api/v1/incidents/{incident}")).json()["replays"][0]["id"]
    for other in (incident, ident, run, "card-4242", "", "1", "x" * 32, token[:-1], token + "x", token.swapcase()):
        assert (await stranger.get(f"/s/{other}")).status_code == 404, other
    for place in ("/", "/shares", f"/incidents/{incident}", f"/incidents/{incident}/bundle.zip", "/api/v1/shares"):
        for headers in ({}, {"Authorization": f"Bearer {token}"}):
            assert (await stranger.get(place, headers=headers)).status_code == 401
    assert (await stranger.get("/enter", params={"token": token})).status_code == 401
    for place in ("/runs/2", "/runs/0", "/changes", "/runs/1/changes", "/runs/1/value", "/bundle.zip", "/evidence/1"):
        assert (await stranger.get(path + place)).status_code == 404, place
    for method in ("POST", "PUT", "DELETE"):
        assert (await stranger.request(method, path, headers={"Origin": HOME})).status_code == 405


async def test_a_link_shows_the_same_to_the_owner(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, person: Browser, store: Store
) -> None:
    _, path = await share(api, await case(api, store))
    first, second = await stranger.get(path), await person.get(path)
    assert first.text == second.text


async def test_one_run_is_one_run(api: httpx.AsyncClient, stranger: httpx.AsyncClient, store: Store) -> None:
    incident = await case(api, store)
    await replayed(api, store, incident, U01)
    _, path = await share(api, incident, run=1)
    front = Page(await stranger.get(path))
    assert "shared run, read-only" in front.text
    assert "Run 1" in front.text
    assert (await stranger.get(f"{path}/runs/1/events/4")).status_code == 200
    for place in ("/runs/2", "/runs/2/events/0", "/runs/2/verdict.json"):
        assert (await stranger.get(path + place)).status_code == 404


# complaint 22
@pytest.mark.parametrize(("after_ms", "status"), [(0, 200), (6_999, 200), (7_000, 404), (8_000, 404)])
async def test_a_link_dies_at_its_time(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, clock: Clock, after_ms: int, status: int
) -> None:
    _, path = await share(api, (await imported(api, U01))["id"], expires_in_s=7)
    clock.now = NOW + after_ms
    assert (await stranger.get(path)).status_code == status


async def test_a_link_lives_seven_days_unless_told_otherwise(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, clock: Clock
) -> None:
    _, path = await share(api, (await imported(api, U01))["id"])
    for seconds, status in ((-1, 200), (1, 404)):
        clock.now = NOW + (7 * 24 * 3600 + seconds) * 1000
        assert (await stranger.get(path)).status_code == status


async def test_the_databases_clock_judges_where_no_test_does(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, database: Database
) -> None:
    _, path = await share(api, (await imported(api, U01))["id"])
    assert (await stranger.get(path)).status_code == 200
    with psycopg.connect(database.app) as connection:
        connection.execute("UPDATE shares SET created_at = now() - interval '9 days', expires_at = now()")
    assert (await stranger.get(path)).status_code == 404


async def test_a_link_is_ended_at_once_and_every_dead_link_looks_the_same(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, clock: Clock
) -> None:
    incident = (await imported(api, U01))["id"]
    ended, path = await share(api, incident)
    _, expired = await share(api, incident, expires_in_s=5)
    assert (await stranger.get(path)).status_code == 200
    assert (await api.delete(f"/api/v1/shares/{ended}")).status_code == 204
    clock.now += 10_000
    answers = [await stranger.get(place) for place in (path, expired, "/s/" + "x" * 32, "/s/x", path + "/runs/1")]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.text for answer in answers}) == 1
    assert (await api.delete(f"/api/v1/shares/{ended}")).status_code == 204  # again: nothing changes
    missing = await api.delete("/api/v1/shares/shr_nothing")
    assert (missing.status_code, set(missing.json())) == (404, PROBLEM)


async def test_the_list_tells_who_looked_and_how_it_stands(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, store: Store, clock: Clock
) -> None:
    incident = await case(api, store)
    ended, _ = await share(api, incident)
    await api.delete(f"/api/v1/shares/{ended}")
    clock.now += 1000
    ident, path = await share(api, incident, run=1, reveal=["names"])
    for _ in range(3):
        clock.now += 1000
        await stranger.get(path)
    listed = (await api.get("/api/v1/shares")).json()["shares"]
    assert [item["id"] for item in listed] == [ident, ended]
    live, dead = listed
    assert (live["state"], live["run"], live["redact"], live["reveal"]) == ("live", 1, True, ["names"])
    assert (live["accesses"], live["last_access_at"]) == (3, "2027-01-15T08:00:04.000Z")
    assert (live["created_by"], live["incident_id"]) == ("script", incident)
    assert (dead["state"], dead["accesses"], dead["last_access_at"]) == ("revoked", 0, None)
    assert path.removeprefix("/s/") not in str(listed)
    page = Page(await api.get("/shares"))
    assert page.text.count("End it") == 1
    assert "shows names" in page.text


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"expires_in_s": 0}, 422, "expires_in_s"),
        ({"expires_in_s": 10**9}, 422, "expires_in_s"),
        ({"expires_in_s": "7"}, 422, "expires_in_s"),
        ({"redact": "no"}, 422, "redact"),
        ({"novelty": 1}, 422, "novelty"),
        ({"reveal": ["everything"]}, 400, "cannot be revealed"),
        ({"run": 9}, 404, "run"),
        ([], 422, "body"),
    ],
)
async def test_what_is_asked_wrongly_is_named(api: httpx.AsyncClient, body: object, status: int, said: str) -> None:
    incident = (await imported(api, U01))["id"]
    answer = await api.post(f"/api/v1/incidents/{incident}/shares", json=body)
    assert (answer.status_code, set(answer.json())) == (status, PROBLEM)
    assert said in answer.json()["what"]
    assert (await api.get("/api/v1/shares")).json() == {"shares": []}


async def test_a_body_is_not_needed_and_has_to_be_json(api: httpx.AsyncClient) -> None:
    incident = (await imported(api, U01))["id"]
    assert (await api.post(f"/api/v1/incidents/{incident}/shares")).status_code == 201
    for content, headers, status in ((b"{", {"Content-Type": "application/json"}, 400), (b"{}", {}, 415)):
        answer = await api.post(f"/api/v1/incidents/{incident}/shares", content=content, headers=headers)
        assert answer.status_code == status
    assert (await api.post("/api/v1/incidents/inc_x/shares")).status_code == 404


@pytest.mark.parametrize(
    ("reveal", "shown", "hidden"),
    [
        ([], [], ["card-4242", "hold_txn", "991000", "snapshot.pb"]),
        (["key"], ["card-4242"], ["hold_txn", "991000", "snapshot.pb"]),
        (["names"], ["hold_txn", "args.amount"], ["card-4242", "991000"]),
        (["payloads"], ["991000"], ["card-4242", "hold_txn"]),
        (["texts"], ["snapshot.pb"], ["hold_txn"]),
    ],
)
async def test_an_owner_widens_a_share(
    api: httpx.AsyncClient,
    stranger: httpx.AsyncClient,
    store: Store,
    reveal: list[str],
    shown: list[str],
    hidden: list[str],
) -> None:
    _, path = await share(api, await case(api, store), reveal=reveal)
    text = (await stranger.get(path)).text + (await stranger.get(f"{path}/runs/1")).text
    assert [word for word in shown if word not in text] == []
    assert [word for word in hidden if word in text.replace("card-4242, seq 0", "") and "texts" not in reveal] == []


async def test_redact_false_shows_all(api: httpx.AsyncClient, stranger: httpx.AsyncClient, store: Store) -> None:
    incident = await case(api, store)
    _, path = await share(api, incident, redact=False)
    told = (await stranger.get(f"{path}/runs/1/verdict.json")).json()
    run = (await api.get(f"/api/v1/incidents/{incident}")).json()["replays"][0]["id"]
    assert told == (await api.get(f"/api/v1/replays/{run}")).json()["verdict"]
    page = Page(await stranger.get(f"{path}/runs/1"))
    assert "not redacted" in page.text
    assert "‹" not in page.text


# The owner's way -----------------------------------------------------------------------------------------------------


async def test_the_preview_is_what_the_recipient_gets(
    person: Browser, api: httpx.AsyncClient, stranger: httpx.AsyncClient, store: Store
) -> None:
    incident = await case(api, store)
    form = Page(await person.get(f"/incidents/{incident}/shares/new?run=1"))
    assert "Preview as the recipient" in form.text
    assert '<option value="1" selected>' in form.html
    chosen = await person.get(f"/incidents/{incident}/shares/new?run=all&lifetime=1d&reveal=memory&reveal=names")
    assert chosen.headers["location"] == f"/incidents/{incident}/preview/all/names-memory/1d"
    base = chosen.headers["location"]
    assert (await api.get("/api/v1/shares")).json()["shares"] == []  # looking makes nothing
    sent = dict(re.findall(r'name="(\w+)" value="([^"]*)"', (await person.get(base)).text))
    made = await person.post(f"/incidents/{incident}/shares", {**sent, "reveal": ["memory", "names"]})
    assert made.status_code == 201
    url = re.search(r'id="link">([^<]+)<', made.text)
    assert url is not None
    path = url[1].removeprefix(HOME)
    for place in ("", "/runs/1", "/runs/1/events/4", "/runs/1?show=differences"):
        seen, previewed = await stranger.get(path + place), await person.get(base + place)
        assert _body(seen.text) == _body(previewed.text).replace(base, path)
    again = Page(await person.get("/shares"))
    assert path.removeprefix("/s/") not in again.html
    assert "shows memory, names" in again.text


def _body(html: str) -> str:
    """The page from its header on, less the expiry and the digests, which are each share's own."""
    header = html[html.index('<header class="top">') :]
    header = re.sub(r'<span class="fact">until .*?</span>', "", header)
    return re.sub(r" · (<(?:del|ins)>)?[0-9a-f]{10}(</(?:del|ins)>)?›", " · x›", header)


async def test_the_owner_ends_a_share_on_the_list(person: Browser, api: httpx.AsyncClient) -> None:
    ident, path = await share(api, (await imported(api, U01))["id"])
    assert (await person.post(f"/shares/{ident}/revoke")).headers["location"] == "/shares"
    assert (await person.get(path)).status_code == 404
    assert "ended" in Page(await person.get("/shares")).text
    assert (await person.post("/shares/shr_x/revoke")).status_code == 404


@pytest.mark.parametrize("place", ["all/nonsense/7d", "all/redacted/7y", "9/redacted/7d", "x/redacted/7d"])
async def test_a_preview_of_nonsense_is_refused(person: Browser, api: httpx.AsyncClient, place: str) -> None:
    incident = (await imported(api, U01))["id"]
    assert (await person.get(f"/incidents/{incident}/preview/{place}")).status_code in (400, 404)
    refused = await person.post(f"/incidents/{incident}/shares", {"lifetime": "7y"})
    assert refused.status_code == 422


# Limits --------------------------------------------------------------------------------------------------------------


async def test_who_tries_dead_links_has_to_wait(
    api: httpx.AsyncClient, stranger: httpx.AsyncClient, app: FastAPI
) -> None:
    within_a_minute(app)
    _, path = await share(api, (await imported(api, U01))["id"])
    answers = [(await stranger.get(f"/s/{'x' * 31}{n % 10}")).status_code for n in range(25)]
    assert answers == [404] * 20 + [429] * 5
    waiting = await stranger.get(path)
    assert waiting.status_code == 429
    assert 1 <= int(waiting.headers["retry-after"]) <= 60
    assert "too many tries" in Page(waiting).text


async def test_who_guesses_tokens_has_to_wait(app: FastAPI, stranger: httpx.AsyncClient) -> None:
    within_a_minute(app)
    for n in range(10):
        assert (await stranger.get("/enter", params={"token": f"guess-{n}"})).status_code == 401
        assert (await stranger.get("/", headers={"Authorization": f"Bearer guess-{n}"})).status_code == 401
    assert (await stranger.get("/enter", params={"token": TOKEN})).status_code == 429
    assert (await stranger.get("/", headers={"Authorization": "Bearer guess"})).status_code == 429
    assert (await stranger.get("/enter")).status_code == 401  # the door itself can be looked at
    async with client(app, Authorization=f"Bearer {TOKEN}") as script:
        assert (await script.get("/api/v1/incidents")).status_code == 200  # who is right does not wait


def test_limits_forget_in_time() -> None:
    from app.web.limits import Limiter

    now = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    limiter = Limiter(2, 10, clock)
    for moment, wait in ((0, 0), (1, 0), (2, 8), (9.5, 0.5), (10, 0), (10.5, 0.5)):
        now[0] = moment
        assert limiter.wait_s("a") == pytest.approx(wait), moment
        if not wait:
            limiter.note("a")
    assert limiter.wait_s("b") == 0
    for n in range(20_000):
        limiter.note(str(n))
    assert len(limiter._tries) == 10_000
