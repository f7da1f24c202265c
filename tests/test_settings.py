"""The configuration: every mistake is named with its remedy, and every setting is in the documentation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app import settings
from app.incidents.redaction import path_pattern
from app.incidents.rules import FreezeRule
from app.kafka.config import Pipeline, Security
from app.kafka.topics import EventTopic, Topics
from app.settings import Build, Settings, SettingsError, load
from app.settings.access import Oidc, Proxy, RoleRule

DOCS = Path(__file__).parents[1] / "docs" / "configuration.md"
SECTIONS: dict[str, type[BaseModel]] = {
    "console": settings.Console,
    "database": settings.Database,
    "sandbox": settings.Sandbox,
    "worker": settings.Worker,
    "collector": settings.Collector,
    "flink": settings.Flink,
    "pipelines": Pipeline,
    "security": Security,
    "topics": Topics,
    "events": EventTopic,
    "freeze": FreezeRule,
    "redaction": settings.Redaction,
    "builds": settings.Build,
    "access": settings.Access,
    "access.oidc": Oidc,
    "access.proxy": Proxy,
    "access.roles": RoleRule,
}
PIPELINE = '[[pipelines]]\nname = "p"\nbrokers = ["b:9092"]\n'
TOPICS = '[pipelines.topics]\ntraces = "t"\n'
BUILD = '[[builds]]\nname = "a"\nagent = "m:A"\npaths = ["code"]\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path / "hindcast.toml"


def read(config: Path, text: str, **environment: str) -> Settings:
    config.write_text(text)
    return load(config, environment)


def mistake(config: Path, text: str, **environment: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(config, text, **environment)
    return str(caught.value).replace(str(config), "FILE").replace(str(config.parent), "HERE")


MISTAKES = {
    "[console]\nprot = 1": "FILE: console.prot is not a setting; did you mean port?",
    "[sandbocks]": "FILE: sandbocks is not a setting; did you mean sandbox?",
    "[worker]\nx = 1": "FILE: worker.x is not a setting; expected one of jobs, lease_s, limit_s, drain_s",
    "[console]\nport = 70000": "FILE: console.port: input should be less than or equal to 65535; expected: Port",
    "[sandbox]\nmemory_mib = 'lots'": "FILE: sandbox.memory_mib: input should be a valid integer",
    "[database]\nurl = 'mysql://x'": "FILE: database.url: the database must be PostgreSQL",
    "[[builds]]\nname = 'a'\npaths = ['code']": "FILE: builds[0].agent is missing; expected: The agent",
    BUILD.replace("m:A", "m"): "FILE: builds[0].agent: 'm' is not a reference of the form module:attribute",
    BUILD.replace('"a"', '"a b"'): "FILE: builds[0].name: string should match pattern '^[A-Za-z0-9]",
    BUILD.replace("code", "cude"): "FILE: build 'a': paths names 'cude', and HERE/cude is not a folder",
    BUILD + BUILD: "FILE: builds: the name 'a' is used 2 times",
    BUILD
    + "live_from = 2026-01-01T00:00:00": "builds[0].live_from: 2026-01-01T00:00:00 does not say in which time zone",
    BUILD + "live_from = 'spring'": "FILE: builds[0].live_from: 'spring' is not an RFC 3339 time",
    BUILD + "live_from = 3": "FILE: builds[0].live_from: 3 is not an RFC 3339 time",
    BUILD + "live_from = 2026-01-02T00:00:00Z\nlive_to = 2026-01-01T00:00:00Z": "build 'a': live_to must be later",
    BUILD + "driver = 'other'": "FILE: builds[0].driver: there is no driver 'other'; there are runtime",
    BUILD + "preload = ['a b']": "FILE: builds[0].preload[0]: 'a b' is not the name of a module",
    BUILD + "digest = 'abc'": "FILE: builds[0].digest: string should match pattern",
    "port = ": "FILE is not valid TOML: ",
    PIPELINE: "FILE: pipelines[0].topics is missing; expected: Topic per stream.",
    PIPELINE
    + "partitoner = 'murmur2'\n"
    + TOPICS: "pipelines[0].partitoner is not a setting; did you mean partitioner?",
    PIPELINE + TOPICS + "trace = 'x'": "FILE: pipelines[0].topics.trace is not a setting; did you mean traces?",
    PIPELINE.replace("b:9092", "b") + TOPICS: "pipelines[0].brokers[0]: 'b' is not the address of a broker",
    PIPELINE + "[pipelines.security]\nprotocol = 'tls'\n" + TOPICS: "pipelines[0].security.protocol: input should be",
    PIPELINE + "[pipelines.security]\npassword = 'hunter22'\n" + TOPICS: "pipelines[0].security.password: input should",
    PIPELINE + TOPICS + PIPELINE + TOPICS: "FILE: pipelines: the name 'p' is used 2 times",
    PIPELINE + "builds = ['b']\n" + TOPICS: "FILE: pipelines: 'p' names the build 'b', which is not configured",
    "[[freeze]]\nname = 'f'": "FILE: freeze[0]: a rule needs a condition: reason, tool, status or key",
    "[[freeze]]\nname = 'f'\ntool = 't'\npipelines = ['q']": "'f' names the pipeline 'q', which is not",
    "[[freeze]]\nname = 'f'\ntool = 't'\nper_hour = 0": "freeze[0].per_hour: input should be greater than",
    "[collector]\nstart = 'now'": "FILE: collector.start: input should be 'beginning' or 'end'; expected: Where",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(config: Path, text: str) -> None:
    assert MISTAKES[text] in mistake(config, text)


def test_all_mistakes_are_told_at_once(config: Path) -> None:
    assert len(mistake(config, "[console]\nport = -1\nprot = 1\n[sandbox]\nwall_s = 0").splitlines()) == 3


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml does not exist"):
        load(None, {"HINDCAST_CONFIG": str(tmp_path / "nowhere.toml")})
    (tmp_path / "latin").write_bytes(b"# \xe9")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        load(tmp_path / "latin", {})
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load(tmp_path, {})


def test_the_environment_wins_and_empty_means_unset(config: Path) -> None:
    text = '[database]\nurl = "postgresql://file/x"'
    assert read(config, text).database_url == "postgresql://file/x"
    assert read(config, text, HINDCAST_DATABASE_URL="postgres://env/x").database_url == "postgres://env/x"
    assert read(config, text, HINDCAST_DATABASE_URL="").database_url == "postgresql://file/x"
    assert "the database must be PostgreSQL" in mistake(config, "", HINDCAST_DATABASE_URL="sqlite://")


def test_no_database_says_how_to_get_one(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"set HINDCAST_DATABASE_URL .* or start `hindcast demo`"):
        _ = read(config, "").database_url


def test_the_token_is_random_or_preset(config: Path) -> None:
    one, other = read(config, ""), read(config, "")
    assert one.token != other.token
    assert len(one.token) >= 32
    assert read(config, "", HINDCAST_TOKEN="0123456789abcdef").token == "0123456789abcdef"
    for bad in ("short", "0123456789 abcdef", "0123456789abcdeé"):
        assert "HINDCAST_TOKEN must be at least 16 printable ASCII" in mistake(config, "", HINDCAST_TOKEN=bad)


def test_no_secret_is_in_what_a_log_may_print(config: Path) -> None:
    secret = "s3cret-s3cret-s3cret"
    url = f"postgresql://u:{secret}@h/d"
    made = read(config, "", HINDCAST_TOKEN=secret, HINDCAST_DATABASE_URL=url, HINDCAST_DATABASE_OWNER_URL=url)
    assert secret not in repr(made)
    assert secret not in mistake(config, "[console]\nport = -1", HINDCAST_DATABASE_URL=url)
    assert secret not in mistake(config, "", HINDCAST_DATABASE_URL=f"mysql://u:{secret}@h/d")


def test_a_build_reads_its_times_and_places(config: Path) -> None:
    text = BUILD + 'live_from = 2026-01-01T00:00:00Z\nlive_to = "2026-01-01T02:00:00.5+01:00"'
    (build,) = read(config, text).builds
    assert (build.live_from_ms, build.live_to_ms) == (1767225600000, 1767229200500)
    assert build.paths == (config.parent / "code",)
    assert read(config, text).build("a") is not None
    assert read(config, text).build("b") is None


def test_a_build_names_an_environment(config: Path) -> None:
    python = config.parent / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (build,) = read(config, BUILD + 'interpreter = "venv/bin/python"\npreload = ["langgraph.graph"]').builds
    assert build.interpreter == python  # the link itself: what it leads to would be another environment
    assert (build.driver, build.preload) == ("runtime", ("langgraph.graph",))
    (config.parent / "lock.txt").write_text("pydantic==2.11.4\n")
    (build,) = read(config, BUILD + 'lock = "lock.txt"\nlive_from = 2026-01-01T00:00:00Z').builds
    assert build.production().locked == {"pydantic": "2.11.4"}
    assert build.production().live_from_ms == 1767225600000
    (config.parent / "lock.txt").write_text("pydantic\n")
    assert "it has no line of the form name==version; write it" in mistake(config, BUILD + 'lock = "lock.txt"')
    assert "none.txt cannot be used: No such file" in mistake(config, BUILD + 'lock = "none.txt"')
    told = mistake(config, BUILD + 'interpreter = "venv/bin/pyhton"')
    assert told == (
        "FILE: build 'a': interpreter names 'venv/bin/pyhton', and HERE/venv/bin/pyhton is not a program; name the"
        " bin/python of an environment, relative to the file"
    )


def test_redaction_rules_are_checked_as_they_are_read(config: Path) -> None:
    text = """[redaction]
