"""Lists of incidents: by what people say of them, in an order that a page can go on in."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import ColumnElement, and_, bindparam, case, func, or_, select, true, tuple_

from app.incidents import repository as db
from app.incidents.case_models import CaseStatus, Severity
from app.incidents.columns import plain
from app.incidents.errors import IncidentError
from app.incidents.inputs import InputRefused
from app.incidents.models import Incident
from app.incidents.roles import EVERYWHERE, Scopes
from app.incidents.store import ReadSession

T = TypeVar("T")

NOBODY: Final = "-"  # the owner of what nobody owns, the severity of what nobody has judged


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; `next` is the cursor of the following page, None on the last one."""

    items: tuple[T, ...]
    next: str | None


class Order(StrEnum):
    """In which order incidents are listed; ties go newest first."""

    OPENED = "opened"
    OLDEST = "oldest"
    CHANGED = "changed"
    SEVERITY = "severity"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which incidents a list shows: all of several values fit, every field that is given must.

    `active` leaves out what is closed. `text` is looked for in titles, ids and keys; `-` stands for no owner, and for
    no severity.
    """

    statuses: Sequence[str] = ()
    severities: Sequence[str] = ()
    owner: str = ""
    tags: Sequence[str] = ()
    text: str = ""
    pinned: bool = False
    order: Order = Order.OPENED

    @property
    def any(self) -> bool:
        """Whether anything is left out."""
        return bool(self.statuses or self.severities or self.owner or self.tags or self.text or self.pinned)


def wanted(
    *,
    statuses: Sequence[str] = (),
    severities: Sequence[str] = (),
    owner: str = "",
    tags: Sequence[str] = (),
    text: str = "",
    pinned: bool = False,
    order: str = "",
) -> Wanted:
    """Check what a URL asks for. Raises `InputRefused` for a status, severity or order that there is none of."""
    for name, values, known in (
        ("status", statuses, set(map(str, CaseStatus))),
        ("severity", severities, {*map(str, Severity), NOBODY}),
        ("sort", [order] if order else [], set(map(str, Order))),
    ):
        for value in values:
            if value not in known:
                raise InputRefused(name, f"{value!r} is no {name}", f"one of {', '.join(sorted(known))}", "Choose one.")
    words = [tag.strip().lower() for tag in map(plain, tags) if tag.strip()]
    return Wanted(statuses, severities, plain(owner).strip(), words, text.strip(), pinned, Order(order or Order.OPENED))


async def list_incidents(
    session: ReadSession,
    *,
    after: str | None = None,
    limit: int = 50,
    wanted: Wanted | None = None,
    scopes: Scopes = EVERYWHERE,
) -> Page[Incident]:
    """Read a page of incidents of some scopes; `after` is a `Page.next` of the same order.

    Raises `IncidentError` for a cursor that is not ours.
    """
    wanted = wanted or Wanted()
    query = select(Incident).where(db.within(scopes), *_conditions(wanted))
    query = query.order_by(*_ordering(wanted.order)).limit(limit + 1)
    if after is not None:
        query = query.where(_behind(wanted.order, after))
    listed = list(await session.scalars(query))
    items = tuple(listed[:limit])
    return Page(items, _cursor(wanted.order, items[-1]) if len(listed) > limit else None)


async def count_incidents(session: ReadSession, wanted: Wanted, scopes: Scopes = EVERYWHERE) -> tuple[int, int]:
    """How many incidents of some scopes are wanted, and how many there are."""
    query = select(func.count().filter(and_(true(), *_conditions(wanted))), func.count()).select_from(Incident)
    query = query.where(db.within(scopes))
    found = (await session.execute(query)).one()
    return found[0], found[1]


async def owners_and_tags(
    session: ReadSession, scopes: Scopes = EVERYWHERE, most: int = 100
) -> tuple[Sequence[str], Sequence[str]]:
    """The owners and tags that incidents of some scopes have, in the order of the alphabet."""
    owners = (
        select(Incident.owner)
        .where(Incident.owner.is_not(None), db.within(scopes))
        .distinct()
        .order_by(Incident.owner)
        .limit(most)
    )
    tag = func.unnest(Incident.tags).label("tag")
    tags = select(tag).where(db.within(scopes)).distinct().order_by(tag).limit(most)
    return [one for one in await session.scalars(owners) if one], list(await session.scalars(tags))


def _conditions(wanted: Wanted) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.statuses:
        found.append(Incident.status.in_(wanted.statuses))
    if wanted.severities:
        among = Incident.severity.in_([one for one in wanted.severities if one != NOBODY])
        found.append(or_(among, Incident.severity.is_(None)) if NOBODY in wanted.severities else among)
    if wanted.owner:
        found.append(Incident.owner.is_(None) if wanted.owner == NOBODY else Incident.owner == wanted.owner)
    if wanted.tags:
        found.append(Incident.tags.contains(list(wanted.tags)))
    if wanted.pinned:
        found.append(Incident.pinned.is_(True))
    if wanted.text:
        words = wanted.text.replace("\0", "")
        of_key = func.position(bindparam(None, words.encode("utf-8", "replace")).op("IN")(Incident.entity_key)) > 0
        found.append(or_(Incident.title.icontains(words, autoescape=True), Incident.id == words, of_key))
    return found


# Orders and cursors --------------------------------------------------------------------------------------------------

_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}
_RANK: Final[ColumnElement[int]] = case(
    {str(severity): rank for severity, rank in _RANKS.items()}, value=Incident.severity, else_=len(_RANKS)
)


def _ordering(order: Order) -> Sequence[Any]:
    newest = (Incident.created_at.desc(), Incident.id.desc())
    match order:
        case Order.OLDEST:
            return Incident.created_at, Incident.id
        case Order.CHANGED:
            return Incident.changed_at.desc(), Incident.id.desc()
        case Order.SEVERITY:
            return _RANK, *newest
        case _:
            return newest


def _behind(order: Order, cursor: str) -> ColumnElement[bool]:
    rank, at, ident = _position(order, cursor)
    column = Incident.changed_at if order is Order.CHANGED else Incident.created_at
    same_rank: ColumnElement[bool] = _RANK.in_((rank,))
    here = tuple_(bindparam(None, at, column.type), bindparam(None, ident))
    if order is Order.OLDEST:
        return tuple_(column, Incident.id) > here
    behind = tuple_(column, Incident.id) < here
    return or_(rank < _RANK, and_(same_rank, behind)) if order is Order.SEVERITY else behind


def _cursor(order: Order, incident: Incident) -> str:
    at = incident.changed_at if order is Order.CHANGED else incident.created_at
    text = f"{at}.{incident.id}"
    if order is Order.SEVERITY:
        rank = len(_RANKS) if incident.severity is None else _RANKS[Severity(incident.severity)]
        text = f"{rank}:{text}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _position(order: Order, cursor: str) -> tuple[int, int, str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        text = ""
    match = re.fullmatch(r"(?:(\d):)?(\d{1,15})\.([\w-]{1,64})", text)
    if match is None or (match[1] is None) != (order is not Order.SEVERITY):
        raise IncidentError(f"{cursor!r} is not a position in the list of incidents; start from its first page")
    return int(match[1] or 0), int(match[2]), match[3]
