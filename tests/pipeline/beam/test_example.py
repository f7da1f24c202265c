"""The example pipeline: all of it but the Kafka transforms, which need Java."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="no Apache Beam; to run them: pip install 'hindcast-console[beam]'")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.testing.test_pipeline import TestPipeline  # noqa: E402
from apache_beam.testing.util import assert_that, equal_to  # noqa: E402

from app.pipeline.beam import AgentConfig  # noqa: E402
from app.pipeline.code import CodeReferences, load  # noqa: E402
from app.wire import identity  # noqa: E402
from app.wire.records import AgentEnvelope, StateSnapshot, ToolResult, serialize  # noqa: E402
from tests.pipeline import scripted  # noqa: E402
from tests.pipeline.scripted import KEY, NOW  # noqa: E402

ROOT = Path(__file__).parents[3]
FILE = ROOT / "examples" / "beam_pipeline.py"


# Options of Flink's job server, which Beam asks for them when it starts.
JOB_SERVER = ("checkpointing_interval", "state_backend")


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("beam_pipeline", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["beam_pipeline"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["beam_pipeline"]


def records(*values: bytes) -> Any:
    """What Kafka delivers; the record's own key does not count."""
    return beam.Create([(b"whatever", value) for value in values], reshuffle=False)


def test_envelopes_and_results_reach_the_agent(example: ModuleType) -> None:
    """A suspension that an effector's bare result resumes, an export, and two records that are nothing."""
    intent = identity.intent_id(KEY, 0, 0)
    start = serialize(scripted.start(("act", "pay", 9_000), ("suspend", None, [("out", "paid")])))
    done = ToolResult(intent_id=intent, entity_key=KEY, status=ToolResult.OK, completed_at_ms=NOW + 5)
    with TestPipeline() as pipeline:
        events = pipeline | "events" >> records(start, b"\xff\xff")
        results = pipeline | "results" >> records(b"\xff\xff")
        outputs = example.activate(events, results, scripted.agent, AgentConfig(scripted.provider))
        assert_that(outputs.intents | beam.Map(lambda one: one.intent_id), equal_to([intent]))
    read = example.envelope_of_result(serialize(done))
    assert (read.entity_key, read.event_time_ms, read.tool_result) == (KEY, NOW + 5, done)


def test_an_export_is_answered(example: ModuleType) -> None:
    with TestPipeline() as pipeline:
        events = pipeline | "events" >> records(serialize(scripted.export(at=7)))
        results = pipeline | "results" >> records()
        outputs = example.activate(events, results, scripted.agent, AgentConfig(scripted.provider))
        answer = StateSnapshot(state_schema_version=1, entity_key=KEY, snapshot_at_ms=7, request_id="inc-1")
        assert_that(outputs.snapshots, equal_to([answer]))


@pytest.mark.usefixtures("beam_agents")
def test_the_refund_desk_runs(example: ModuleType) -> None:
    """The agent that it names by default loads, and a ticket comes to an end."""
    ours = example.parser().parse_args(["--brokers", "b:1", "--topics", "refunds"])
    paths = (str(ROOT / "examples" / "refunds" / "v1"),)
    agent, config = load(CodeReferences(ours.agent, ours.provider, ours.registry, ours.decode, ours.config, paths))
    ticket = AgentEnvelope(entity_key=b"customer-1", event_time_ms=NOW, external_event=b"not a ticket")
    with TestPipeline() as pipeline:
        events = pipeline | "events" >> records(serialize(ticket))
        results = pipeline | "results" >> records()
        outputs = example.activate(events, results, agent, config)
        assert_that(outputs.dead_letter | beam.Map(lambda one: one.entity_key), equal_to([b"customer-1"]))


def test_every_stream_has_its_topic(example: ModuleType) -> None:
    config = example.with_sinks(AgentConfig(scripted.provider), "one:9092,two:9092", "desk")
    assert config.snapshots_to == "kafka://one:9092,two:9092/desk.snapshots"
    assert {config.traces_to, config.intents_to, config.errors_to} == {
        f"kafka://one:9092,two:9092/desk.{name}" for name in ("traces", "intents", "errors")
    }


def commands() -> list[list[str]]:
    """The commands of the module's own description."""
    text = re.sub(r"\\\n\s*", " ", FILE.read_text().split('"""')[1])
    return [shlex.split(line) for line in text.splitlines() if "examples/beam_pipeline.py" in line]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[command.index("--runner") + 1])
def test_its_commands_are_understood(example: ModuleType, command: list[str]) -> None:
    """No option of them is unknown to this program and to Beam."""
    assert command[:2] == ["python", "examples/beam_pipeline.py"]
    ours, beams = example.parser().parse_known_args(command[2:])
    assert ours.topics == "refunds"
    options = PipelineOptions(beams)
    assert options.get_all_options()["streaming"]
    known = {*options.get_all_options(), *JOB_SERVER}
    assert len(beams) > 4
    assert [argument for argument in beams if argument.startswith("--") and argument[2:] not in known] == []


def test_there_are_commands_for_flink_and_dataflow() -> None:
    runners = [command[command.index("--runner") + 1] for command in commands()]
    assert runners == ["FlinkRunner", "FlinkRunner", "DataflowRunner"]
