"""`hindcast token create|list|revoke`: tokens of scripts, from a terminal that may reach the database."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from app.commands.common import CommandError, add_options

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from app.incidents.store import WriteSession
    from app.settings import Settings

    Verb = Callable[[WriteSession, argparse.Namespace, Settings], Coroutine[Any, Any, None]]


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's verbs to its parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = verbs.add_parser("create", help="make a token; it is printed this once")
    create.add_argument("--name", required=True, metavar="NAME", help="which script holds it")
    create.add_argument("--role", required=True, choices=("viewer", "responder", "admin"))
    create.add_argument(
        "--pipeline",
        action="append",
        required=True,
        metavar="P",
        help='a pipeline, or access.files_scope for incidents from files, or "*" for all; repeatable',
    )
    create.add_argument("--days", type=int, default=90, metavar="N", help="days that it lives (default: 90)")
    listed = verbs.add_parser("list", help="list tokens, newest first")
    revoke = verbs.add_parser("revoke", help="end a token at once")
    revoke.add_argument("token", metavar="ID", help="its id, as `list` shows it (tok_…)")
    for verb in (create, listed, revoke):
        add_options(verb, level="warning")


def run(args: argparse.Namespace) -> int:
    """Do it; 0 when it is done, 2 when it is refused."""
    import asyncio

    from app.commands.common import ready_settings, start_logging
    from app.incidents.errors import IncidentError

    try:
        start_logging(args)
        settings = ready_settings(args.config)
        asyncio.run(_within(settings, args))
    except (CommandError, IncidentError) as error:
        print(f"hindcast token: {error}", file=sys.stderr)
        return 2
    return 0


async def _within(settings: Settings, args: argparse.Namespace) -> None:
    from app.incidents.store import Store

    verbs: dict[str, Verb] = {"create": _create, "list": _list, "revoke": _revoke}
    store = Store(settings.database_url, pool_size=1)
    try:
        async with store.write() as session:
            await verbs[args.verb](session, args, settings)
    finally:
        await store.close()


async def _create(session: WriteSession, args: argparse.Namespace, settings: Settings) -> None:
    from app.incidents.roles import ANYWHERE, Role
    from app.incidents.tokens import create_token
    from app.web.formats import iso

    known = [*(pipeline.name for pipeline in settings.pipelines), settings.access.files_scope, ANYWHERE]
    for name in args.pipeline:
        if name not in known:
            raise CommandError(
                f"--pipeline names {name!r}, which is not configured; expected one of {', '.join(known)}"
            )
    made, secret = await create_token(
        session, name=args.name, role=Role(args.role), scopes=args.pipeline, who=_who(), days=args.days
    )
    print(secret)
    print(f"{made.id}: {made.role} in {', '.join(made.scopes)} until {iso(made.expires_at)}", file=sys.stderr)


async def _list(session: WriteSession, args: argparse.Namespace, settings: Settings) -> None:
    from app.incidents import repository
    from app.incidents.tokens import list_tokens
    from app.web.formats import iso

    now = await repository.now(session)
    for one in await list_tokens(session):
        used = "never used" if one.last_used_at is None else f"used {iso(one.last_used_at)}"
        told = [one.id, one.state(now), one.role, ",".join(one.scopes), f"until {iso(one.expires_at)}", used, one.name]
        print("\t".join(told))


async def _revoke(session: WriteSession, args: argparse.Namespace, settings: Settings) -> None:
    from app.incidents.tokens import revoke_token

    ended = await revoke_token(session, args.token, who=_who())
    print(f"{ended.id} ({ended.name}) is ended")


def _who() -> str:
    """The user of this machine; recorded."""
    import getpass

    try:
        return f"command line: {getpass.getuser()}"
    except (KeyError, OSError):
        return "command line: unknown"
