"""JSON for scripts: import, replay, verdict, bundle; and for all that is wrong a problem with the right status."""

from __future__ import annotations

import hashlib
import json
import zipfile
from io import BytesIO
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.incidents.service import Store
from tests.golden.scenarios import has_valid_command, names, scenario
from tests.web.conftest import raw, upload
from tests.web.work import claim, work

IMPORT = "/api/v1/incidents/import"
PROBLEM = {"type", "title", "status", "detail", "what", "expected", "remedy", "problems"}


async def imported(api: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await api.post(IMPORT, files=upload(name))
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/api/v1/incidents/{found['id']}"
    return found


async def replayed(api: httpx.AsyncClient, store: Store, incident: str, build: str) -> dict[str, Any]:
    answer = await api.post(f"/api/v1/incidents/{incident}/replays", json={"build": build})
    assert answer.status_code == 202
    waiting = answer.json()
    assert (waiting["state"], waiting["verdict"]) == ("queued", None)
    await work(store, waiting["id"])
    assert answer.headers["location"] == f"/api/v1/replays/{waiting['id']}"
    found: dict[str, Any] = (await api.get(answer.headers["location"])).json()
    return found


async def test_from_three_files_to_a_verdict(api: httpx.AsyncClient, store: Store) -> None:
    incident = await imported(api, "d01_intent_order")
    assert incident["entity_key"] == {"hex": b"card-4242".hex(), "text": "card-4242"}
    assert (incident["seq"], incident["kind"], incident["recorded_status"]) == (0, "start", "completed")
    assert (incident["problem"], incident["imported"]) == (None, False)
    assert [(file["role"], file["sha256"]) for file in incident["evidence"]] == [
        (role, hashlib.sha256(data).hexdigest()) for role, (_, data) in upload("d01_intent_order")
    ]
    run = await replayed(api, store, incident["id"], "d01_intent_order")
    assert (run["state"], run["outcome"], run["exit_code"], run["number"]) == ("done", "diverged", 1, 1)
    verdict = run["verdict"]
    assert (verdict["verdict"], verdict["exit_code"]) == ("diverged", 1)
    assert {"attempt", "surfaces", "differences", "normalised", "served", "driver", "confinement", "digests"} <= set(
        verdict
    )
    listed = (await api.get("/api/v1/incidents")).json()
    assert listed["next"] is None
    assert [(item["id"], item["replays"][0]["outcome"]) for item in listed["incidents"]] == [
        (incident["id"], "diverged")
    ]
    whole = (await api.get(f"/api/v1/incidents/{incident['id']}")).json()
    assert [(item["id"], item["verdict"]) for item in whole["replays"]] == [(run["id"], None)]


async def test_running_is_a_state(api: httpx.AsyncClient, store: Store) -> None:
    incident = await imported(api, "a01_fraud_completed")
    run = (await api.post(f"/api/v1/incidents/{incident['id']}/replays", json={"build": "a01_fraud_completed"})).json()
    await claim(store, run["id"])
    assert (await api.get(f"/api/v1/replays/{run['id']}")).json()["state"] == "running"


async def test_every_role_and_its_repetition(api: httpx.AsyncClient) -> None:
    name = "d01_intent_order"
    files = upload(name)
    files += [
        (role, (f"{role}.bin", raw(name, role))) for role in ("intents", "outputs", "errors", "events", "snapshots")
    ]
    files += [("traces", ("more.pb", files[1][1][1])), ("snapshot", ("again.pb", files[0][1][1]))]
    answer = await api.post(IMPORT, files=files, data={"title": "everything", "seq": "0"})
    assert answer.status_code == 201
    found = answer.json()
    assert found["title"] == "everything"
    assert sorted(file["role"] for file in found["evidence"]) == sorted(role for role, _ in files)


# complaint 17
async def test_a_bundle_comes_back_the_same_and_to_the_same_verdict(api: httpx.AsyncClient, store: Store) -> None:
    incident = await imported(api, "u01_changed_tool_args")
    first = await replayed(api, store, incident["id"], "u01_changed_tool_args")
    bundle = await api.get(f"/api/v1/incidents/{incident['id']}/bundle.zip")
    assert bundle.headers["content-type"] == "application/zip"
    assert bundle.headers["content-disposition"].startswith("attachment")
    answer = await api.post(IMPORT, files={"bundle": ("bundle.zip", bundle.content)})
    assert answer.status_code == 201
    again = answer.json()
    assert again["imported"]
    second = await replayed(api, store, again["id"], "u01_changed_tool_args")
    assert second["verdict"] == first["verdict"]
    assert (await api.get(f"/api/v1/incidents/{again['id']}/bundle.zip")).content == bundle.content


async def test_lists_go_on(api: httpx.AsyncClient) -> None:
    made = [(await imported(api, "a01_fraud_completed"))["id"] for _ in range(3)]
    page = (await api.get("/api/v1/incidents", params={"limit": 2})).json()
    rest = (await api.get("/api/v1/incidents", params={"limit": 2, "after": page["next"]})).json()
    assert [item["id"] for item in page["incidents"] + rest["incidents"]] == made[::-1]
    assert rest["next"] is None


def zipped(entries: dict[str, bytes]) -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return data.getvalue()


async def test_bad_imports_name_the_file_and_store_nothing(api: httpx.AsyncClient) -> None:
    snapshot, traces, event = (file for _, file in upload("a01_fraud_completed"))
    large = ("large.bin", bytes(64 * 1024 * 1024 + 1))
    cases: list[tuple[list[tuple[str, tuple[str, bytes]]], int, str]] = [
        ([], 422, "no file"),
        ([("snapshot", ("swapped.pb", event[1])), ("traces", traces), ("event", event)], 422, "swapped.pb"),
        ([("snapshot", snapshot), ("traces", ("empty.pb", b"")), ("event", event)], 422, "empty.pb"),
        ([("snapshot", snapshot), ("traces", traces), ("event", ("e.pb", b"\xff"))], 422, "e.pb"),
        ([("state", snapshot)], 422, "snapshot.pb"),
        ([("traces", large)], 413, "large.bin"),
        ([("traces", large), ("event", ("e.pb", b""))], 422, "large.bin"),
        ([("bundle", ("b.zip", b"PK"))], 422, "b.zip"),
        ([("bundle", ("b.zip", zipped({"../../etc/passwd": b"x"})))], 422, "b.zip"),
        ([("bundle", ("bomb.zip", zipped({"manifest.json": bytes(40_000_000)})))], 422, "bomb.zip"),
        ([("bundle", ("b.zip", b"")), ("event", event)], 422, "b.zip"),
    ]
    for files, status, name in cases:
        answer = await api.post(IMPORT, files=files or {"title": (None, "nothing")})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), name
        problem = answer.json()
        assert set(problem) == PROBLEM
        assert problem["status"] == status
        assert any(name in each["name"] for each in problem["problems"]), problem
        for each in problem["problems"]:
            assert each["what"]
            assert each["expected"]
            assert each["remedy"]
    assert (await api.get("/api/v1/incidents")).json()["incidents"] == []


