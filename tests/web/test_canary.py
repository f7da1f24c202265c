"""A secret is planted everywhere an agent or an operator can put one, and looked for everywhere a link leads.

complaints 23 and 24
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app.incidents import case_notes, cases, service
from app.incidents.roles import Role as Access
from app.incidents.service import EvidenceFile, Report, Role, Store
from app.incidents.tokens import create_token
from app.replay.engine import replay
from app.replay.inprocess import InProcessRunner
from app.replay.rerun_pb2 import AgentCode
from app.runtime.activation import ActivationInput, ActivationSettings, AgentHooks, run_activation
from app.web import stream
from app.wire.framing import write_frames
from app.wire.records import AgentEnvelope, StateSnapshot, TraceEvent, serialize
from tests.web.conftest import HOME, client
from tests.web.html import Page
from tests.web.test_access import routes
from tests.web.test_shares import share
from tests.web.work import claim, finish

pytestmark = pytest.mark.timeout(1800)  # they follow some thousand links
MARK = "cAnAry"
CLOCK = 1_700_000_000_000
KEY = f"{MARK}-key".encode()

# What each build does differently: nothing; its arguments, output and memory; another prompt; it breaks.
BUILDS = {
    "same": "",
    "arguments": "args['amount'] = 'cAnAry-other'; output += b'cAnAry-more'; ctx.memory.set('seq', b'77cAnAry-own')",
    "prompt": "prompt += ' cAnAry-again'",
    "broken": "raise RuntimeError('cAnAry-raised ' + prompt)",
}
AGENT = """
import json
from beam_agents.core.agent import Complete
from beam_agents.model.client import LlmRequest
from beam_agents.model.facade import DecodedResponse, TokenUsage
from beam_agents.model.fake import FakeLLM, match_any, respond_with
from beam_agents.tools import ToolRegistry, tool

def make_provider():
    return FakeLLM([(match_any(), respond_with(b"cAnAry-response"))])

def decode(data):
    return DecodedResponse(TokenUsage(1, 2, 3), data.decode())

@tool
def look_up(card: str) -> str:
    return "cAnAry-answer"

TOOLS = ToolRegistry()
TOOLS.register(look_up)

async def AGENT(ctx):
    event = json.loads(ctx.single_event)
    found = await ctx.run_tool("look_up", {"card": event["card"]})
    prompt = "cAnAry-prompt " + found
    args = {"amount": "cAnAry-amount", "cAnAry-member": 1}
    output = b"cAnAry-output"
    CHANGE
    answer = await ctx.call_model(LlmRequest(model_id="cAnAry-model", messages=[{"role": "user", "content": prompt}],
                                             tools_schema=None, sampling_params={"temperature": 0}))
    ctx.act("cAnAry-tool", json.dumps(args))
    ctx.memory.set("cAnAry-name", b"cAnAry-memory" + decode(answer.response).text.encode())
    return Complete(output=output)
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[InProcessRunner]:
    made = InProcessRunner()
    yield made
    made.close()


def code_of(folder: Path, build: str) -> AgentCode:
    name = f"canary_{build}"
    change = BUILDS[build] or "pass"
    (folder / f"{name}.py").write_text(AGENT.replace("CHANGE", change))
    return AgentCode(agent=f"{name}:AGENT", registry=f"{name}:TOOLS", decode=f"{name}:decode", paths=[str(folder)])


