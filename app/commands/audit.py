"""`hindcast audit verify`: checks that no entry of the audit trail was changed, removed or put in behind its back."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options

if TYPE_CHECKING:
    from app.incidents.audit_chain import Head, Verified

BROKEN = 1


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's verbs to its parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verify = verbs.add_parser("verify", help="follow the chain from its first link to its head")
    verify.add_argument(
        "--head",
        action="append",
        default=[],
        metavar="POSITION:SHA256",
        help="a head that the log told of (`audit head …`): shows a trail that was cut, or written anew; repeatable",
    )
    add_options(verify, level="warning")


def run(args: argparse.Namespace) -> int:
    """Check the whole trail; 0 when it is whole, 1 when it is not, 2 when it cannot be checked."""
    import asyncio

    from app.commands.common import ready_settings, start_logging
    from app.incidents.audit_chain import Head

    try:
        start_logging(args)
        noted = [Head.parse(text) for text in args.head]
        url = ready_settings(args.config).database_url
    except (CommandError, ValueError) as error:
        print(f"hindcast audit: {error}", file=sys.stderr)
        return 2
    found = asyncio.run(_verify(url, noted))
    for fault in found.faults:
        print(fault)
    if found.faults:
        print(f"the audit trail is not whole: {found.entries} links, head {found.head}")
        return BROKEN
    print(f"the audit trail is whole: {found.entries} entries, head {found.head}")
    return 0


async def _verify(url: str, noted: list[Head]) -> Verified:
    from app.incidents.audit_chain import verify
    from app.incidents.store import Store

    store = Store(url)
    try:
        async with store.read() as session:
            return await verify(session, noted=noted)
    finally:
        await store.close()
