"""`hindcast purge`: removes incidents that were closed long enough ago and are not pinned, each with a tombstone."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options

if TYPE_CHECKING:
    from app.incidents.flink_retention import LogLimits
    from app.incidents.purge import Doomed
    from app.incidents.store import Store
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
        logs = log_limits(settings)
        days = _days(settings, args.closed_days, optional=not logs.none)
        url = removal_url(settings)
        gone = asyncio.run(_purge(url, days, checked_reason(args.reason), logs, dry=args.dry_run))
    except (CommandError, IncidentError) as error:
        print(f"hindcast purge: {error}", file=sys.stderr)
        return 2
    if days is not None:
        print(f"{len(gone)} incidents {'would go' if args.dry_run else 'are gone'}, closed at least {days} days ago")
    return 0


def log_limits(settings: Settings) -> LogLimits:
    """How long imported lines of event logs are kept."""
    from app.incidents.flink_retention import LogLimits

    gib = settings.flink.keep_gib
    return LogLimits(settings.flink.keep_days, None if gib is None else int(gib * (1 << 30)))


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


def _days(settings: Settings, told: int | None, *, optional: bool) -> int | None:
    days = settings.retention.closed_days if told is None else told
    if days is None and optional:
        return None
    if days is None:
        raise CommandError("nothing says how long incidents are kept: set retention.closed_days, or give --closed-days")
    if days < 1:
        raise CommandError(f"--closed-days must be at least 1, not {days}")
    return days


async def _purge(url: str, days: int | None, reason: str, logs: LogLimits, *, dry: bool) -> list[str]:
    from app.incidents import purge
    from app.incidents.store import Store

    store = Store(url)
    try:
        async with store.read() as session:
            if not await purge.may_remove(session):
                raise CommandError(
                    "database.purge_url is not the role of retention; run `hindcast migrate --purge-role ROLE` with it"
                )
            doomed = [] if days is None else await purge.purgeable(session, closed_days=days)
        for one in doomed:
            print(_line(one))
        await _purge_logs(store, logs, dry=dry)
        if dry or days is None:
            return [one.id for one in doomed]
        gone: list[str] = []
        ids = [one.id for one in doomed]
        for at in range(0, len(ids), _BATCH):
            async with store.write() as session:
                gone += await purge.purge(session, ids[at : at + _BATCH], closed_days=days, who=whoami(), reason=reason)
        return gone
    finally:
        await store.close()


async def _purge_logs(store: Store, limits: LogLimits, *, dry: bool) -> None:
    from app.incidents import flink_retention

    if limits.none:
        return
    if not dry:
        gone = await flink_retention.purge_logs(store, limits, who=whoami())
        print(f"{gone['flink_runs']} runs of event logs are gone, with {gone['flink_records']} lines")
        return
    async with store.read() as session:
        due = await flink_retention.due(session, limits)
    if limits.days is not None:
        print(f"{due.runs} runs of event logs would go, over for {limits.days} days, with their lines")
    for log in due.logs:
        print(f"event log {log.id}  {log.size} bytes  {log.name}  would go, to make room")


def _line(one: Doomed) -> str:
    from datetime import UTC, datetime

    closed = datetime.fromtimestamp(one.closed_at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return f"{one.id}  closed {closed}  {one.files} files, {one.size} bytes, {one.runs} runs  {one.title}"
