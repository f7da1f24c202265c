"""What an operator configures: `hindcast.toml`, and secrets and places from the environment.

Which code may be replayed is configuration, never input: a browser chooses a build by name. Every mistake is an error
that names the file, the setting, what was expected and what to do; a setting we do not know is a mistake too.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from app.incidents.rules import FreezeRule
from app.kafka.config import Pipeline

MIB: Final = 1024 * 1024
FILE_NAME: Final = "hindcast.toml"

_SHORTEST_TOKEN: Final = 16


class SettingsError(Exception):
    """A mistake in the configuration, told so that the operator can mend it without reading code."""


def _reference(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value):
        raise ValueError(f"{value!r} is not a reference of the form module:attribute")
    return value


def _moment(value: object) -> object:
    """Read an RFC 3339 time, quoted or as TOML has it, as epoch milliseconds; a time without offset is refused."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{value!r} is not an RFC 3339 time such as 2026-05-01T12:00:00Z") from error
    if not isinstance(moment, datetime):
        raise ValueError(f"{value!r} is not an RFC 3339 time such as 2026-05-01T12:00:00Z")
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} does not say in which time zone; add Z or an offset")
    return round(moment.timestamp() * 1000)


Reference = Annotated[str, AfterValidator(_reference)]
Moment = Annotated[int, BeforeValidator(_moment)]


class Section(BaseModel):
    """One table of the file: fixed once read, and no key passes that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Console(Section):
    """Where the console listens, whom it answers, and how much it takes in."""

    host: str = Field("127.0.0.1", description="Address to listen on.", min_length=1)
    port: int = Field(8700, description="Port to listen on; 0 takes any free one.", ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names under which the console is reached, besides its own address and `localhost`."
    )
    max_file_mib: int = Field(64, description="Largest single evidence file, in MiB.", ge=1, le=1024)
    max_import_mib: int = Field(256, description="Largest import altogether, in MiB.", ge=1, le=4096)


class Database(Section):
    """Which PostgreSQL holds the incidents; without one, an embedded database started by `hindcast demo` is used."""

    url: str | None = Field(
        None, description="The application's database, as `postgresql://user:password@host/name`.", repr=False
    )
    owner_url: str | None = Field(
        None, description="The same database as the owner of the tables; only `hindcast migrate` uses it.", repr=False
    )

    @field_validator("url", "owner_url")
    @classmethod
    def _is_postgresql(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"postgres(ql)?(\+\w+)?://", value):
            raise ValueError("the database must be PostgreSQL: postgresql://user:password@host/name")
        return value


class Sandbox(Section):
    """How the agent's code is held while it is replayed."""

    unconfined: bool = Field(
        False,
        description="Replay even where the machine cannot confine agent code. It can then read and reach anything.",
    )
    allow_network: bool = Field(False, description="Let replayed agent code use the network.")
    memory_mib: int = Field(512, description="Memory that one replay may use, in MiB.", ge=16, le=65536)
    wall_s: float = Field(60.0, description="Seconds after which a re-run is ended.", gt=0, le=3600)


class Worker(Section):
    """How the processes that run replays behave."""

    jobs: int = Field(2, description="Replays that one worker runs at the same time.", ge=1, le=64)
    lease_s: float = Field(
        20.0, description="Seconds without a sign of life after which a running replay counts as lost.", ge=1, le=600
    )
    limit_s: float = Field(
        300.0,
        description="Seconds after which a run as a whole (loading, re-run, comparison) is timed out.",
        gt=0,
        le=86400,
    )


class Redaction(Section):
    """What stays hidden from everybody who may not see everything, whatever else is opened to them."""

    attributes: tuple[str, ...] = Field(
        (), description="Names of attributes, arguments and keys of memory; `*` and `?` as in file names."
    )
    paths: tuple[str, ...] = Field(
        (), description="Places in JSON values: `$.card.number`, `$.items[*].name`, `$..email`."
    )
    patterns: tuple[str, ...] = Field((), description="Regular expressions; what they match in any text is hidden.")

    @field_validator("paths")
    @classmethod
    def _are_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not re.fullmatch(r"\$?(\.{0,2}[^.\[\]$]+|\[(\d+|\*)\])(\.{1,2}[^.\[\]]+|\[(\d+|\*)\])*", path):
                raise ValueError(f"{path!r} is not a JSON path such as $.card.number, $.items[*].name or $..email")
        return value

    @field_validator("patterns")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
            if compiled.match(""):
                raise ValueError(f"{pattern!r} matches nothing at all, and so everywhere; name what it has to hold")
        return value