attributes = ["customer.*"]
paths = ["$.card.number", "items[*].name", "$..email", "$[0]"]
patterns = ['\\b\\d{16}\\b']"""
    told = read(config, text).redaction
    assert (told.attributes, told.patterns) == (("customer.*",), (r"\b\d{16}\b",))
    assert all(path_pattern(path) for path in told.paths)
    for wrong, said in (
        ('paths = ["$"]', "'$' is not a JSON path"),
        ('paths = ["a..[0]"]', "is not a JSON path"),
        ('paths = [""]', "is not a JSON path"),
        ('patterns = ["("]', "'(' is not a regular expression"),
        ('patterns = ["x*"]', "matches nothing at all"),
        ("pattern = []", "did you mean patterns?"),
    ):
        with pytest.raises(settings.SettingsError, match=re.escape(said)):
            read(config, f"[redaction]\n{wrong}")


ROLE = '[[access.roles]]\nrole = "viewer"\ngroups = ["g"]\npipelines = ["*"]\n'
OIDC = '[access]\nmode = "oidc"\n[access.oidc]\nissuer = "https://id.example.org"\nclient_id = "x"\n'
HOME = '[console]\nurl = "https://hindcast.example.org"\n'
STARTS_NOT = {
    '[console]\nhost = "0.0.0.0"': "'0.0.0.0' can be reached from other machines, and access.mode is not set",
    '[console]\nhost = "hindcast.internal"': 'access.mode is not set; set access.mode to "oidc" or "proxy"',
    '[access]\nmode = "oidc"\n' + ROLE: "no provider is named; add [access.oidc] with issuer and client_id",
    OIDC + ROLE: "console.url is not set",
    HOME.replace("https", "http") + OIDC + ROLE: "is not https: sessions could be stolen on the way",
    HOME + OIDC: 'access.mode is "oidc", and nobody has a role; add [[access.roles]]',
    HOME + OIDC + 'client_secret = { env = "HINDCAST_NO_SUCH" }\n' + ROLE: "the environment variable HINDCAST_NO_SUCH",
    HOME + OIDC + 'client_secret = { file = "gone" }\n' + ROLE: "access.oidc.client_secret is to come from the file",
    '[access]\nmode = "proxy"\n' + ROLE: "console.proxies is empty: nobody could be believed",
    '[console]\nproxies = ["10.0.0.5"]\n[access]\nmode = "proxy"\n': "nobody has a role",
}
STARTS = (
    "",
    '[console]\nhost = "::1"',
    '[console]\nhost = "0.0.0.0"\n[access]\nmode = "token"',
    HOME + OIDC + ROLE,
    '[console]\nproxies = ["10.0.0.0/24"]\n[access]\nmode = "proxy"\n' + ROLE,
)


@pytest.mark.parametrize("text", STARTS_NOT)
def test_a_console_that_would_let_strangers_in_does_not_start(config: Path, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(config, text).check_access()
    assert STARTS_NOT[text] in str(caught.value)


def test_a_console_that_knows_who_comes_in_starts(config: Path) -> None:
    for text in STARTS:
        read(config, text).check_access()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OIDC.replace("https", "http"), "is not https: what it says could be forged on the way"),
        (OIDC.replace("https://id.example.org", "id.example.org"), "is not an issuer such as https://id.example.org"),
        (OIDC.replace("example.org", "example.org?x=1"), "is not an issuer such as"),
        (OIDC + 'scopes = ["profile"]', "openid is missing"),
        (OIDC + 'client_secret = "hunter22"', "access.oidc.client_secret: "),
        (OIDC + "client_secret = {}", "a secret is given by reference"),
        ('[console]\nproxies = ["proxy.internal"]', "is not an address such as 10.0.0.5"),
        ('[console]\nproxies = ["0.0.0.0/0"]', "is every address there is"),
        ('[console]\nurl = "hindcast.example.org"', "console.url: "),
        (ROLE.replace('groups = ["g"]\n', ""), "the rule gives its role to nobody"),
        (ROLE.replace("viewer", "boss"), "access.roles[0].role: "),
        (ROLE.replace("*", "refunds"), "names the pipeline 'refunds', which is not configured; expected one of files"),
        ('[access]\nmode = "none"', "access.mode: "),
    ],
)
def test_mistakes_about_access_are_named(config: Path, text: str, said: str) -> None:
    found = mistake(config, text)
    assert said in found
    assert "hunter22" not in found


def test_a_pipeline_finds_its_files_beside_the_configuration(config: Path) -> None:
    security = (
        '[pipelines.security]\nprotocol = "sasl_ssl"\nmechanism = "PLAIN"\nusername = { env = "U" }\n'
        'password = { file = "secrets/kafka" }\nca = "/etc/ca.pem"\n'
    )
    made = read(config, BUILD + PIPELINE + 'builds = ["a"]\n' + security + TOPICS)
    pipeline = made.pipeline("p")
    assert pipeline is not None
    assert made.pipeline("q") is None
    assert pipeline.security.password is not None
    assert pipeline.security.password.file == config.parent / "secrets" / "kafka"
    assert pipeline.security.ca == Path("/etc/ca.pem")


def test_a_secret_in_the_file_is_refused_and_not_repeated(config: Path) -> None:
    text = PIPELINE + '[pipelines.security]\npassword = "hunter22"\n' + TOPICS
    assert "hunter22" not in mistake(config, text)


def test_the_digest_covers_names_and_contents_and_nothing_else(tmp_path: Path) -> None:
    def digest() -> str:
        return Build(name="a", agent="m:A", paths=(tmp_path,)).files_digest()

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    first = digest()
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("compiled")
    os.utime(tmp_path / "a" / "x.py", (1, 1))
    assert digest() == first
    seen = {first}
    (tmp_path / "a" / "x.py").write_text("2")
    seen.add(digest())
    (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "y.py")
    seen.add(digest())
    (tmp_path / "empty.py").write_text("")
    seen.add(digest())
    assert len(seen) == 4


def test_hosts_that_may_be_asked_for(config: Path) -> None:
    assert read(config, "").allowed_hosts == ("127.0.0.1", "localhost", "::1")
    text = '[console]\nhost = "0.0.0.0"\nallowed_hosts = ["hindcast.example.org"]'
    assert read(config, text).allowed_hosts == ("localhost", "127.0.0.1", "::1", "hindcast.example.org")


def test_the_state_folder(tmp_path: Path) -> None:
    assert settings.home({"HINDCAST_HOME": str(tmp_path)}) == tmp_path
    assert settings.home({}) == Path(settings.__file__).parents[2] / ".hindcast"  # this is a checkout


def test_settings_load_little_else_of_hindcast() -> None:
    heavy = ("sqlalchemy", "fastapi", "confluent_kafka", "psycopg", "app.replay", "app.runtime", "app.web", "app.jobs")
    script = f"import sys, app.settings; print([m for m in sys.modules if m.startswith({heavy!r})])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=DOCS.parents[1]
    )
    assert done.stdout.strip() == "[]"


def tables() -> dict[str, str]:
    """The documentation's tables as the code would write them."""
    rows = [f"| `{name}` | {text} |" for name, text in settings.ENVIRONMENT.items()]
    made = {"environment": "\n".join(["| variable | meaning |", "|---|---|", *rows]) + "\n"}
    for section, model in SECTIONS.items():
        rows = [
            f"| `{name}` | {default(model, name)} | {described(field)} |" for name, field in model.model_fields.items()
        ]
        made[section] = "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows]) + "\n"
    return made