def evidence(folder: Path, runner: InProcessRunner) -> list[EvidenceFile]:
    """Record one activation of the agent, as a pipeline would, with an attribute of somebody's own on top."""
    loaded = runner._code(code_of(folder, "same"))
    envelope = AgentEnvelope(entity_key=KEY, event_time_ms=CLOCK, external_event=b'{"card": "cAnAry-envelope"}')
    hooks = AgentHooks(
        agent=loaded.agent,
        provider=loaded.agent.__globals__["make_provider"](),
        registry=loaded.registry,
        decode=loaded.decode,
        config=ActivationSettings(),
    )
    result = run_activation(ActivationInput(KEY, 0, CLOCK, events=(envelope.external_event,)), hooks)
    assert result.status == "completed", result.error
    after = StateSnapshot(
        state_schema_version=1, entity_key=KEY, seq=1, snapshot_at_ms=CLOCK + 1, pending=result.intents
    )
    after.memory.CopyFrom(result.memory)
    after.llm_cache.CopyFrom(result.cache)
    after.request_id = f"{MARK}-request"
    traces = []
    for event in result.events:
        copy = TraceEvent()
        copy.CopyFrom(event)
        copy.attributes["customer.note"] = f"{MARK}-attribute"
        copy.attributes[f"{MARK}-attribute-name"] = "x"
        traces.append(serialize(copy))
    return [
        EvidenceFile(Role.SNAPSHOT, f"{MARK}-snapshot.pb", serialize(after)),
        EvidenceFile(Role.TRACES, f"{MARK}-traces.bin", write_frames(traces)),
        EvidenceFile(Role.EVENT, f"{MARK}-event.pb", serialize(envelope)),
        EvidenceFile(Role.OUTPUTS, f"{MARK}-outputs.bin", write_frames([result.output])),
    ]


async def planted(store: Store, folder: Path, runner: InProcessRunner) -> tuple[str, list[Report]]:
    """An incident full of secrets, with one run of each build and one that broke; returns what the runs found."""
    builds = [f"{MARK}-{build}" for build in BUILDS] + [f"{MARK}-crash"]
    files = await asyncio.to_thread(evidence, folder, runner)
    async with store.write() as session:
        incident = await service.import_evidence(session, files, who=f"{MARK}-who", title=f"{MARK}-title")
        told = {"owner": f"{MARK}-owner", "tags": f"{MARK.lower()}-tag"}
        await cases.change_case(session, incident, told, revision=incident.revision, who=f"{MARK}-who")
        await case_notes.add_note(session, incident, f"{MARK}-note", who=f"{MARK}-who")
    reports = []
    for build in builds:
        async with store.write() as session:
            run = await service.request_replay(session, incident, build, who=f"{MARK}-who", known=builds)
        claimed = await claim(store, run.id)
        if build.endswith("crash"):
            async with store.write() as session:
                await service.fail_run(session, run.id, claimed.attempt, _crash())
            continue
        report = await asyncio.to_thread(replay, files, runner, code_of(folder, build.removeprefix(f"{MARK}-")))
        await finish(store, claimed, report)
        reports.append(report)
    return incident.id, reports


def _crash() -> str:
    """A report as a worker writes it, with an exception that quotes what it should not."""
    try:
        raise ValueError(f"cannot read {MARK}-error-text")
    except ValueError as error:
        return f"run x, build {MARK}-build\n\n" + "".join(traceback.format_exception(error))


async def crawl(http: httpx.AsyncClient, start: str, extra: list[str]) -> dict[str, httpx.Response]:
    """Follow every link below `start`, and try the typed addresses."""
    seen: dict[str, httpx.Response] = {}
    todo = [start, *(start + place for place in extra)]
    while todo:
        address = todo.pop()
        path = address.partition("#")[0]
        if path in seen:
            continue
        answer = seen[path] = await http.get(path)
        if answer.headers.get("content-type", "").startswith("text/html"):
            found = Page(answer).links
            todo += [
                f"{path.partition('?')[0]}{link}" if link.startswith("?") else link
                for link in found
                if link.startswith((start, "?"))
            ]
    return seen


TYPED = [
    *(f"/runs/{n}{place}" for n in range(1, 7) for place in ("", "/verdict.json", "/changes", "/value", "/ledger")),
    *(f"/runs/{n}?{query}" for n in range(1, 6) for query in ("folds=open", "show=differences", "at=2", "q=cAnAry")),
    *(f"/runs/{n}/events/{ordinal}" for n in range(1, 6) for ordinal in range(9)),
    "/changes", "/bundle.zip", "/evidence/1", "/evidence/2", "/replays", "/runs", "/api/v1/shares", "/post-mortem",
]  # fmt: skip


