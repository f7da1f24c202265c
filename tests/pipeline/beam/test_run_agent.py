"""RunAgent as a pipeline's author meets it: what it takes, what it gives, and where that may go."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="no Apache Beam; to run them: pip install 'hindcast-console[beam]'")

from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner  # noqa: E402
from apache_beam.testing.test_pipeline import TestPipeline  # noqa: E402
from apache_beam.testing.util import assert_that, equal_to  # noqa: E402
from apache_beam.transforms.window import TimestampedValue  # noqa: E402

from app.pipeline.beam import AgentConfig, DefaultSinkResolver, RunAgent  # noqa: E402
from app.pipeline.beam import sinks as sink_module  # noqa: E402
from app.pipeline.beam.otlp import CollectorRefused, PostSpans, body, span  # noqa: E402
from app.pipeline.keyed import Stream  # noqa: E402
from app.runtime.sinks import UnknownSinkSchemeError, parse_sink_uri  # noqa: E402
from app.wire import identity  # noqa: E402
from app.wire.records import (  # noqa: E402
    ActivationErrorRecord,
    AgentEnvelope,
    StateSnapshot,
    ToolIntent,
    TraceEvent,
    parse,
    serialize,
)
from tests.pipeline import scripted  # noqa: E402
from tests.pipeline.beam.running import note, noting, run  # noqa: E402
from tests.pipeline.driver import Driver  # noqa: E402
from tests.pipeline.recorded import Step  # noqa: E402
from tests.pipeline.scripted import KEY, NOW  # noqa: E402

ROOT = Path(__file__).parents[3]


def config(**options: Any) -> AgentConfig:
    return AgentConfig(scripted.provider, **options)


def elements(*envelopes: AgentEnvelope) -> list[Step]:
    taken = [Step("element", envelope) for envelope in envelopes]
    return [Step("advance_watermark_ms", at_ms=0), *taken, Step("advance_watermark_ms")]


class TestStreams:
    def test_nobody_has_to_read_the_snapshots(self) -> None:
        """With no `snapshots_to` they are there for whoever wants them, and otherwise fall away."""
        with TestPipeline() as pipeline:
            events = pipeline | beam.Create([(KEY, scripted.start(("out", "x"))), (KEY, scripted.export())])
            outputs = events | RunAgent(scripted.agent, config())
            assert_that(outputs.output, equal_to([b"x"]), label="output")
            assert_that(outputs.keyed_output, equal_to([(KEY, b"x")]), label="keyed")

    def test_types(self) -> None:
        pipeline = beam.Pipeline()
        events = pipeline | beam.Create([(KEY, scripted.start())])
        outputs = events | RunAgent(scripted.agent, config())
        assert outputs.output.element_type is bytes
        assert outputs.intents.element_type is ToolIntent
        assert outputs.traces.element_type is TraceEvent
        assert outputs.errors.element_type is AgentEnvelope
        assert outputs.snapshots.element_type is StateSnapshot
        assert outputs.dead_letter.element_type is ActivationErrorRecord

    def test_dead_letters_without_their_envelope(self) -> None:
        with TestPipeline() as pipeline:
            events = pipeline | beam.Create([(KEY, scripted.start(("fail", "no")))])
            outputs = events | RunAgent(scripted.agent, config())
            detail = "ValueError('no') failed_at_step=0 after=ACTIVATION_START"
            record = ActivationErrorRecord(entity_key=KEY, reason="activation_error", detail=detail, event_time_ms=NOW)
            assert_that(outputs.dead_letter, equal_to([record]))

    def test_the_keys_of_the_collection_count(self) -> None:
        envelope = scripted.start(("act", "pay"))
        with TestPipeline() as pipeline:
            events = pipeline | beam.Create([(b"other", envelope)])
            outputs = events | RunAgent(scripted.agent, config())
            assert_that(outputs.intents | beam.Map(lambda intent: intent.entity_key), equal_to([b"other"]))

    def test_only_the_global_window(self) -> None:
        pipeline = beam.Pipeline()
        events = pipeline | beam.Create([(KEY, scripted.start())]) | beam.WindowInto(beam.window.FixedWindows(60))
        with pytest.raises(ValueError, match=r"apply beam\.WindowInto"):
            events | RunAgent(scripted.agent, config())


def test_a_time_to_live_beyond_beams_times() -> None:
    """The wipe is set to the end of Beam's time instead of being refused by the runner."""
    waiting = scripted.start(("approve",), ("suspend",), at=NOW)
    sent = run(scripted.agent, config(ttl_ms=2**62), elements(waiting))
    (value,) = sent[Stream.ERRORS]
    record = parse(ActivationErrorRecord, parse(AgentEnvelope, value).external_event)
    assert record.reason == "ttl_wiped_suspension"


