"""What the compose file and its neighbours say must hold for the code they start. No container is started here."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from app import cli, resource
from app.demo import tickets, traffic
from app.kafka.check import check
from app.pipeline import __main__ as pipeline
from app.settings import ENVIRONMENT, Settings, load
from scripts.hatch_build import RESOURCES
from scripts.kafka import KafkaMissing, held_ports, java_command
from tests.fixtures.postgres import Database
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
OURS = {name: told for name, told in SERVICES.items() if told["image"] == "hindcast-console"}
# Those that read hindcast.toml; the rest of ours is the desk.
CONSOLE = {name for name, told in OURS.items() if "entrypoint" not in told}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
MODULES = {"app.pipeline": pipeline._parser, "app.demo.tickets": tickets._parser}


def environment(name: str) -> dict[str, str]:
    found: dict[str, str] = SERVICES[name].get("environment", {})
    return found


def mounted(name: str, place: Path) -> Path:
    """Lay out what a service has mounted below /etc/hindcast, in a folder; returns that folder."""
    place.mkdir()
    for volume in SERVICES[name].get("volumes", []):
        source, target, *_ = volume.split(":")
        if target.startswith("/etc/hindcast/"):
            inside = place / Path(target).relative_to("/etc/hindcast")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(ROOT / source)
    return place


def configuration(name: str, place: Path) -> Settings:
    """Read the configuration as a service finds it."""
    return load(mounted(name, place) / "hindcast.toml", environment={})


def test_every_part_is_there() -> None:
    assert {"postgres", "migrate", "console", "worker", "collector", "kafka", "pipeline"} <= set(SERVICES)
    assert {"migrate", "console", "worker", "collector"} == CONSOLE


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_one_that_the_image_has(name: str) -> None:
    service = OURS[name]
    if "entrypoint" in service:
        python, m, module = service["entrypoint"]
        assert (python, m) == ("python", "-m")
        MODULES[module]().parse_args(service["command"])
        return
    assert 'ENTRYPOINT ["hindcast"]' in DOCKERFILE
    command = service["command"]
    cli._parser(command[0]).parse_args(command)


def test_every_variable_is_one_that_hindcast_reads() -> None:
    """A variable that nobody reads would look like a setting that works."""
    assert {variable for name in OURS for variable in environment(name)} <= set(ENVIRONMENT)
    asked = set(re.findall(r"\$\{(\w+)", TEXT))
    named_at_the_head = set(re.findall(r"HINDCAST_\w+", TEXT.partition("services:")[0]))
    assert asked <= named_at_the_head


def test_only_the_migration_is_the_owner() -> None:
    """What runs for long works as a role that owns nothing."""
    assert {name for name in SERVICES if "HINDCAST_DATABASE_OWNER_URL" in environment(name)} == {"migrate"}


def test_agent_code_is_on_no_network_with_a_way_out() -> None:
    """The worker reaches the database alone; of Hindcast, only the collector reaches a broker."""
    networks = COMPOSE["networks"]
    assert SERVICES["worker"]["networks"] == ["database"]
    assert SERVICES["pipeline"]["networks"] == ["broker"]
    assert networks["database"]["internal"] is networks["broker"]["internal"] is True
    assert {name for name in CONSOLE if "broker" in SERVICES[name]["networks"]} == {"collector"}
    assert not environment("pipeline")


@pytest.mark.parametrize("name", SERVICES)
def test_confined(name: str) -> None:
    """No process is root, keeps a capability, or can write where it need not."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user") in ("postgres", "appuser") or (name in OURS and "\nUSER hindcast\n" in DOCKERFILE)
    # The desk's own two processes end when they cannot go on, and are started again.
    assert "healthcheck" in service or service["restart"] == "no" or name in ("pipeline", "tickets")


