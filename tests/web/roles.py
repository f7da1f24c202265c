"""Two pipelines and files, each with one of everything that an address can name; and people with a role in one of them.

People come by way of a proxy that is believed, since a test can then be anybody without logging in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI
from sqlalchemy import update

from app.incidents import case_notes, live, service, shares, tokens
from app.incidents.collecting import Intake
from app.incidents.roles import Role
from app.incidents.service import Incident, Store
from app.settings import Settings, load
from tests.fixtures.postgres import Database
from tests.golden.scenarios import scenario
from tests.incidents.live import Topics
from tests.incidents.tracing import attempt
from tests.web.conftest import HOME, configuration
from tests.web.work import work

OWN, FOREIGN, FILES = "refunds", "fraud", "uploads"
BUILD, FOREIGN_BUILD = "d01_intent_order", "a01_fraud_completed"
USER, GROUPS = "X-Forwarded-User", "X-Forwarded-Groups"


def settings(folder: Path, database: Database, more: str = "", console: str = "") -> Settings:
    """A console behind a proxy on this machine: for each role a group in the one pipeline, and one in the files."""
    rules = [
        f'[[access.roles]]\nrole = "{role}"\ngroups = ["{role}-{scope}"]\npipelines = ["{scope}"]'
        for role in Role
        for scope in (OWN, FILES)
    ]
    rules.append('[[access.roles]]\nrole = "admin"\nusers = ["root"]\npipelines = ["*"]')
    pipelines = [
        f'[[pipelines]]\nname = "{name}"\nbrokers = ["127.0.0.1:9"]\nbuilds = ["{build}"]\n'
        f'[pipelines.topics]\nevents = "{name}.events"'
        for name, build in ((OWN, BUILD), (FOREIGN, FOREIGN_BUILD))
    ]
    file = folder / "hindcast.toml"
    head = f'[console]\nproxies = ["127.0.0.1"]\n{console}\n[access]\nmode = "proxy"\nfiles_scope = "{FILES}"\n{more}'
    file.write_text("\n\n".join([head, *rules, *pipelines, configuration((BUILD, FOREIGN_BUILD))]))
    return load(file, {"HINDCAST_DATABASE_URL": database.app, "HINDCAST_HOME": str(folder)})


def person(app: FastAPI, name: str, *groups: str, peer: str = "127.0.0.1") -> httpx.AsyncClient:
    """Somebody's browser, as requests arrive from the proxy, with the CSRF token of their forms."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(peer, 1))
    headers = {
        USER: name,
        GROUPS: ",".join(groups),
        "Origin": HOME,
        "X-CSRF-Token": app.state.keys.csrf(f"proxy {name}"),
    }
    return httpx.AsyncClient(transport=transport, base_url=HOME, headers=headers)


@dataclass(frozen=True)
class Things:
    """Ids of one of everything that belongs to an incident, by the name that addresses have for it."""

    incident: Incident
    parts: dict[str, str]

    def address(self, path: str) -> str:
        for name, value in self.parts.items():
            path = path.replace("{" + name + "}", value)
        assert "{" not in path, f"no value for {path}"
        return path


async def things(database: Database, store: Store, pipeline: str | None, *, owner: str, worked: bool) -> Things:
    """Fill a scope: an incident with two runs, an export, a search, a link of `owner`'s, an activation, a token.

    `worked`: the runs have come to their ends.
    """
    scope = pipeline or FILES
    known = [pipeline] if pipeline else []
    async with store.write() as session:
        incident, other = [
            await service.import_evidence(session, scenario(BUILD).files("bundle"), who=owner) for _ in range(2)
        ]
        both = Incident.id.in_([incident.id, other.id])
        await session.execute(update(Incident).where(both).values(pipeline=pipeline))
    async with store.write() as session:
        incident = await service.get_incident(session, incident.id)
        await session.refresh(incident)
        runs = [await service.request_replay(session, incident, BUILD, who=owner, known=[BUILD]) for _ in range(2)]
        await case_notes.add_note(session, incident, "a note", who=owner)
        await case_notes.link_incidents(session, incident, other.id, "related", who=owner)
        share, secret = await shares.create_share(session, incident, who=owner)
        token, _ = await tokens.create_token(session, name=scope, role=Role.VIEWER, scopes=[scope], who=owner)
        files = await service.evidence_of(session, incident)
    for run in runs if worked else ():
        await work(store, run.id)
    parts = {
        "incident_id": incident.id, "number": "1", "ordinal": "0", "position": "0", "evidence_id": str(files[0].id),
        "other_id": other.id, "replay_id": runs[0].id, "share_id": share.id, "token": secret, "token_id": token.id,
        "scope": "all", "choice": "redacted", "lifetime": "7d", "cache_key": "0" * 64, "name:path": "hindcast.css",
        "run_id": "1", "log_id": "1",
    }  # fmt: skip
    if pipeline is not None:
        parts |= await _live(database, store, incident, pipeline, known, owner)
    return Things(incident, parts)


async def _live(
    database: Database, store: Store, incident: Incident, pipeline: str, known: Sequence[str], owner: str
) -> dict[str, str]:
    async with store.write() as session:
        export = await live.request_export(session, incident, who=owner, reason="a test", known=known)
        search = await live.request_gathering(session, incident, who=owner)
    intake = Intake(database.app, pipeline)
    intake.positions()
    told = attempt(f"key-of-{pipeline}".encode(), 3, 5000, tools=[f"tool-of-{pipeline}"], intents=["refund"])
    intake.store([Topics().batch("traces", [(told.key, value) for value in told.values])])
    intake.close()
    async with store.read() as session:
        chosen = live.ActivationFilter(pipeline=pipeline)
        (row,) = (await live.list_activations(session, chosen)).items
    return {"export_id": export.id, "search_id": search.id, "activation_id": row.id}