class Collector(Section):
    """How the process that follows the pipelines behaves, and how long it keeps what it read."""

    start: Literal["beginning", "end"] = Field(
        "beginning", description="Where to begin in a topic that was never followed: `beginning` or `end`."
    )
    keep_days: int = Field(14, description="Days after which collected records are dropped.", ge=1, le=3650)
    keep_gib: float = Field(
        50.0, description="Disk that collected records may take, in GiB; the oldest days are dropped first.", gt=0
    )
    export_timeout_s: float = Field(
        60.0, description="Seconds after which an export that was not answered is timed out.", gt=0, le=86400
    )


class Build(Section):
    """One build of an agent that may be replayed: how to import it, and the files it consists of."""

    name: str = Field(description="What people choose it by; unique.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    agent: Reference = Field(description="The agent, as `module:attribute`.")
    registry: Reference | None = Field(None, description="Its tool registry, as `module:attribute`.")
    decode: Reference | None = Field(None, description="Its decode hook, as `module:attribute`.")
    config: Reference | None = Field(None, description="Its keyword arguments of `AgentConfig`, as `module:attribute`.")
    paths: tuple[Path, ...] = Field(
        description="Folders to import it from, relative to the file; nothing else of the machine's files is readable.",
        min_length=1,
    )
    digest: str | None = Field(
        None,
        description="`sha256:…` of the files below `paths`; when it no longer fits, the build is not replayed.",
        pattern=r"^sha256:[0-9a-f]{64}$",
    )
    live_from: Moment | None = Field(None, description="Since when it ran in production (RFC 3339).")
    live_to: Moment | None = Field(None, description="Until when it ran in production (RFC 3339).")

    @property
    def live_from_ms(self) -> int | None:
        return self.live_from

    @property
    def live_to_ms(self) -> int | None:
        return self.live_to

    @property
    def interpreter(self) -> None:
        """Which interpreter runs it: always our own, so far."""

    @model_validator(mode="after")
    def _lives_forward(self) -> Self:
        if self.live_from is not None and self.live_to is not None and self.live_to <= self.live_from:
            raise ValueError(f"build {self.name!r}: live_to must be later than live_from")
        return self

    def files_digest(self) -> str:
        """Compute `sha256:…` over the names and contents of all files below `paths`, compiled ones left out."""
        total = hashlib.sha256()
        for path in self.paths:
            total.update(b"path\0")
            for name, file in sorted(_files(path)):
                content = hashlib.sha256(file.read_bytes()).digest()
                total.update(name.encode("utf-8", "surrogateescape") + b"\0" + content)
        return f"sha256:{total.hexdigest()}"


class _File(Section):
    """The whole of `hindcast.toml`."""

    console: Console = Console()
    database: Database = Database()
    sandbox: Sandbox = Sandbox()
    worker: Worker = Worker()
    redaction: Redaction = Redaction()
    collector: Collector = Collector()
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
        for rule in self.freeze:
            for name in rule.pipelines:
                if name not in pipelines:
                    raise ValueError(f"freeze: {rule.name!r} names the pipeline {name!r}, which is not configured")
        return self


class Settings(_File):
    """Everything one process needs to know; `load` makes it."""

    source: Path | None = None
    home: Path
    # The start-up token that opens the console: `HINDCAST_TOKEN`, or random for each process.
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
        own = () if self.console.host in ("0.0.0.0", "::") else (self.console.host,)  # noqa: S104
        return tuple(dict.fromkeys((*own, "localhost", "127.0.0.1", "::1", *self.console.allowed_hosts)))

    def build(self, name: str) -> Build | None:
        """Find a build by its name."""
        return next((build for build in self.builds if build.name == name), None)

    def pipeline(self, name: str) -> Pipeline | None:
        """Find a pipeline by its name."""
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)

    def with_database(self, url: str, owner_url: str | None = None) -> Settings:
        """Return the same settings over another database (an embedded one that was just found or started)."""
        database = self.database.model_copy(update={"url": url, "owner_url": owner_url})
        return self.model_copy(update={"database": database})

    def with_console(self, **changes: object) -> Settings:
        """Return the same settings with other values of the console (from the command line, unchecked)."""
        return self.model_copy(update={"console": self.console.model_copy(update=changes)})


