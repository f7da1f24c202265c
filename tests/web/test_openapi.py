"""The OpenAPI document is held to its word: whatever fits it is answered as it says, and nothing breaks the console."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from app.incidents import flink_runs, live, service
from app.incidents.flink_runs import RunFilter
from app.incidents.store import Store
from app.main import open_port
from app.settings import load
from app.web.app import create_app
from app.web.limits import Limiter
from tests.fixtures.postgres import Database
from tests.golden.scenarios import scenario
from tests.incidents.flink import LOGS, NAMES, bring_in
from tests.web.conftest import BUILDS, TOKEN, configuration
from tests.web.serving import serving
from tests.web.test_live import NAME, PIPELINE
from tests.web.work import work

EXAMPLES = 5  # of each operation
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@dataclass
class Served:
    """A console, and ids of what it holds, by the names that addresses have for them."""

    base: str
    ids: dict[str, Any]


@pytest.fixture
def served(database: Database, tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "hindcast.toml"
    file.write_text(configuration(BUILDS[:2]) + PIPELINE)
    environment = {"HINDCAST_TOKEN": TOKEN, "HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(tmp_path)}
    app = create_app(load(file, environment))
    for name in ("exports", "shares", "entering"):
        object.__setattr__(app.state.rates, name, Limiter(1_000_000, 60))
    with open_port("127.0.0.1", 0) as listener, serving(app, listener) as base:
        with ThreadPoolExecutor(1) as pool:
            bring_in(database.app, LOGS / NAMES[2])
            ids = pool.submit(asyncio.run, _fill(database.app)).result()
        yield Served(base, ids)


async def _fill(url: str) -> dict[str, Any]:
    store = Store(url)
    try:
        async with store.write() as session:
            files = scenario(BUILDS[0]).files("bundle")
            incident = await service.import_evidence(session, files, who="a test")
            run = await service.request_replay(session, incident, BUILDS[0], who="a test", known=BUILDS)
            running = await live.open_incident(session, who="a test", known=[NAME], pipeline=NAME, entity_key=b"k")
            export = await live.request_export(session, running, who="a test", reason="a test", known=[NAME])
        await work(store, run.id)
        async with store.read() as session:
            logged = (await flink_runs.list_runs(session, RunFilter())).items[0]
        ids = {"incident_id": incident.id, "replay_id": run.id, "export_id": export.id, "other_id": running.id}
        return {**ids, "run_id": logged.id}
    finally:
        await store.close()


def test_whatever_fits_the_document_is_answered_as_it_says(served: Served) -> None:
    document = httpx.get(f"{served.base}/api/v1/openapi.json", headers=HEADERS, timeout=60).json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=served.base)
    wrong: dict[str, str] = {}
    asked = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        asked += 1

        @settings(
            max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
            phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(), real=st.booleans())
        def probe(case: Any, real: bool) -> None:
            if real:  # made-up ids only ever find that there is no such thing
                case.path_parameters = {
                    name: served.ids.get(name, value) for name, value in (case.path_parameters or {}).items()
                }
            response = case.call(headers=HEADERS, timeout=60)
            case.validate_response(response, checks=CHECKS)

        try:
            probe()
        except (AssertionError, FailureGroup) as error:
            wrong[operation.label] = str(error)[:2000]
    assert asked > 20
    assert wrong == {}
