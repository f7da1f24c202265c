"""`hindcast verify`: holds all evidence against its digests, and the audit trail against its chain."""

from __future__ import annotations

import argparse
import sys

from app.commands.common import CommandError, add_options

DAMAGED = 1


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to its parser."""
    add_options(parser, level="warning")


def run(args: argparse.Namespace) -> int:
    """Check everything; 0 when it is whole, 1 when it is not, 2 when it cannot be checked."""
    import asyncio

    from app.commands.common import ready_settings, start_logging

    try:
        start_logging(args)
        url = ready_settings(args.config).database_url
    except CommandError as error:
        print(f"hindcast verify: {error}", file=sys.stderr)
        return 2
    return asyncio.run(verify(url))


async def verify(url: str) -> int:
    """Say what is whole and what is not; the exit code."""
    from app.incidents import audit_chain
    from app.incidents.store import Store
    from app.incidents.verifying import verify_kept

    store = Store(url)
    try:
        kept = await verify_kept(store)
        async with store.read() as session:
            trail = await audit_chain.verify(session)
    finally:
        await store.close()
    faults = [*kept.faults, *trail.faults]
    for fault in faults:
        print(fault)
    print(
        f"{kept.files} files of evidence in {kept.blobs} blobs ({kept.size} bytes), {kept.runs} runs,"
        f" {trail.entries} entries of the audit trail: {'DAMAGED' if faults else 'all whole'}"
    )
    return DAMAGED if faults else 0
