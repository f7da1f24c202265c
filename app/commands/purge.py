"""`hindcast purge`: removes incidents that were closed long enough ago and are not pinned, each with a tombstone."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options

if TYPE_CHECKING:
    from app.incidents.purge import Doomed
    from app.settings import Settings

_BATCH = 20  # incidents that go in one transaction


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser, level="warning")
    parser.add_argument("--dry-run", action="store_true", help="only list what would go")
    parser.add_argument(
        "--closed-days", type=int, metavar="N", help="closed at least so many days ago (default: retention.closed_days)"
    )
    parser.add_argument("--reason", default="retention", metavar="WORDS", help="kept in the tombstones")


def run(args: argparse.Namespace) -> int:
    """List, and without --dry-run remove; 0 when it is done, 2 when it cannot be."""
    import asyncio

    from app.commands.common import ready_settings, start_logging
    from app.incidents.errors import IncidentError
    from app.incidents.purge import checked_reason

    start_logging(args)
    try:
        settings = ready_settings(args.config)
        days = _days(settings, args.closed_days)
        url = removal_url(settings)
        gone = asyncio.run(_purge(url, days, checked_reason(args.reason), dry=args.dry_run))
    except (CommandError, IncidentError) as error:
        print(f"hindcast purge: {error}", file=sys.stderr)
        return 2
    print(f"{len(gone)} incidents {'would go' if args.dry_run else 'are gone'}, closed at least {days} days ago")
    return 0


def removal_url(settings: Settings) -> str:
    """The database as the role of retention. Raises `CommandError` that says how to have one."""
    if settings.database.purge_url is None:
        raise CommandError(
            "no role of retention is configured, and nobody else may remove evidence: CREATE ROLE hindcast_purge LOGIN,"
            " set HINDCAST_DATABASE_PURGE_URL to the database as that role, and run `hindcast migrate`"
        )
    return settings.database.purge_url


def whoami() -> str:
    """Who is at this terminal, for the tombstones."""
    import getpass

    try:
        return f"{getpass.getuser()} (terminal)"
    except OSError:
        return "terminal"


def _days(settings: Settings, told: int | None) -> int:
    days = settings.retention.closed_days if told is None else told
    if days is None:
        raise CommandError("nothing says how long incidents are kept: set retention.closed_days, or give --closed-days")
    if days < 1:
        raise CommandError(f"--closed-days must be at least 1, not {days}")
    return days


async def _purge(url: str, days: int, reason: str, *, dry: bool) -> list[str]:
    from app.incidents import purge
    from app.incidents.store import Store

    store = Store(url)
    try:
        async with store.read() as session:
            if not await purge.may_remove(session):
                raise CommandError(
                    "database.purge_url is not the role of retention; run `hindcast migrate --purge-role ROLE` with it"
                )
            doomed = await purge.purgeable(session, closed_days=days)
        for one in doomed:
            print(_line(one))
        if dry:
            return [one.id for one in doomed]
        gone: list[str] = []
        ids = [one.id for one in doomed]
        for at in range(0, len(ids), _BATCH):
            async with store.write() as session:
                gone += await purge.purge(session, ids[at : at + _BATCH], closed_days=days, who=whoami(), reason=reason)
        return gone
    finally:
        await store.close()


def _line(one: Doomed) -> str:
    from datetime import UTC, datetime

    closed = datetime.fromtimestamp(one.closed_at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return f"{one.id}  closed {closed}  {one.files} files, {one.size} bytes, {one.runs} runs  {one.title}"