def described(field: FieldInfo) -> str | None:
    """A table of its own is described below, by what it says of itself."""
    inner = field.annotation
    if field.description is None and isinstance(inner, type) and issubclass(inner, BaseModel):
        return (inner.__doc__ or "").splitlines()[0]
    return field.description


def default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    if field.default is None or isinstance(field.default, BaseModel):
        return "–"
    if field.default_factory is not None:
        return f"`{field.get_default(call_default_factory=True)}`"
    value = (
        {True: "true", False: "false"}.get(field.default, field.default)
        if isinstance(field.default, bool)
        else field.default
    )
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


@pytest.mark.parametrize("section", ["environment", *SECTIONS])
def test_every_setting_is_documented_as_it_is(section: str) -> None:
    assert tables()[section] in DOCS.read_text(), f"write this into {DOCS.name}:\n{tables()[section]}"


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ('"tools:x" = "record"', "'tools:x' names no resource"),
        ('"tool:" = "record"', "'tool:' names no resource"),
        ('"tool:x" = "sometimes"', "policy"),
        (
            '"tool:x" = { policy = "recorded", answer = 1 }',
            "an answer goes with a tool or a function whose policy is `record`",
        ),
        ('"vector_store" = { answer = 1 }', "an answer goes with a tool or a function whose policy is `record`"),
    ],
)
def test_treatments_of_resources_are_checked(tmp_path: Path, resources: str, said: str) -> None:
    (tmp_path / "hindcast.toml").write_text(
        f'[[builds]]\nname = "b"\nagent = "a:A"\npaths = ["."]\ndriver = "flink"\n[builds.resources]\n{resources}\n'
    )
    with pytest.raises(settings.SettingsError, match=re.escape(said)):
        settings.load(tmp_path / "hindcast.toml", {})


def test_resources_and_hooks_fit_the_driver(tmp_path: Path) -> None:
    def load(more: str) -> settings.Build:
        (tmp_path / "hindcast.toml").write_text(f'[[builds]]\nname = "b"\nagent = "a:A"\npaths = ["."]\n{more}')
        return settings.load(tmp_path / "hindcast.toml", {}).builds[0]

    with pytest.raises(settings.SettingsError, match="by the driver 'flink' only"):
        load('[builds.resources]\n"tool" = "block"\n')
    with pytest.raises(settings.SettingsError, match="knows no registry"):
        load('driver = "flink"\nregistry = "a:T"\n')
    treated = load('driver = "flink"\n[builds.resources]\n"tool" = "block"\n"tool:x" = { answer = "y" }\n').resources
    assert (treated["tool"].policy, treated["tool"].has_answer) == ("block", False)
    assert (treated["tool:x"].policy, treated["tool:x"].answer) == ("record", "y")