def spellings(secret: bytes) -> list[str]:
    """How a value may come to light: as it is, as hex, in base64, and as digests that can be guessed."""
    return [
        secret.decode(), secret.hex(), base64.b64encode(secret).decode().rstrip("="),
        hashlib.sha256(secret).hexdigest()[:10], hashlib.sha256(secret.hex().encode()).hexdigest()[:10],
    ]  # fmt: skip


async def test_no_secret_comes_to_light(
    api: httpx.AsyncClient,
    app: FastAPI,
    stranger: httpx.AsyncClient,
    store: Store,
    tmp_path: Path,
    runner: InProcessRunner,
    caplog: pytest.LogCaptureFixture,
) -> None:
    incident, reports = await planted(store, tmp_path, runner)
    # The attribute of somebody's own is in the record alone, so even the same build differs from it.
    assert {str(report.verdict.outcome) for report in reports} == {"diverged", "irreproducible"}
    app.state.rates.shared._count = app.state.rates.dead._count = 10_000
    _, opened = await share(api, incident, redact=False)
    bare = await crawl(stranger, opened, TYPED)
    shown = "\n".join(answer.text for answer in bare.values())
    for place in (
        "key", "title", "snapshot.pb", "attribute", "attribute-name", "amount", "other", "member", "tool", "model",
        "prompt", "output", "raised", "same", "answer", "name", "memory", "own", "event.pb", "outputs.bin", "request",
    ):  # fmt: skip
        assert f"{MARK}-{place}" in shown, f"the canary in {place} was not even planted where a page shows it"
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    _, path = await share(api, incident)
    seen = await crawl(stranger, path, TYPED)
    fine = [address for address, answer in seen.items() if answer.status_code == 200]
    assert len(fine) > 40
    assert {answer.status_code for answer in seen.values()} == {200, 404}
    run_ids = [run["id"] for run in (await api.get(f"/api/v1/incidents/{incident}")).json()["replays"]]
    files = (await api.get(f"/api/v1/incidents/{incident}")).json()["evidence"]
    secrets = [*spellings(KEY), MARK, MARK.encode().hex(), *run_ids, incident]
    secrets += [file["sha256"][:10] for file in files]
    for address, answer in seen.items():
        text = answer.text.replace("q=cAnAry", "") + str(answer.headers)
        assert [secret for secret in secrets if secret.lower() in text.lower()] == [], address
    logged = caplog.text.replace(HOME, "").replace("q=cAnAry", "")
    lines = [line for line in logged.splitlines() if "httpx" not in line]  # the test's own client logs addresses
    assert [line for line in lines if MARK in line or path.removeprefix("/s/") in line] == []


# All that a stream may say: that there is another version, by its number.
SAID = re.compile(r"retry: \d+|event: (change|done)|id: \d+|data: \d+|: nothing new|")


@pytest.mark.parametrize("end", ["verdict", "crash", "cancelled"])
async def test_no_secret_comes_to_light_while_a_viewer_follows_a_run(
    app: FastAPI, store: Store, tmp_path: Path, runner: InProcessRunner, end: str
) -> None:
    """The pages of a run in each of its states, and every message of the streams that they open."""
    incident, reports = await planted(store, tmp_path, runner)
    async with store.write() as session:
        _, token = await create_token(session, name="looker", role=Access.VIEWER, scopes=["*"], who="root")
        told = await service.get_incident(session, incident)
        build = f"{MARK}-same"
        run = await service.request_replay(session, told, build, who=f"{MARK}-who", known=[build])
        kept = [file.sha256[:10] for file in await service.evidence_of(session, told)]
    front = f"/incidents/{incident}"
    places = (front, f"{front}/runs/{run.number}")
    async with client(app, Authorization=f"Bearer {token}") as http:
        seen = [await http.get(place) for place in places]
        opened = [re.findall(r'sse-connect="([^"]+)"', page.text) for page in seen]
        assert [len(found) for found in opened] == [1, 1]
        following = [asyncio.create_task(http.get(address)) for found in opened for address in found]
        async with asyncio.timeout(60):
            while app.state.changes.subscribers < len(following):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        claimed = await claim(store, run.id)
        running = [await http.get(place) for place in places]
        assert all(re.search(r'sse-connect="', page.text) for page in running)
        match end:
            case "verdict":
                await finish(store, claimed, reports[0])
            case "crash":
                async with store.write() as session:
                    await service.fail_run(session, run.id, claimed.attempt, _crash())
            case "cancelled":
                async with store.write() as session:
                    await service.cancel_run(session, run.id, who=f"{MARK}-who")
        async with asyncio.timeout(60):
            streams = await asyncio.gather(*following)
        ended = [await http.get(place) for place in places]
    assert not any(re.search(r'sse-connect="', page.text) for page in ended), "an end is not followed"
    for stream_told in streams:
        lines = stream_told.text.split("\n")
        assert [line for line in lines if not SAID.fullmatch(line)] == []
        assert {"event: change", "event: done"} <= set(lines)
    secrets = [*spellings(KEY), MARK, MARK.encode().hex(), run.id, *kept]
    for answer in (*seen, *running, *streams, *ended):
        text = answer.text + str(answer.headers)
        assert [secret for secret in secrets if secret.lower() in text.lower()] == [], answer.url


