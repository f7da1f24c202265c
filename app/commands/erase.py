"""`hindcast erase`: removes everything of one key, wherever it lies, and leaves digests to show that it went."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options

if TYPE_CHECKING:
    from app.incidents.erase import Erased, Found


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser, level="warning")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--key", metavar="K", help="the key, as text")
    which.add_argument("--key-hex", metavar="HEX", help="the key, as hex")
    parser.add_argument("--reason", required=True, metavar="WORDS", help="kept for good; must not quote the key")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def run(args: argparse.Namespace) -> int:
    """Erase; 0 when it is done, 1 when somebody has still to look at something, 2 when it cannot be done."""
    import asyncio

    from app.commands.common import ready_settings, start_logging
    from app.commands.purge import removal_url
    from app.incidents.errors import IncidentError

    start_logging(args)
    try:
        key = _key(args)
        url = removal_url(ready_settings(args.config))
        if args.dry_run:
            return _tell_found(asyncio.run(_find(url, key)))
        return _tell(asyncio.run(_erase(url, key, args.reason)))
    except (CommandError, IncidentError) as error:
        print(f"hindcast erase: {error}", file=sys.stderr)
        return 2


def _key(args: argparse.Namespace) -> bytes:
    try:
        key = bytes.fromhex(args.key_hex) if args.key is None else str(args.key).encode()
    except ValueError as error:
        raise CommandError(f"--key-hex {args.key_hex!r} is not hex: pairs of 0-9 and a-f") from error
    if not key:
        raise CommandError("the key is empty; give the bytes under which the pipeline keeps the person's state")
    return key


async def _find(url: str, key: bytes) -> Found:
    from app.incidents.erase import find
    from app.incidents.store import Store

    store = Store(url)
    try:
        async with store.read() as session:
            return await find(session, key)
    finally:
        await store.close()


async def _erase(url: str, key: bytes, reason: str) -> Erased:
    from app.commands.purge import whoami
    from app.incidents import purge
    from app.incidents.erase import erase
    from app.incidents.store import Store

    store = Store(url)
    try:
        async with store.read() as session:
            if not await purge.may_remove(session):
                raise CommandError(
                    "database.purge_url is not the role of retention; run `hindcast migrate --purge-role ROLE` with it"
                )
        return await erase(store, key, who=whoami(), reason=reason)
    finally:
        await store.close()


def _tell_found(found: Found) -> int:
    for ident in found.incidents:
        print(f"incident {ident} would go")
    for ident, evidence in found.files:
        print(f"evidence {evidence} of incident {ident}, which is of another key, would go")
    for ident in found.drafts:
        print(f"import {ident}, not finished, would go")
    print("what the collector keeps would be written anew without its records")
    print("recorded runs of event logs would go, and what flink_logs remembers of those under way")
    _tell_mentions(found.mentions)
    return 0


def _tell(erased: Erased) -> int:
    for table, count in sorted(erased.counts.items()):
        if count:
            print(f"{count:8} {table}")
    print(f"{erased.records:8} records out of what the collector keeps")
    print("topics, back-ups and bundles that were taken away are out of reach: see docs/retention.md")
    _tell_mentions(erased.mentions)
    return 1 if erased.mentions else 0


def _tell_mentions(mentions: tuple[str, ...]) -> None:
    for ident in mentions:
        print(f"incident {ident}, of another key, stays: somebody wrote the key in its title or notes; look at it")
