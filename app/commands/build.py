"""`hindcast build`: add a build to the configuration (from CI, where it is deployed), list builds, verify them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.common import CommandError

if TYPE_CHECKING:
    from app.settings import Settings

WRONG = 1

_REFERENCES = {"registry": "its tool registry", "decode": "its decode hook", "config": "its AgentConfig arguments"}


def register(parser: argparse.ArgumentParser) -> None:
    """Add this command's verbs to its parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    _register_add(verbs.add_parser("add", help="write a build into hindcast.toml, its digest computed"))
    listed = verbs.add_parser("list", help="the configured builds, and whether their files are those that were added")
    verify = verbs.add_parser("verify", help="see whether builds can be replayed: files, environment, import")
    verify.add_argument("names", nargs="*", metavar="NAME", help="builds (default: all)")
    for verb in (listed, verify):
        _add_file(verb)


def _register_add(add: argparse.ArgumentParser) -> None:
    add.add_argument("name", metavar="NAME", help="what people choose it by")
    add.add_argument("--agent", required=True, metavar="M:A", help="the agent, as module:attribute")
    for name, what in _REFERENCES.items():
        option = "--agent-config" if name == "config" else f"--{name}"
        add.add_argument(option, dest=f"reference_{name}", metavar="M:A", help=what)
    add.add_argument("--path", action="append", required=True, metavar="DIR", help="folder to import from; repeatable")
    add.add_argument("--interpreter", type=Path, metavar="FILE", help="the bin/python of its environment")
    add.add_argument("--driver", metavar="NAME", help="what runs it (default: runtime)")
    add.add_argument(
        "--preload", action="append", default=[], metavar="MODULE", help="import before any run; repeatable"
    )
    add.add_argument("--lock", type=Path, metavar="FILE", help="what production has installed, as pip freeze writes it")
    add.add_argument("--write-lock", action="store_true", help="write that file, from the interpreter as it is now")
    add.add_argument("--live-from", metavar="TIME", help="since when it runs in production (RFC 3339, or `now`)")
    add.add_argument("--after", metavar="NAME", help="the build that it takes over from, which is live until then")
    add.add_argument("--pipeline", action="append", default=[], metavar="NAME", help="a pipeline of it; repeatable")
    add.add_argument("--replace", action="store_true", help="write a build of this name anew")
    _add_file(add)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="hindcast.toml (default: HINDCAST_CONFIG, else the one here)"
    )


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0 when all is well, 1 when a build is not as it should be, 2 when it cannot be told."""
    try:
        match args.verb:
            case "add":
                return _add(args)
            case "list":
                return _list(_settings(args.config))
            case _:
                return _verify(_settings(args.config), args.names)
    except CommandError as error:
        print(f"hindcast build {args.verb}: {error}", file=sys.stderr)
        return 2


def _settings(config: Path | None) -> Settings:
    from app.settings import SettingsError, load

    try:
        return load(config)
    except SettingsError as error:
        raise CommandError(str(error)) from None


def _add(args: argparse.Namespace) -> int:
    from app.commands import build_file

    file = _file(args.config)
    build = _described(args, file)
    build_file.add(file, build, replace=args.replace, after=args.after, pipelines=args.pipeline)
    print(f"{file}: build {args.name} {build['digest']}; workers and consoles offer it once they are restarted")
    return 0


def _file(config: Path | None) -> Path:
    import os

    from app.settings import FILE_NAME

    return (config or Path(os.environ.get("HINDCAST_CONFIG") or FILE_NAME)).expanduser().absolute()


def _described(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """The settings of the build, in the order in which they are documented; paths relative to the file."""
    from app.commands.build_file import moment

    folders = [Path(path).expanduser().resolve() for path in args.path]
    for told, folder in zip(args.path, folders, strict=True):
        if not folder.is_dir():
            raise CommandError(f"--path {told}: {folder} is not a folder")
    build: dict[str, Any] = {"name": args.name, "agent": args.agent}
    for name in _REFERENCES:
        if reference := getattr(args, f"reference_{name}"):
            build[name] = reference
    build["paths"] = [_relative(folder, file) for folder in folders]
    if args.interpreter is not None:
        build["interpreter"] = _relative(args.interpreter.expanduser().absolute(), file)
    if args.driver:
        build["driver"] = args.driver
    if args.preload:
        build["preload"] = args.preload
    if lock := _lock(args, file):
        build["lock"] = _relative(lock, file)
    build["digest"] = _digest(args.name, args.agent, folders)
    if args.live_from:
        build["live_from"] = moment(args.live_from)
    return build


def _relative(path: Path, file: Path) -> str:
    """As the file would name it: relative where it lies below the file's folder."""
    return str(path.relative_to(file.parent)) if path.is_relative_to(file.parent) else str(path)


def _digest(name: str, agent: str, folders: list[Path]) -> str:
    from pydantic import ValidationError

    from app.settings import Build

    try:
        return Build(name=name, agent=agent, paths=tuple(folders)).files_digest()
    except ValidationError as error:
        told = error.errors(include_url=False)[0]
        raise CommandError(f"{told['loc'][0]}: {told['msg'].removeprefix('Value error, ')}") from None


def _lock(args: argparse.Namespace, file: Path) -> Path | None:
    lock: Path | None = None if args.lock is None else args.lock.expanduser().absolute()
    if not args.write_lock:
        return lock
    from app.sandbox import environment, zygote
    from app.sandbox.locks import write_lock
    from app.sandbox.model import SandboxError

    try:
        python = args.interpreter and args.interpreter.expanduser().absolute()
        found = environment.look_at(python) if python else environment.own(zygote.import_path())
    except SandboxError as error:
        raise CommandError(f"--interpreter: {error}") from None
    lock = lock or file.parent / f"{args.name}.lock"
    try:
        lock.write_text(write_lock(found.python, found.packages), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--lock {lock}: {error.strerror}") from None
    return lock


def _list(settings: Settings) -> int:
    from app.replay.render import utc

    if not settings.builds:
        print(f"{settings.source or 'no configuration'}: no builds; add one with hindcast build add")
    for build in settings.builds:
        live = " ".join(
            f"{word} {utc(at)}" for word, at in (("from", build.live_from), ("until", build.live_to)) if at is not None
        )
        files = "files not pinned"
        if build.digest is not None:
            files = "files as added" if build.files_digest() == build.digest else "FILES CHANGED"
        print(f"{build.name}\t{build.driver}\t{files}\t{f'live {live}' if live else 'no times'}")
    return 0


def _verify(settings: Settings, names: list[str]) -> int:
    from app.commands.build_check import problems

    for name in names:
        if settings.build(name) is None:
            known = ", ".join(build.name for build in settings.builds) or "none"
            raise CommandError(f"no build {name!r} is configured; there are: {known}")
    chosen = [build for build in settings.builds if not names or build.name in names]
    wrong = 0
    for build in chosen:
        found = list(problems(build, unconfined=settings.sandbox.unconfined))
        wrong += bool(found)
        print(f"{build.name}: {'can be replayed' if not found else ''}".rstrip())
        for problem in found:
            print(f"  {problem}")
    return WRONG if wrong else 0