def test_mounted_files_are_there() -> None:
    """A missing file would be mounted as an empty folder."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_who_waits_for_whom_is_there_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for other, told in service.get("depends_on", {}).items():
            healthy = told["condition"] == "service_healthy"
            assert "healthcheck" in SERVICES[other] if healthy else SERVICES[other]["restart"] == "no"


def test_the_image_holds_what_its_processes_look_for() -> None:
    """What .dockerignore leaves out is missing from the wheel that the image is built from."""
    let_in = set(re.findall(r"(?m)^!(\w+)/\*\*$", (ROOT / ".dockerignore").read_text()))
    assert {"app", *RESOURCES} <= let_in


@pytest.mark.parametrize("name", sorted(CONSOLE))
def test_configuration_loads(name: str, tmp_path: Path) -> None:
    """What is mounted is a valid configuration, and the port is the one that is published."""
    settings = configuration(name, tmp_path / "etc")
    assert settings.console.host == "0.0.0.0"
    assert SERVICES["console"]["ports"] == [f"127.0.0.1:{settings.console.port}:{settings.console.port}"]
    assert {build.name for build in settings.builds} == {"refunds-v1", "refunds-v2"}


def test_the_pipeline_that_is_followed_is_the_one_that_runs(tmp_path: Path) -> None:
    (followed,) = configuration("collector", tmp_path / "etc").pipelines
    options = pipeline._parser().parse_args(SERVICES["pipeline"]["command"])
    assert followed.brokers == (options.brokers,)
    topics = {one.topic for one in followed.topics.sources()} | set(followed.topics.followed().values())
    assert topics == set(traffic.TOPICS)
    assert {name.partition(".")[0] for name in traffic.TOPICS} == {options.topics}
    assert environment("kafka")["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{options.brokers}"
    build = mounted("pipeline", tmp_path / "desk")
    assert [build / Path(path).relative_to("/etc/hindcast") for path in options.path] == [
        build / "examples" / "refunds" / "v1"
    ]
    assert (build / "examples" / "refunds" / "v1" / "refunds" / "agent.py").is_file()
    assert (resource("examples") / "refunds" / "v1").is_dir()


@contextlib.contextmanager
def running(command: list[str], folder: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service as a process here, for the length of a block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HINDCAST_", "KAFKA_"))}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**kept, "PYTHONPATH": str(ROOT), **more}, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Here:
    """Where the containers' names and folders are on this machine, for one test, on ports that are held for it."""

    def __init__(self, folder: Path, port: int, controller: int) -> None:
        self.folder, self.etc = folder, mounted("collector", folder / "etc")
        self._places = {
            "kafka:9092": f"127.0.0.1:{port}", "//:9092": f"//127.0.0.1:{port}",
            "localhost:9093": f"127.0.0.1:{controller}",
            "/etc/hindcast": str(self.etc), "/var/lib": str(folder),
        }  # fmt: skip

    def say(self, text: str) -> str:
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text

    def command(self, name: str) -> list[str]:
        service = SERVICES[name]
        entry = service.get("entrypoint", ["python", "-m", "app.cli"])
        return [sys.executable, *entry[1:], *map(self.say, service["command"])]

    def kafka(self) -> list[str]:
        """Configure the broker as its image does, from its variables; returns the command that starts it."""
        java = java_command()
        given, made = self.folder / "given", self.folder / "made"
        for place in (given, made, self.folder / "none", self.folder / "kafka" / "data"):
            place.mkdir(parents=True)
        for file in ("server.properties", "log4j2.yaml", "tools-log4j2.yaml"):
            (given / file).touch()
        setup = [*java, "kafka.docker.KafkaDockerWrapper", "setup", "--default-configs-dir", str(given)]
        setup += ["--mounted-configs-dir", str(self.folder / "none"), "--final-configs-dir", str(made)]
        told = {name: self.say(value) for name, value in environment("kafka").items()}
        subprocess.run(setup, env={**os.environ, **told}, check=True, capture_output=True)
        return [*java, "kafka.Kafka", str(made / "server.properties")]


@pytest.mark.timeout(1200)  # perhaps it is the first to need the jars
def test_the_services_work_together(database: Database, tmp_path: Path) -> None:
    """Every service but the console and the worker, as processes instead of containers, on a real Apache Kafka."""
    with held_ports(0, 0) as ports:
        here = Here(tmp_path, *ports)
        try:
            kafka = here.kafka()
        except KafkaMissing as error:
            pytest.skip(f"no real Apache Kafka here: {error}")
        work_together(here, kafka, database)


def work_together(here: Here, kafka: list[str], database: Database) -> None:
    tmp_path = here.folder
    (tmp_path / "hindcast").mkdir()
    config = tmp_path / "hindcast.toml"
    config.write_text(
        here.say((here.etc / "hindcast.toml").read_text()).replace('"examples/', f'"{here.etc}/examples/')
    )
    with running(kafka, tmp_path):
        topics = subprocess.run(here.command("topics"), cwd=ROOT, check=False)
        assert topics.returncode == 0, (tmp_path / "log").read_text()[-3000:]
        with contextlib.ExitStack() as stack:
            for name in ("pipeline", "tickets"):
                stack.enter_context(running(here.command(name), tmp_path))
            collect = [*here.command("collector"), "--config", str(config)]
            stack.enter_context(running(collect, tmp_path, HINDCAST_DATABASE_URL=database.app))
            await_attempts(database, len(traffic.STORY), tmp_path / "log")
            with psycopg.connect(database.app, autocommit=True) as connection:
                until(lambda: connection.execute(health("collector")).fetchone(), "the collector's sign of life")
            (report,) = [check(one, timeout_s=PATIENCE_S) for one in load(config, environment={}).pipelines]
            assert report.ok
        # The desk is told its story once, however often it is opened.
        with running(here.command("tickets"), tmp_path) as again:
            time.sleep(1)
            assert again.poll() is None
    with psycopg.connect(database.app) as connection:
        rows = connection.execute("SELECT count(*), count(DISTINCT (entity_key, seq)) FROM attempts").fetchone()
    assert rows is not None
    assert rows[0] == rows[1]


def health(name: str) -> str:
    """The question that a service's health check asks the database."""
    (found,) = re.findall(r'alive = "(.*)"', SERVICES[name]["healthcheck"]["test"][-1])
    return str(found)


@pytest.mark.parametrize("name", ["worker", "collector"])
def test_health_checks_ask_what_the_application_may(name: str, database: Database) -> None:
    with psycopg.connect(database.app) as connection:
        assert connection.execute(health(name)).fetchone() is None


def await_attempts(database: Database, count: int, log: Path) -> None:
    with psycopg.connect(database.app, autocommit=True) as connection:

        def enough() -> bool:
            found = connection.execute("SELECT count(DISTINCT entity_key) FROM attempts").fetchone()
            return bool(found) and found[0] >= count

        until(enough, lambda: log.read_text()[-3000:], pause_s=0.2)