def test_on_the_sdk_harness() -> None:
    """Flink and Dataflow run the step in Beam's portable worker, whose states and timers are another program's."""
    waits = scripted.start(("set", "a", "1"), ("approve",), ("suspend", None, [("append", "log", "x"), ("out", "on")]))
    taken = [
        waits,
        scripted.export(at=NOW + 1),
        scripted.approval(identity.intent_id(KEY, 0, 0), at=NOW + 2),
        scripted.start(("fail", "no"), at=NOW + 3),
        scripted.start(("act", "pay"), ("out", "x"), at=NOW + 4),
        scripted.export("inc-2", at=NOW + 5),
    ]
    bare = Driver(scripted.settings(decode=None))
    for step in elements(*taken):
        bare.take(step)
    bare.keys.close()
    with noting() as (number, sent):
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            stamped = [TimestampedValue((KEY, one), one.event_time_ms / 1000) for one in taken]
            note(number, pipeline | beam.Create(stamped, reshuffle=False) | RunAgent(scripted.agent, config()))
        assert sent == bare.sent()


def test_a_worker_unpickles_agent_code(tmp_path: Path) -> None:
    """A process that has never heard of `beam_agents` gets the step by its bytes alone, tools included."""
    make = (
        "import sys; from app.runtime import standin; standin.install()\n"
        "from tests.pipeline.beam import agent_file\n"
        "from app.pipeline.beam import AgentConfig\n"
        "from app.pipeline.beam.dofn import KeyedDoFn\n"
        "from apache_beam.internal import pickler\n"
        "config = AgentConfig(agent_file.make_provider, tool_registry=agent_file.TOOLS)\n"
        "open(sys.argv[1], 'wb').write(pickler.dumps(KeyedDoFn(agent_file.agent, config)))\n"
    )
    use = (
        "import sys; from apache_beam.internal import pickler\n"
        "step = pickler.loads(open(sys.argv[1], 'rb').read()); step.setup()\n"
        "from app.pipeline import keyed; from app.wire.records import AgentEnvelope\n"
        "turn = keyed.process(b'k', keyed.EMPTY, AgentEnvelope(external_event=b'hi'), step._settings, wall_ms=0)\n"
        "print(step._loop.run(turn).emissions[0].value); step.teardown()\n"
    )
    for code in (make, use):
        command = [sys.executable, "-c", code, str(tmp_path / "step")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "b'HIHI'\n"


def test_a_pipeline_that_imports_beam_agents() -> None:
    """The peer's names, in a process of their own: they mean the transform of this package."""
    code = (
        "from app.pipeline import beam; beam.install(); beam.install()\n"
        "from beam_agents import RunAgent, RunAgentOutputs, AgentConfig\n"
        "from beam_agents.core.transform import DefaultSinkResolver, RunAgent as same\n"
        "assert RunAgent is same is beam.RunAgent and RunAgentOutputs is beam.RunAgentOutputs\n"
        "assert DefaultSinkResolver is beam.DefaultSinkResolver and AgentConfig is beam.AgentConfig\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class TestSinks:
    @pytest.mark.parametrize("uri", ["bigquery://project/dataset/table", "otlp://collector:4318"])
    def test_snapshots_go_to_no_table_and_no_collector(self, uri: str) -> None:
        with pytest.raises(ValueError, match=r"snapshots_to=.* cannot take this stream; use kafka or pubsub"):
            config(snapshots_to=uri)

    @pytest.mark.parametrize("name", ["intents_to", "errors_to"])
    @pytest.mark.parametrize("uri", ["bigquery://project/dataset/table", "otlp://collector"])
    def test_nor_do_intents_and_errors(self, name: str, uri: str) -> None:
        with pytest.raises(ValueError, match=f"{name}=.* takes trace events only; use kafka or pubsub"):
            RunAgent(scripted.agent, config(**{name: uri}))

    def test_an_unknown_scheme(self) -> None:
        with pytest.raises(UnknownSinkSchemeError, match="sink='mqtt://host' has scheme 'mqtt'"):
            DefaultSinkResolver()("mqtt://host")

    def test_what_the_addresses_mean(self) -> None:
        resolve = DefaultSinkResolver()
        kafka = resolve("kafka://one:9092,two:9093/desk.snapshots")
        assert (kafka.topic, kafka.producer_config) == ("desk.snapshots", {"bootstrap.servers": "one:9092,two:9093"})
        assert resolve("pubsub://project/desk").topic == "projects/project/topics/desk"
        assert resolve("bigquery://project/desk/traces").table == "project:desk.traces"
        assert resolve("otlp://collector").url == "http://collector:4318/v1/traces"
        assert resolve("otlp://collector:99").url == "http://collector:99/v1/traces"

    def test_a_resolver_of_the_pipelines_own(self) -> None:
        """It is handed the URI as it is, and its transform the records of the stream."""
        seen: list[str] = []

        class Check(beam.PTransform):  # type: ignore[misc,name-defined]
            def __init__(self, uri: str) -> None:
                super().__init__()
                self.uri = uri

            def expand(self, pcoll: Any) -> None:
                kinds = pcoll | beam.Map(lambda record: type(record).__name__)
                assert_that(kinds, equal_to([self.uri.partition("//")[2]]), label=self.uri)

        def resolver(uri: str) -> Any:
            seen.append(uri)
            return Check(uri)

        where = {
            "intents_to": "x://ToolIntent",
            "errors_to": "x://AgentEnvelope",
            "snapshots_to": "x://StateSnapshot",
        }
        with TestPipeline() as pipeline:
            one, two, three = scripted.start(("act", "pay")), scripted.start(("fail", "no")), scripted.export()
            events = pipeline | beam.Create([(KEY, one), (KEY, two), (KEY, three)])
            events | RunAgent(scripted.agent, config(**where, sink_resolver=resolver))
        assert sorted(seen) == sorted(where.values())

    def test_a_kafka_record(self) -> None:
        event = TraceEvent(entity_key=b"\x00\xff", seq=3, attributes={"b": "2", "a": "1"})
        assert sink_module.key_and_value(event) == (b"\x00\xff", serialize(event))

    def test_a_row(self) -> None:
        event = TraceEvent(
            trace_id=b"\x01" * 16,
            span_id=b"\x02" * 8,
            entity_key=b"card",
            seq=3,
            step_index=4,
            event_type=TraceEvent.LLM_CALL,
            attributes={"b": "2", "a": "1"},
            start_ms=1_700_000_000_123,
            end_ms=1_700_000_000_123,
        )
        row = sink_module.trace_row(event)
        assert row == {
            "trace_id": "01" * 16,
            "span_id": "02" * 8,
            "parent_span_id": "",
            "entity_key": "63617264",
            "seq": 3,
            "step_index": 4,
            "event_type": "LLM_CALL",
            "event_time": "2023-11-14T22:13:20.123+00:00",
            "attributes": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}],
        }
        assert list(row) == [column["name"] for column in sink_module.TRACE_SCHEMA]