async def test_statuses(api: httpx.AsyncClient) -> None:
    incident = (await imported(api, "a01_fraud_completed"))["id"]
    replays = f"/api/v1/incidents/{incident}/replays"
    cases = [
        ("GET", "/api/v1/incidents/inc_nothing", {}, 404),
        ("GET", "/api/v1/incidents/inc_nothing/bundle.zip", {}, 404),
        ("GET", "/api/v1/replays/run_nothing", {}, 404),
        ("GET", "/api/v1/nothing", {}, 404),
        ("DELETE", "/api/v1/incidents", {}, 405),
        ("GET", "/api/v1/incidents?limit=0", {}, 422),
        ("GET", "/api/v1/incidents?limit=x", {}, 422),
        ("GET", "/api/v1/incidents?after=x", {}, 400),
        ("POST", IMPORT, {"json": {}}, 415),
        ("POST", IMPORT, {"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400),
        ("POST", IMPORT, {"data": {"snapshot": "text"}}, 422),
        ("POST", "/api/v1/incidents/inc_nothing/replays", {"json": {"build": "a01_fraud_completed"}}, 404),
        ("POST", replays, {"json": {"build": "nobody"}}, 422),
        ("POST", replays, {"json": {"build": ""}}, 422),
        ("POST", replays, {"json": {"build": 1}}, 422),
        ("POST", replays, {"json": {"build": "x", "agent": "os:system"}}, 422),
        ("POST", replays, {"json": []}, 422),
        ("POST", replays, {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
        ("POST", replays, {"data": {"build": "a01_fraud_completed"}}, 415),
        ("POST", replays, {"content": b" " * 5_000_000, "headers": {"Content-Type": "application/json"}}, 413),
    ]
    for method, path, sent, status in cases:
        answer = await api.request(method, path, **sent)  # type: ignore[arg-type]
        assert (method, path, answer.status_code) == (method, path, status), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) == PROBLEM
        assert answer.json()["what"]
    named = (await api.post(replays, json={"build": "nobody"})).json()
    assert "nobody" in named["what"]
    assert "a01_fraud_completed" in named["expected"]


@pytest.mark.parametrize("family", ["b", "c", "t"])
async def test_every_damaged_recording_is_refused_or_kept_whole(api: httpx.AsyncClient, family: str) -> None:
    kept = 0
    for name in (each for each in names("corpus") if each[0] == family and has_valid_command(scenario(each))):
        answer = await api.post(IMPORT, files=upload(name))
        assert answer.status_code in (201, 422), (name, answer.text)
        if answer.status_code == 201:
            kept += 1
            assert len(answer.json()["evidence"]) == 3
        else:
            problems = answer.json()["problems"]
            assert {each["role"] for each in problems} <= {"snapshot", "traces", "event"}
            assert all(each["name"].endswith(".pb") and each["expected"] for each in problems), name
    assert len((await api.get("/api/v1/incidents", params={"limit": 200})).json()["incidents"]) == kept


async def test_the_document_describes_what_is_there(api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json", follow_redirects=True)).json()
    assert document["openapi"].startswith("3.")
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == {
        ("/api/v1/incidents", "get"),
        ("/api/v1/incidents/import", "post"),
        ("/api/v1/incidents/{incident_id}", "get"),
        ("/api/v1/incidents/{incident_id}/bundle.zip", "get"),
        ("/api/v1/incidents/{incident_id}/replays", "post"),
        ("/api/v1/replays/{replay_id}", "get"),
        ("/api/v1/incidents/{incident_id}/shares", "post"),
        ("/api/v1/incidents", "post"),
        ("/api/v1/incidents/{incident_id}/exports", "post"),
        ("/api/v1/incidents/{incident_id}/searches", "post"),
        ("/api/v1/activations", "get"),
        ("/api/v1/exports/{export_id}", "get"),
        ("/api/v1/exports/{export_id}/retry", "post"),
        ("/api/v1/shares", "get"),
        ("/api/v1/shares/{share_id}", "delete"),
        ("/api/v1/replays/{replay_id}/ledger", "get"),
        ("/api/v1/workers", "get"),
        ("/api/v1/flink/runs", "get"),
        ("/api/v1/flink/runs/{run_id}", "get"),
        ("/api/v1/flink/runs/{run_id}/incidents", "post"),
        ("/api/v1/incidents/{incident_id}", "patch"),
        ("/api/v1/incidents/{incident_id}/notes", "get"),
        ("/api/v1/incidents/{incident_id}/notes", "post"),
        ("/api/v1/incidents/{incident_id}/notes/{number}", "get"),
        ("/api/v1/incidents/{incident_id}/notes/{number}", "patch"),
        ("/api/v1/incidents/{incident_id}/links", "get"),
        ("/api/v1/incidents/{incident_id}/links/{other_id}", "put"),
        ("/api/v1/incidents/{incident_id}/links/{other_id}", "delete"),
    }
    for methods in document["paths"].values():
        for operation in methods.values():
            assert {"401", "404", "422"} <= set(operation["responses"])
            assert operation["summary"]
    json.dumps(document)


PARTS = st.lists(
    st.tuples(
        st.sampled_from(["snapshot", "traces", "event", "intents", "outputs", "errors", "bundle", "seq", "title", "x"]),
        st.one_of(st.binary(max_size=200), st.sampled_from([data for _, (_, data) in upload("a01_fraud_completed")])),
        st.one_of(st.none(), st.text(max_size=10)),
    ),
    max_size=5,
)


@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(parts=PARTS)
async def test_no_import_breaks_the_console(api: httpx.AsyncClient, parts: list[tuple[str, bytes, str | None]]) -> None:
    body = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        % (name.encode(), b"" if file is None else b'; filename="%s"' % file.encode("utf-8", "replace"), data)
        for name, data, file in parts
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await api.post(IMPORT, content=body + b"--b--\r\n", headers=headers)
    assert answer.status_code in (201, 400, 413, 422), answer.text
