"""Which incidents a list shows and in which order, as its address says it: for the page and for scripts alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import Depends, Query

from app.incidents.listing import Order, Wanted, wanted

Several = Annotated[list[str] | None, Query(max_length=20)]
Words = Annotated[str, Query(max_length=200)]

ORDERS: Final[Mapping[str, str]] = {
    Order.OPENED: "newest first",
    Order.OLDEST: "oldest first",
    Order.CHANGED: "last changed first",
    Order.SEVERITY: "worst first",
}


def wanted_of(
    status: Several = None,
    severity: Several = None,
    owner: Words = "",
    tag: Several = None,
    q: Annotated[str, Query(max_length=200, description="words of the title, an id, or a piece of the key")] = "",
    pinned: Annotated[bool, Query(description="only what is pinned")] = False,
    sort: Annotated[str, Query(description="opened (newest first), oldest, changed, severity")] = "",
) -> Wanted:
    """Read the filters; an empty value filters nothing. Raises `InputRefused`."""
    return wanted(
        statuses=[one for one in status or () if one],
        severities=[one for one in severity or () if one],
        owner=owner,
        tags=tag or (),
        text=q,
        pinned=pinned,
        order=sort,
    )


ReadWanted = Annotated[Wanted, Depends(wanted_of)]
