"""`collect`, `check` and `export` from the outside: one line that says what is wrong, and one bundle that replays."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.broker import EmbeddedBroker
from app.incidents import bundle
from app.incidents.service import Store
from tests.commands.test_services import hindcast
from tests.fixtures.postgres import Database
from tests.jobs.live import TOPICS, World
from tests.pipeline import scripted
from tests.pipeline.topics import make
from tests.waiting import PATIENCE_S

NOW = time.time_ns() // 1_000_000
STREAMS = ("events", "traces", "snapshots", "intents", "outputs", "errors")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


def configure(folder: Path, address: str, **topics: str) -> Path:
    told = {stream: getattr(TOPICS, stream) for stream in STREAMS} | topics
    lines = "\n".join(f"{stream} = {json.dumps(topic)}" for stream, topic in told.items())
    path = folder / "hindcast.toml"
    path.write_text(
        f'[[pipelines]]\nname = "desk"\nbrokers = ["{address}"]\npartitioner = "murmur2"\n[pipelines.topics]\n{lines}\n'
    )
    return path


@pytest.mark.parametrize("command", ["collect", "check"])
def test_without_a_pipeline_it_says_how_to_name_one(tmp_path: Path, command: str, database: Database) -> None:
    done = hindcast(tmp_path, command, HINDCAST_DATABASE_URL=database.app)
    remedy = "add [[pipelines]] to hindcast.toml (docs/configuration.md)"
    assert (done.returncode, done.stderr) == (2, f"hindcast {command}: no pipelines are configured: {remedy}\n")


@pytest.mark.parametrize("command", ["collect", "check"])
def test_a_pipeline_that_is_not_configured_is_named(tmp_path: Path, command: str, database: Database) -> None:
    configure(tmp_path, "localhost:1")
    done = hindcast(tmp_path, command, "--pipelines", "x", HINDCAST_DATABASE_URL=database.app)
    assert (done.returncode, done.stderr) == (
        2, f"hindcast {command}: --pipelines names 'x'; configured pipelines: desk\n")  # fmt: skip


def test_collect_needs_a_database_that_is_migrated(tmp_path: Path, bare_database: Database) -> None:
    configure(tmp_path, "localhost:1")
    done = hindcast(tmp_path, "collect", HINDCAST_DATABASE_URL=bare_database.app)
    assert done.returncode == 2
    assert "run `hindcast migrate`" in done.stderr


def test_check_says_what_is_there_and_what_is_missing(tmp_path: Path, broker: EmbeddedBroker) -> None:
    make(broker, TOPICS)
    configure(tmp_path, broker.address)
    sound = hindcast(tmp_path, "check")
    assert sound.returncode == 0, sound.stdout
    assert sound.stdout.startswith("pipeline desk\n  ok ")
    configure(tmp_path, broker.address, snapshots="desk.snapshotz")
    wrong = hindcast(tmp_path, "check")
    assert wrong.returncode == 1
    assert "desk.snapshotz" in wrong.stdout


def test_check_of_a_broker_that_is_not_there(tmp_path: Path) -> None:
    configure(tmp_path, "127.0.0.1:1")
    done = hindcast(tmp_path, "check")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stdout
    assert "problem" in done.stdout


async def export(tmp_path: Path, database: Database, *words: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(
        hindcast, tmp_path, "export", "--pipeline", "desk", *words, HINDCAST_DATABASE_URL=database.app
    )
    return done.returncode, done.stdout, done.stderr


async def test_export_brings_one_bundle_that_has_everything(
    tmp_path: Path, broker: EmbeddedBroker, database: Database, store: Store
) -> None:
    world = World.make(broker, database, store, tmp_path)
    configure(tmp_path, broker.address)
    envelope = scripted.start(("ask", "hi"), ("act", "refund"), ("out", "done"), at=NOW)
    with world.host():
        async with world.collecting():
            world.send(envelope)
            await world.activations(1)
            code, told, error = await export(tmp_path, database, "--key", "card-4242", "--out", "one.zip")
            again = await export(tmp_path, database, "--key-hex", b"card-4242".hex(), "--seq", "0", "--out", "two.zip")
            nobody = await export(
                tmp_path, database, "--key", "nobody", "--out", "none.zip", "--timeout", str(PATIENCE_S)
            )
    assert (code, error) == (0, ""), told
    assert told.splitlines()[0].startswith("one.zip: ")
    made = bundle.read((tmp_path / "one.zip").read_bytes())
    assert {str(file.role) for file in made.files} >= {"snapshot", "traces", "event", "intents"}
    assert made.attempt is not None
    assert made.seq == 0
    assert again[0] == 0
    # A key that the pipeline never saw has an empty state and nothing to replay.
    assert nobody[0] == 3
    assert "missing: traces" in nobody[1]


async def test_export_without_a_collector_says_so(tmp_path: Path, database: Database) -> None:
    configure(tmp_path, "127.0.0.1:1")
    code, _, error = await export(tmp_path, database, "--key", "k", "--out", "x.zip")
    assert code == 2
    assert error.startswith("hindcast export: no collector follows the pipeline 'desk'; start `hindcast collect`")


async def test_export_refuses_what_makes_no_sense(tmp_path: Path, database: Database) -> None:
    configure(tmp_path, "127.0.0.1:1")
    for words, problem in (
        (("--key-hex", "zz", "--out", "x.zip"), "'zz' is not a key in hex"),
        (("--key", "k", "--out", "nowhere/x.zip"), "nowhere is not a folder"),
        (("--pipeline", "other", "--key", "k", "--out", "x.zip"), "names no pipeline 'other'; known pipelines: desk"),
    ):
        code, _, error = await export(tmp_path, database, *words)
        assert (code, problem in error) == (2, True), error
        assert len(error.splitlines()) == 1


def test_a_worker_keeps_agent_code_from_the_brokers_secrets(tmp_path: Path) -> None:
    from app.commands.worker import _replayer
    from app.settings import load

    path = configure(tmp_path, "localhost:1")
    security = (
        '[pipelines.security]\nprotocol = "sasl_ssl"\nmechanism = "PLAIN"\nusername = { env = "U" }\n'
        'password = { file = "secrets/kafka" }\n'
    )
    path.write_text(path.read_text().replace("[pipelines.topics]", security + "[pipelines.topics]"))
    denied = _replayer(load(path, {})).confinement.denied
    assert {str(path), str(tmp_path / "secrets" / "kafka")} <= set(denied)