class Collector(HTTPServer):
    """A collector that keeps what it is sent, or refuses it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.taken: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/json"
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status == 200:
            self.server.taken += sent["resourceSpans"][0]["scopeSpans"][0]["spans"]
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestOtlp:
    def test_spans_arrive(self, collector: Collector) -> None:
        uri = f"otlp://127.0.0.1:{collector.server_port}"
        with TestPipeline() as pipeline:
            script = (("ask", "hi"), ("act", "pay"), ("fail", "no"))
            events = pipeline | beam.Create([(KEY, scripted.start(("ask", "hi"))), (KEY, scripted.start(*script))])
            events | RunAgent(scripted.agent, config(traces_to=uri))
        names = [one["name"] for one in collector.taken]
        assert sorted(names) == ["ACTIVATION_END", "ACTIVATION_START", "ERROR", "LLM_CALL"]
        failed = next(one for one in collector.taken if one["name"] == "ERROR")
        assert failed["status"] == {"code": 2, "message": "activation_error"}
        assert {"key": "beam_agents.entity_key", "value": {"stringValue": KEY.hex()}} in failed["attributes"]
        assert failed["startTimeUnixNano"] == str(NOW * 1_000_000)
        assert len(failed["parentSpanId"]) == 16

    def test_many_go_in_several_requests(self, collector: Collector) -> None:
        post = PostSpans(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        post.start_bundle()
        for number in range(1201):
            post.process(TraceEvent(seq=number))
        post.finish_bundle()
        assert [next(a for a in one["attributes"] if a["key"] == "beam_agents.seq")["value"]["stringValue"]
                for one in collector.taken] == [str(number) for number in range(1201)]  # fmt: skip

    def test_a_refusal_fails_the_bundle(self, collector: Collector) -> None:
        collector.status = 503
        post = PostSpans(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        post.start_bundle()
        post.process(TraceEvent())
        with pytest.raises(CollectorRefused, match="did not take 1 spans: HTTP Error 503"):
            post.finish_bundle()

    def test_a_request_is_plain_json(self) -> None:
        event = TraceEvent(attributes={"b": "2", "a": "1"}, event_type=TraceEvent.TOOL_CALL)
        sent = json.loads(json.dumps(body([span(event)])))
        assert sent["resourceSpans"][0]["resource"]["attributes"][0]["key"] == "service.name"
        one = sent["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
        assert "parentSpanId" not in one
        assert [attribute["key"] for attribute in one["attributes"]][:2] == ["a", "b"]


def test_every_sink_scheme_has_a_sink() -> None:
    for uri in ("kafka://h:1/t", "pubsub://p/t", "bigquery://p/d/t", "otlp://h"):
        assert parse_sink_uri(uri, field="traces_to").scheme in sink_module._SINKS
