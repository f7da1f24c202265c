"""The page of recent activations, links that find one, and the click that makes an incident of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from app.incidents import live
from app.incidents.errors import IncidentError
from app.incidents.live import ActivationFilter
from app.web.access import Permission
from app.web.forms import read_form
from app.web.loading import OPEN, READ, OpenActivation, pages_of, pipelines_of, principal_of, scopes_of, store_of
from app.web.problems import Problem, Refused

router = APIRouter(include_in_schema=False)

FORMS: Final = ("text", "hex", "base64")
MAX_SEQ: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """The filter form as it was filled in; `problems` says beside which field what cannot be read."""

    chosen: ActivationFilter
    problems: dict[str, str]


@router.get("/activations", dependencies=[READ])
async def activations(request: Request, after: str | None = None) -> Response:
    """What the pipelines did of late; the query of the address is the filter."""
    query = request.query_params
    among = scopes_of(request, Permission.READ).pipelines
    asked = _asked(query)
    intent = query.get("intent", "").strip()
    async with store_of(request).read() as session:
        if asked.problems:
            page = live.ActivationPage((), None)
        elif intent:
            found = await live.find_by_intent(session, intent, pipeline=asked.chosen.pipeline, among=among)
            page = live.ActivationPage(found, None)
        else:
            page = await live.list_activations(session, replace(asked.chosen, among=among), after=after)
        offered = await live.choices(session, among)
        collectors = await live.collector_statuses(session)
        frozen = await live.freezes(session, limit=5, among=among)
    filtered = [name for name, value in query.multi_items() if value and name not in ("after", "form")]
    return pages_of(request).page(
        "activations.html",
        request,
        page=page,
        offered=offered,
        query=query,
        problems=asked.problems,
        filtered=filtered,
        paged=after is not None,
        collectors=[each for each in collectors if each.pipeline in pipelines_of(request)],
        unfollowed=sorted(set(pipelines_of(request)) - {each.pipeline for each in collectors}),
        pipelines=pipelines_of(request),
        frozen=frozen,
        forms=FORMS,
    )


@router.get("/find", dependencies=[READ])
async def find(
    request: Request,
    intent: str | None = None,
    pipeline: str | None = None,
    key: str | None = None,
    form: str = "text",
    seq: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None,
) -> Response:
    """Where links of alerts lead: to the activation that emitted an intent, or to those of a key and seq."""
    if intent is None and key is None:
        raise Refused(
            Problem(400, "Nothing to find", "The link names neither an intent nor a key.", "?intent=… or ?key=…&seq=…")
        )
    given = {"intent": intent, "pipeline": pipeline, "key": key, "seq": None if seq is None else str(seq)}
    if key is not None and form in FORMS:
        given["form"] = form
    target = request.url_for("activations").include_query_params(**{k: v for k, v in given.items() if v is not None})
    return RedirectResponse(f"{target.path}?{target.query}", 303)


@router.post("/activations/{activation_id}/incidents")
async def open_incident(request: Request, activation: OpenActivation) -> Response:
    """Open an incident from a row: one click, and its evidence begins to arrive."""
    async with store_of(request).write() as session:
        incident = await live.open_incident(
            session, who=principal_of(request).name, known=pipelines_of(request), activation=activation.id
        )
    return RedirectResponse(f"/incidents/{incident.id}", 303)


@router.post("/activations/incidents", dependencies=[OPEN])
async def open_unseen(request: Request) -> Response:
    """Open an incident on a key of which nothing was collected; its topics are searched."""
    form = await read_form(request)
    told = {name: (form.value(name) or "").strip() for name in ("pipeline", "key", "form", "seq")}
    asked = _asked(told)
    if asked.problems or asked.chosen.entity_key is None or not told["pipeline"]:
        what = "; ".join(asked.problems.values()) or "A pipeline and a key are needed."
        raise Refused(Problem(400, "Not a key", what, "a pipeline, a key, and perhaps a seq", "Go back and mend it."))
    async with store_of(request).write() as session:
        incident = await live.open_incident(
            session,
            who=principal_of(request).name,
            known=pipelines_of(request, Permission.OPEN),
            pipeline=told["pipeline"],
            entity_key=asked.chosen.entity_key,
            seq=asked.chosen.seq,
        )
    return RedirectResponse(f"/incidents/{incident.id}", 303)


def _asked(query: Mapping[str, str]) -> Asked:
    """Read the filter; what cannot be read is a problem beside its field and filters nothing."""
    get = query.get
    problems: dict[str, str] = {}

    def word(name: str) -> str | None:
        return (get(name) or "").strip() or None

    def moment(name: str) -> int | None:
        try:
            return None if word(name) is None else _moment(word(name) or "")
        except ValueError:
            problems[name] = f"{word(name)!r} is no time: write 2026-05-01T12:00Z, or 2026-05-01 12:00 for UTC."
            return None

    key = None
    # A key may be blanks, or begin with one.
    if get("key"):
        form = get("form") or "text"
        try:
            key = live.parse_key(**{form if form in ("hex", "base64") else "key": get("key")})
        except IncidentError as error:
            problems["key"] = f"{error}."
    seq = word("seq")
    if seq is not None and not (seq.isascii() and seq.isdigit() and int(seq) <= MAX_SEQ):
        problems["seq"] = f"{seq!r} is no seq: a whole number from 0 on."
        seq = None
    chosen = ActivationFilter(
        pipeline=word("pipeline"),
        status=word("status"),
        reason=word("reason"),
        tool=word("tool"),
        since_ms=moment("since"),
        until_ms=moment("until"),
        entity_key=key,
        seq=None if seq is None else int(seq),
    )
    return Asked(chosen, problems)


def _moment(text: str) -> int:
    """Read a time as people type it, UTC unless it says otherwise, as epoch milliseconds. Raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