ENVIRONMENT: Final[dict[str, str]] = {
    "HINDCAST_CONFIG": f"Path of the configuration file; default `{FILE_NAME}` in the current folder, if there is one.",
    "HINDCAST_DATABASE_URL": "The application's database; wins over `database.url`.",
    "HINDCAST_DATABASE_OWNER_URL": "The same database as the owner of the tables; wins over `database.owner_url`.",
    "HINDCAST_TOKEN": f"The start-up token, at least {_SHORTEST_TOKEN} characters; default: random at each start.",
    "HINDCAST_HOME": "State folder (embedded database); default `.hindcast` in a checkout, else"
    " `~/.local/state/hindcast`.",
}


def load(file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the configuration. Raises `SettingsError` with one line per mistake.

    `file` wins over `HINDCAST_CONFIG`, which wins over `hindcast.toml` in the current folder. An empty variable counts
    as unset.
    """
    env = {name: value for name, value in (os.environ if environment is None else environment).items() if value}
    source = _find(file, env)
    told = {} if source is None else _read(source)
    for variable, key in (("HINDCAST_DATABASE_URL", "url"), ("HINDCAST_DATABASE_OWNER_URL", "owner_url")):
        if variable in env and isinstance(told.setdefault("database", {}), dict):
            told["database"][key] = env[variable]
    try:
        checked = _File.model_validate(told)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error, source))) from None
    builds = tuple(_placed(build, source) for build in checked.builds)
    base = source.parent if source is not None else Path.cwd()
    pipelines = tuple(pipeline.placed(base) for pipeline in checked.pipelines)
    values = {name: getattr(checked, name) for name in _File.model_fields} | {"builds": builds, "pipelines": pipelines}
    return Settings.model_construct(**values, source=source, home=home(env), token=_read_token(env))


def home(environment: Mapping[str, str] | None = None) -> Path:
    """Name the state folder; in a checkout it lies inside it, so that two clones do not share a database."""
    env = os.environ if environment is None else environment
    if told := env.get("HINDCAST_HOME"):
        return Path(told).expanduser().absolute()
    clone = Path(__file__).parent.parent
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


def _placed(build: Build, source: Path | None) -> Build:
    """Make a build's paths absolute, and see that they are there."""
    base = source.parent if source is not None else Path.cwd()
    paths = tuple((base / path.expanduser()).resolve() for path in build.paths)
    for told, path in zip(build.paths, paths, strict=True):
        if not path.is_dir():
            raise SettingsError(
                f"{source}: build {build.name!r}: paths names {str(told)!r}, and {path} is not a folder; paths are"
                " relative to the file"
            )
    return build.model_copy(update={"paths": paths})


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            file = Path(where, name)
            if file.is_file() and file.suffix != ".pyc":
                yield file.relative_to(folder).as_posix(), file


def _explain(error: ValidationError, source: Path | None) -> Iterator[str]:
    """Say each mistake in one line, in the words of the file."""
    for mistake in error.errors(include_url=False, include_context=False, include_input=True):
        place = _dotted(mistake["loc"])
        where = f"{source}: {place}" if source is not None else f"the environment: {place}"
        match mistake["type"]:
            case "extra_forbidden":
                yield f"{where} is not a setting; {_nearest(mistake['loc'])}"
            case "missing":
                yield f"{where} is missing; {_description(mistake['loc'])}"
            case "value_error":
                yield f"{where}: {mistake['msg'].removeprefix('Value error, ')}".replace(": :", ":")
            case _:
                message = mistake["msg"]
                yield f"{where}: {message[:1].lower()}{message[1:]}; {_description(mistake['loc'])}"


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _section(location: tuple[int | str, ...]) -> type[BaseModel]:
    """Find the table that holds the last name of a place, however deep it lies."""
    section: type[BaseModel] = _File
    for name in location[:-1]:
        field = section.model_fields.get(name) if isinstance(name, str) else None
        inner = None if field is None else _table(field.annotation)
        section = section if inner is None else inner
    return section


def _table(annotation: Any) -> type[BaseModel] | None:
    """The table that a setting holds, or a list of; None where it holds a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _table(inner)) is not None), None)


def _nearest(location: tuple[int | str, ...]) -> str:
    known = list(_section(location).model_fields)
    guess = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {guess[0]}?" if guess else f"expected one of {', '.join(known)}"


def _description(location: tuple[int | str, ...]) -> str:
    names = [part for part in location[1:] if isinstance(part, str)]
    field = _section(location).model_fields.get(names[-1]) if names else None
    return f"expected: {field.description}" if field is not None and field.description else "see docs/configuration.md"
