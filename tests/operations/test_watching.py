"""What those who watch over the processes are told: health, metrics, log lines, traces; and nothing secret."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from app.incidents.service import Store
from app.operations import logs, tracing
from app.operations.listener import parse_address
from app.settings import Settings
from app.web.app import create_app
from tests.faults.fleet import ROOT, Fleet, ask, fleet_at, until
from tests.fixtures.postgres import Database
from tests.waiting import PATIENCE_S, ended, until_async
from tests.web.conftest import TOKEN, client
from tests.web.test_workers import appear


@pytest.fixture
def fleet(tmp_path: Path, database: Database) -> Iterator[Fleet]:
    with fleet_at(tmp_path / "fleet", database.app) as made:
        yield made


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def watch_port(fleet: Fleet, name: str) -> int:
    """Where a process says that it answers those who watch."""
    log = fleet.folder / f"{name}.log"

    async def said() -> re.Match[str] | None:
        return re.search(r"metrics on http://127\.0\.0\.1:(\d+)/", log.read_text() if log.exists() else "")

    found = await until_async(said, log.read_text)
    assert found is not None
    return int(found[1])


async def metrics_with(port: int, line: str) -> str:
    """The metrics of a process once they say something: what has happened is counted a moment later."""

    async def told() -> str:
        code, text = await asyncio.to_thread(get, port, "/metrics")
        assert code == 200
        return text if line in text else ""

    return await until_async(told, line)


async def test_probes_ask_without_a_token_by_any_name_and_learn_no_secret(app: FastAPI, settings: Settings) -> None:
    async with client(app) as stranger:
        for host in ("localhost:8700", "10.2.3.4:8700"):
            alive = await stranger.get("/healthz", headers={"Host": host})
            assert (alive.status_code, alive.json()["status"]) == (200, "ok")
            ready = await stranger.get("/readyz", headers={"Host": host})
            assert ready.status_code == 200
    told = {check["check"]: check for check in ready.json()["checks"]}
    assert set(told) == {"database", "migrations", "changes", "workers", "collector"}
    assert (ready.json()["status"], told["workers"]["status"], told["database"]["status"]) == ("warning",) * 2 + ("ok",)
    for secret in (TOKEN, settings.database_url, *(build.name for build in settings.builds)):
        assert secret not in ready.text
    assert (await stranger_post(app)).status_code == 405


async def stranger_post(app: FastAPI) -> httpx.Response:
    async with client(app) as stranger:
        return await stranger.post("/healthz", headers={"Host": "x"})


async def test_a_schema_that_does_not_fit_and_a_database_that_is_away_are_not_ready(
    app: FastAPI, database: Database, settings: Settings
) -> None:
    async with client(app) as stranger:
        with psycopg.connect(database.owner, autocommit=True) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '0001'")
        answer = await stranger.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "failing")
        assert "hindcast migrate" in answer.text
    away = Store(settings.database_url.replace("/test_", "/nowhere_"))
    lost = create_app(settings, away)
    lost.state.changes = app.state.changes
    async with client(lost) as stranger:
        answer = await stranger.get("/readyz")
        assert (answer.status_code, answer.json()["checks"][0]["detail"]) == (503, "it does not answer")
        assert (await stranger.get("/healthz")).status_code == 200
    await away.close()


def test_an_address_for_metrics_is_read_or_refused() -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert parse_address("[::]:9464") == ("::", 9464)
    for wrong in ("", "x", "host:", ":1", "1:2:3", "70000"):
        with pytest.raises(ValueError, match="is not an address for metrics"):
            parse_address(wrong)


async def test_metrics_of_the_console_count_requests_by_route_and_show_the_installation(
    fleet: Fleet, store: Store
) -> None:
    console = fleet.start("serve", "--port", "0", "--metrics", "0", HINDCAST_TOKEN=TOKEN)
    assert console.stdout is not None
    address = (await asyncio.to_thread(console.stdout.readline)).partition("/enter")[0]
    port = await watch_port(fleet, "serve")
    run = await ask(store, "swift")
    await appear(store, "1", builds=["swift"])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=PATIENCE_S) as http:
        assert (await http.get(f"/incidents/{run.incident_id}/runs/1")).status_code == 200
        assert (await http.get("/metrics")).status_code == 404  # not on the console's own port
    route = "/incidents/{incident_id}/runs/{number}"
    counted = f'hindcast_http_requests_total{{method="GET",route="{route}",status="200"}} 1.0'
    text = await metrics_with(port, counted)
    assert counted in text
    assert 'hindcast_runs_waiting{build="swift"} 1.0' in text
    assert 'hindcast_runs_capacity{build="swift"} 2.0' in text
    assert 'hindcast_workers{state="idle"} 1.0' in text
    assert "hindcast_database_up 1.0" in text
    assert run.incident_id not in text
    assert (await asyncio.to_thread(get, port, "/readyz"))[0] == 200
    assert (await asyncio.to_thread(get, port, "/other"))[0] == 404
    busy = await asyncio.to_thread(ended, fleet.start("worker", "--metrics", str(port)))
    assert busy == 2
    assert "choose another with --metrics or HINDCAST_METRICS" in (fleet.folder / "worker.log").read_text()


class Receiver(BaseHTTPRequestHandler):
    """Takes traces as an OTLP collector does."""

    bodies: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Receiver,), {"bodies": bodies}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    server.server_close()


async def test_one_trace_leads_from_the_click_to_the_worker(
    fleet: Fleet, store: Store, receiver: tuple[str, list[bytes]]
) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    where, bodies = receiver
    otel = {"OTEL_EXPORTER_OTLP_ENDPOINT": where, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    console = fleet.start("serve", "--port", "0", HINDCAST_TOKEN=TOKEN, **otel)
    worker = fleet.start("worker", "--builds", "swift", "--metrics", "0", "--log-format", "json", **otel)
    assert console.stdout is not None
    address = (await asyncio.to_thread(console.stdout.readline)).partition("/enter")[0]
    first = await ask(store, "elsewhere")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=PATIENCE_S) as http:
        assert (await http.get("/enter", params={"token": TOKEN})).status_code == 303
        assert (await http.get("/find", params={"key": "a-secret-key"})).status_code == 303
        asked = await http.post(f"/api/v1/incidents/{first.incident_id}/replays", json={"build": "swift"})
        assert asked.status_code == 202
    run = await until(store, first.__class__(id=asked.json()["id"], state="queued"), "done")
    port = await watch_port(fleet, "worker")
    text = await metrics_with(port, 'hindcast_worker_runs_total{build="swift",ending="reproduced"} 1.0')
    assert "hindcast_worker_queue_seconds_count 1.0" in text
    for process in (console, worker):
        process.terminate()
        assert await asyncio.to_thread(ended, process) == 0
    spans = {}
    for body in bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            for scope in resource.scope_spans:
                spans |= {span.name: (service, span) for span in scope.spans if span.name != "connect"}
    click = spans["POST /api/v1/incidents/{incident_id}/replays"]
    replay, waited, work = spans["replay"], spans["wait for a worker"], spans["re-run and compare"]
    assert (click[0], replay[0]) == ("hindcast-web", "hindcast-worker")
    assert {one[1].trace_id for one in (replay, waited, work)} == {click[1].trace_id}
    assert replay[1].parent_span_id == waited[1].parent_span_id == click[1].span_id
    assert work[1].parent_span_id == replay[1].span_id
    told = b"".join(bodies)
    for secret in (TOKEN.encode(), b"a-secret-key", b"hindcast_app:"):
        assert secret not in told
    lines = [json.loads(line) for line in (fleet.folder / "worker.log").read_text().splitlines()]
    ours = [line for line in lines if line.get("run") == run.id]
    assert ours
    assert {line["incident"] for line in ours} == {run.incident_id}
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)


def test_lines_carry_the_ids_of_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("app.x", logging.INFO, "f", 1, "took %s", ("long",), None)
    with logs.about(incident="inc_1", number=None), logs.about(run="run_2"):
        assert logs.TextFormatter().format(record).endswith("INFO app.x: took long [incident=inc_1 run=run_2]")
        told = json.loads(logs.JsonFormatter().format(record))
    assert (told["message"], told["incident"], told["run"]) == ("took long", "inc_1", "run_2")
    assert logs.TextFormatter().format(record).endswith("took long")
    with pytest.raises(ValueError, match="expected text or json"):
        logs.start("info", "xml")


def test_traces_are_off_unless_the_environment_asks_for_them() -> None:
    asked = "OTEL_EXPORTER_OTLP_ENDPOINT"
    assert not tracing.wanted({})
    assert tracing.wanted({asked: "http://x"})
    assert not tracing.wanted({asked: "http://x", "OTEL_SDK_DISABLED": "true"})
    assert not tracing.wanted({asked: "http://x", "OTEL_TRACES_EXPORTER": "none"})
    assert tracing.wanted({"OTEL_TRACES_EXPORTER": "console"})
    heavy = "('opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.instrumentation')"
    found = f"print([m for m in sys.modules if m.startswith({heavy})])"
    script = f"import sys\nimport app.web.app, app.jobs.worker\n{found}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
    script = script.replace("app.web.app, app.jobs.worker", "app.commands.replay, app.sandbox.child")
    script = script.replace(heavy, "('opentelemetry', 'prometheus')")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