async def test_no_secret_comes_to_light_of_a_viewer(
    api: httpx.AsyncClient,
    app: FastAPI,
    store: Store,
    tmp_path: Path,
    runner: InProcessRunner,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every page that a viewer is led to, every address that there is, streams and JSON and files, and the log."""
    monkeypatch.setattr(stream, "LONGEST_S", 0.5)
    incident, _ = await planted(store, tmp_path, runner)
    whole = (await api.get(f"/api/v1/incidents/{incident}")).json()
    async with store.write() as session:
        _, token = await create_token(session, name="looker", role=Access.VIEWER, scopes=["*"], who="root")
    parts = {
        "incident_id": incident, "ordinal": "1", "evidence_id": str(whole["evidence"][0]["id"]), "position": "0",
        "cache_key": "0" * 64, "scope": "all", "choice": "key-names-payloads-memory-texts", "lifetime": "7d",
        "other_id": incident, "name:path": "hindcast.css",
    }  # fmt: skip
    typed = [
        f"/?q={MARK}",
        f"/?tag={MARK.lower()}-tag",
        f"/?owner={MARK}-owner",
        f"/find?intent={MARK}",
        "/?sort=changed",
    ]
    for route in routes(app):
        for run in whole["replays"]:
            told = {**parts, "replay_id": run["id"], "number": str(run["number"])}
            pieces = re.split(r"\{([^}]+)\}", route.path)
            typed.append("".join(told.get(piece, "x") if n % 2 else piece for n, piece in enumerate(pieces)))
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    async with client(app, Authorization=f"Bearer {token}") as http:
        seen = await crawl(http, "/", [place.removeprefix("/") for place in dict.fromkeys(typed)])
        refused = [await http.post(f"/api/v1/incidents/{incident}/{what}") for what in ("replays", "exports", "shares")]
    assert {answer.status_code for answer in refused} == {403}
    shown = [address for address, answer in seen.items() if answer.status_code == 200]
    for place in (f"/incidents/{incident}", f"/incidents/{incident}/runs/2", f"/api/v1/incidents/{incident}", "/"):
        assert place in shown
    assert any(address.endswith("/changes") for address in shown)
    assert len([address for address in shown if "/events/" in address]) > 8
    assert {answer.status_code for answer in seen.values()} <= {200, 303, 307, 400, 401, 403, 404, 405, 409, 422}
    secrets = [*spellings(KEY), MARK, MARK.encode().hex(), *(file["sha256"][:10] for file in whole["evidence"])]
    for address, answer in seen.items():
        text = answer.text + str(answer.headers)
        for typing in (f"{MARK}-owner", f"{MARK.lower()}-tag", MARK):  # what the address itself says may come back
            text = text.replace(typing, "") if typing in address else text
        assert [secret for secret in secrets if secret.lower() in text.lower()] == [], address
    lines = [line for line in caplog.text.splitlines() if "httpx" not in line and token not in line]
    assert [line for line in lines if MARK.lower() in line.lower()] == []
    assert token not in "\n".join(line for line in caplog.text.splitlines() if "httpx" not in line)
