"""What an operator configures: `hindcast.toml`, and secrets and places from the environment.

Which code may be replayed is configuration, never input: a browser chooses a build by name. Every mistake is an error
that names the file, the setting, what was expected and what to do; a setting we do not know is a mistake too.
"""

from __future__ import annotations

import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, model_validator

from app.incidents.rules import FreezeRule
from app.kafka.config import Pipeline
from app.settings.access import Access, problem_of
from app.settings.base import Section, SettingsError
from app.settings.builds import Build, placed
from app.settings.explain import explain
from app.settings.sections import Collector, Console, Database, Flink, Redaction, Retention, Sandbox, Worker

MIB: Final = 1024 * 1024
FILE_NAME: Final = "hindcast.toml"

_SHORTEST_TOKEN: Final = 16


class _File(Section):
    """The whole of `hindcast.toml`."""

    console: Console = Console()
    database: Database = Database()
    sandbox: Sandbox = Sandbox()
    worker: Worker = Worker()
    redaction: Redaction = Redaction()
    access: Access = Access()
    collector: Collector = Collector()
    retention: Retention = Retention()
    flink: Flink = Flink()
    builds: tuple[Build, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    freeze: tuple[FreezeRule, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for table in ("builds", "pipelines", "freeze"):
            names = [one.name for one in getattr(self, table)]
            for name in names:
                if (times := names.count(name)) > 1:
                    raise ValueError(f"{table}: the name {name!r} is used {times} times; each needs its own")
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        """See that whatever is referred to by its name is there."""
        builds, pipelines = {one.name for one in self.builds}, {one.name for one in self.pipelines}
        for pipeline in self.pipelines:
            for name in pipeline.builds:
                if name not in builds:
                    raise ValueError(f"pipelines: {pipeline.name!r} names the build {name!r}, which is not configured")
        for number, role in enumerate(self.access.roles):
            for name in role.pipelines:
                if name not in pipelines | {"*", self.access.files_scope}:
                    raise ValueError(
                        f"access.roles[{number}]: names the pipeline {name!r}, which is not configured; expected one of"
                        f" {', '.join([*sorted(pipelines), self.access.files_scope])}, or *"
                    )
        for rule in self.freeze:
            for name in rule.pipelines:
                if name not in pipelines:
                    raise ValueError(f"freeze: {rule.name!r} names the pipeline {name!r}, which is not configured")
        return self


class Settings(_File):
    """Everything one process needs to know; `load` makes it."""

    source: Path | None = None
    home: Path
    # Opens the console where `access.mode` is `token`: `HINDCAST_TOKEN`, or random for each process.
    token: str = Field(repr=False)

    @property
    def database_url(self) -> str:
        """The application's database; raises `SettingsError` when none is configured."""
        if self.database.url is None:
            raise SettingsError(
                "no database is configured: set HINDCAST_DATABASE_URL (postgresql://user:password@host/name), or start"
                f" `hindcast demo`, whose embedded database is found by its state folder {self.home} (HINDCAST_HOME)"
            )
        return self.database.url

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Host names that requests may carry, without port."""
        own: tuple[str, ...] = () if self.console.host in ("0.0.0.0", "::") else (self.console.host,)  # noqa: S104
        if self.console.url is not None:
            own += (urlsplit(self.console.url).hostname or "",)
        return tuple(dict.fromkeys((*own, "localhost", "127.0.0.1", "::1", *self.console.allowed_hosts)))

    @property
    def public_url(self) -> str | None:
        """The address under which browsers reach the console, without a slash at its end; None where none is told."""
        return None if self.console.url is None else self.console.url.rstrip("/")

    @property
    def client_secret(self) -> str | None:
        """The secret by which the provider knows the console. Raises `SettingsError` where it cannot be read."""
        if self.access.oidc is None or self.access.oidc.client_secret is None:
            return None
        base = self.source.parent if self.source is not None else Path.cwd()
        return self.access.oidc.client_secret.read("access.oidc.client_secret", base)

    def check_access(self) -> None:
        """Raise `SettingsError` unless whoever reaches a console with these settings has to say who they are."""
        problem = problem_of(self.access, self.console.host, self.public_url, self.console.proxies)
        if problem is not None:
            raise SettingsError(problem)
        if self.access.mode == "oidc":
            _ = self.client_secret

    def build(self, name: str) -> Build | None:
        """Find a build by its name."""
        return next((build for build in self.builds if build.name == name), None)

    def pipeline(self, name: str) -> Pipeline | None:
        """Find a pipeline by its name."""
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)

    def with_database(self, url: str, owner_url: str | None = None, purge_url: str | None = None) -> Settings:
        """Return the same settings over another database (an embedded one that was just found or started)."""
        database = self.database.model_copy(update={"url": url, "owner_url": owner_url, "purge_url": purge_url})
        return self.model_copy(update={"database": database})

    def with_console(self, **changes: object) -> Settings:
        """Return the same settings with other values of the console (from the command line, unchecked)."""
        return self.model_copy(update={"console": self.console.model_copy(update=changes)})


ENVIRONMENT: Final[dict[str, str]] = {
    "HINDCAST_CONFIG": f"Path of the configuration file; default `{FILE_NAME}` in the current folder, if there is one.",
    "HINDCAST_DATABASE_URL": "The application's database; wins over `database.url`.",
    "HINDCAST_DATABASE_OWNER_URL": "The same database as the owner of the tables; wins over `database.owner_url`.",
    "HINDCAST_DATABASE_PURGE_URL": "The same database as the role of retention; wins over `database.purge_url`.",
    "HINDCAST_TOKEN": f"The start-up token, at least {_SHORTEST_TOKEN} characters; default: random at each start.",
    "HINDCAST_METRICS": "`[HOST:]PORT` for `/metrics`, `/healthz` and `/readyz` of a process, as `--metrics`"
    " (docs/operations.md); default: nowhere.",
    "HINDCAST_LOG_FORMAT": "`text` or `json`: how log lines are written; default `text`.",
    "HINDCAST_HOME": "State folder (embedded database); default `.hindcast` in a checkout, else"
    " `~/.local/state/hindcast`.",
}


_DATABASE_URLS: Final = (
    ("HINDCAST_DATABASE_URL", "url"),
    ("HINDCAST_DATABASE_OWNER_URL", "owner_url"),
    ("HINDCAST_DATABASE_PURGE_URL", "purge_url"),
)


def load(file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the configuration. Raises `SettingsError` with one line per mistake.

    `file` wins over `HINDCAST_CONFIG`, which wins over `hindcast.toml` in the current folder. An empty variable counts
    as unset.
    """
    env = {name: value for name, value in (os.environ if environment is None else environment).items() if value}
    source = _find(file, env)
    told = {} if source is None else _read(source)
    for variable, key in _DATABASE_URLS:
        if variable in env and isinstance(told.setdefault("database", {}), dict):
            told["database"][key] = env[variable]
    try:
        checked = _File.model_validate(told)
    except ValidationError as error:
        raise SettingsError("\n".join(explain(error, source, _File))) from None
    builds = tuple(placed(build, source) for build in checked.builds)
    base = source.parent if source is not None else Path.cwd()
    pipelines = tuple(pipeline.placed(base) for pipeline in checked.pipelines)
    values = {name: getattr(checked, name) for name in _File.model_fields} | {"builds": builds, "pipelines": pipelines}
    return Settings.model_construct(**values, source=source, home=home(env), token=_read_token(env))


def home(environment: Mapping[str, str] | None = None) -> Path:
    """Name the state folder; in a checkout it lies inside it, so that two clones do not share a database."""
    env = os.environ if environment is None else environment
    if told := env.get("HINDCAST_HOME"):
        return Path(told).expanduser().absolute()
    clone = Path(__file__).parent.parent.parent
    if (clone / "pyproject.toml").is_file():
        return clone / ".hindcast"
    state = env.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "hindcast"


def _find(file: Path | None, env: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file.absolute()
    if told := env.get("HINDCAST_CONFIG"):
        return Path(told).expanduser().absolute()
    usual = Path(FILE_NAME)
    return usual.absolute() if usual.is_file() else None


def _read(source: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{source} does not exist; create it, or correct HINDCAST_CONFIG or --config") from None
    except OSError as error:
        raise SettingsError(f"{source} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{source} is not UTF-8 text; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source} is not valid TOML: {error}") from None


def _read_token(env: Mapping[str, str]) -> str:
    token = env.get("HINDCAST_TOKEN")
    if token is None:
        return secrets.token_urlsafe(24)
    if len(token) < _SHORTEST_TOKEN or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise SettingsError(
            f"HINDCAST_TOKEN must be at least {_SHORTEST_TOKEN} printable ASCII characters without blanks; make one:"
            " python3 -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )
    return token


__all__ = [
    "ENVIRONMENT", "FILE_NAME", "MIB", "Access", "Build", "Collector", "Console", "Database", "Flink", "Redaction",
    "Retention", "Sandbox", "Settings", "SettingsError", "Worker", "home", "load",
]  # fmt: skip
