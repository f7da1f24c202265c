"""Puts the console together: the gate before everything, pages, API, streams, static files, and answers to errors."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app import __version__
from app.incidents.audit_chain import noting
from app.incidents.errors import (
    ImportRefused,
    IncidentError,
    NotFound,
    Outdated,
    Purged,
    QueueFull,
    UnknownBuild,
    UnknownPipeline,
    WrongState,
)
from app.incidents.flink_runs import AssembledRuns
from app.incidents.redaction import Rules
from app.incidents.service import InputRefused, Previews, Store
from app.incidents.tending import tending
from app.operations import tracing
from app.web import (
    activations,
    api,
    api_cases,
    api_flink,
    api_live,
    api_shares,
    builds,
    cases,
    compare,
    door,
    exports,
    flink,
    health,
    imports,
    incidents,
    inside,
    login,
    postmortem,
    replays,
    runs,
    shares,
    static,
    stream,
    tokens,
    trail,
    workers,
)
from app.web.auditing import AGAIN_S
from app.web.config import MIB, WebSettings
from app.web.formats import utc
from app.web.forms import Limits
from app.web.gate import Gate
from app.web.identity import Identities, Recent
from app.web.keeper import Keeper
from app.web.keys import Keys
from app.web.limits import RateLimits
from app.web.observing import Observed
from app.web.oidc import Provider
from app.web.pages import Pages
from app.web.peers import Proxies
from app.web.problems import Problem, Refused, file_trouble, not_found

log = logging.getLogger(__name__)


def create_app(settings: WebSettings, store: Store | None = None, *, watch: tuple[str, int] | None = None) -> FastAPI:
    """Make the console over a migrated database; `store` shares a pool, else one is opened, and closed at the end.

    `watch` is where metrics are told, without a token; None tells them nowhere.
    """
    own = store is None
    store = store or Store(settings.database_url)
    tracing.instrument_engine(store.engine)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await keys.load(store)
        async with stream.listening(app, store), noting(store), tending(store), health.watched(app, watch):
            yield
        if own:
            await store.close()

    app = FastAPI(
        title="Hindcast",
        version=__version__,
        summary="Incident forensics for streaming AI agents.",
        description="Send `Authorization: Bearer <token>`. Errors are problem objects: what, expected, remedy.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    app.state.settings = settings
    app.state.store = store
    app.state.previews = Previews(store)
    app.state.assembled = AssembledRuns()
    app.state.pages = pages = Pages()
    app.state.keys = keys = Keys()
    keeper = Keeper(settings.token, settings.access.files_scope) if settings.access.mode in (None, "token") else None
    secure = (settings.public_url or "").startswith("https:")
    app.state.identities = identities = Identities(settings.access, store, keys, keeper, secure=secure)
    app.state.provider = None if settings.access.oidc is None else Provider.of(settings)
    app.state.run_views = Recent(AGAIN_S)
    app.state.rates = rates = RateLimits()
    app.state.rules = Rules.of(settings.redaction)
    app.state.clock = None  # links are judged by the database's clock, unless a test sets another
    app.state.limits = Limits(file=settings.console.max_file_mib * MIB, kept=settings.console.max_import_mib * MIB)
    for room in (
        door, login, incidents, cases, inside, postmortem, replays, compare, activations, exports, flink, imports,
        runs, stream, shares, tokens, trail, builds, static, api, api_cases, api_flink, api_live, api_shares, workers,
        health,
    ):  # fmt: skip
        app.include_router(room.router)
    app.include_router(api.alias)
    _answer_errors(app, pages)
    app.add_middleware(
        Gate,
        identities=identities,
        proxies=Proxies(settings.console.proxies),
        allowed_hosts=settings.allowed_hosts,
        pages=pages,
        rates=rates,
        broken=problem_of,
    )
    app.add_middleware(Observed)
    tracing.instrument_app(app)
    return app


def _answer_errors(app: FastAPI, pages: Pages) -> None:
    """Every way to fail ends in a problem object; what nobody foresaw reaches the gate, which asks `problem_of` too."""

    async def answer(request: Request, error: Exception) -> Response:
        return pages.problem(request, problem_of(error))

    for kind in (Refused, IncidentError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)


def problem_of(error: Exception) -> Problem:
    """Translate what was raised into what is answered."""
    match error:
        case Refused():
            return error.problem
        case Purged():
            what = f"The incident {error.ident!r} was here, and was removed {utc(error.when_ms)} ({error.why})."
            return Problem(410, "Gone", what, remedy="Nothing of it is left but this, and digests of its evidence.")
        case NotFound():
            return not_found(f"There is no {error.kind} {error.ident!r} here.")
        case ImportRefused():
            return Problem(
                422,
                "Evidence refused",
                "The files cannot be used; nothing was stored.",
                "files that are what they claim to be, whole and of one key",
                "Mend the files named below and import again.",
                tuple(map(file_trouble, error.problems)),
            )
        case UnknownBuild():
            known = ", ".join(error.known) or "none: add [[builds]] to hindcast.toml"
            return Problem(
                422, "Unknown build", f"No build is called {error.name!r}.", f"one of {known}", "Choose another."
            )
        case UnknownPipeline():
            known = ", ".join(error.known) or "none: add [[pipelines]] to hindcast.toml"
            what = f"No pipeline is called {error.name!r}."
            return Problem(422, "Unknown pipeline", what, f"one of {known}", "Choose another.")
        case Outdated():
            return Problem(
                409,
                "Changed meanwhile",
                f"{_capital(str(error))}.",
                f"the version that is here now, {error.now}",
                "Load it again, look at what changed, and repeat what you still want.",
            )
        case QueueFull():
            what = f"{error.most} replays wait already; no more are taken until some of them have begun."
            remedy = "Try again later, start more workers (see Workers), or raise max_waiting."
            return Problem(
                503, "The queue is full", what, "fewer than console.max_waiting", remedy, headers={"Retry-After": "15"}
            )
        case WrongState():
            return Problem(409, "Not in this state", f"{str(error).capitalize()}.", remedy="Load the page again.")
        case InputRefused():
            return Problem(422, "Refused", f"{_capital(error.problem)}.", error.expected, error.remedy)
        case IncidentError():
            return Problem(400, "Refused", f"{error}.")
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _http(error)
    report = secrets.token_hex(4)
    log.error("unexpected error, report %s", report, exc_info=error)
    return Problem(
        500,
        "Our fault",
        f"The console broke on this request (report {report}).",
        remedy="The log has the details under that number. Nothing was half-stored; try again.",
    )


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _invalid(error: RequestValidationError) -> Problem:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return Problem(
        422, "Invalid request", f"{place}: {first['msg']}.", "a request as the OpenAPI document describes it"
    )


def _http(error: HTTPException) -> Problem:
    if error.status_code == 404:
        return not_found("There is nothing at this address.")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return Problem(
            405, "Method not allowed", "This address does not take that method.", allowed, headers=error.headers or {}
        )
    return Problem(error.status_code, "Refused", str(error.detail), headers=error.headers or {})
