"""Record the desk of a folder into it: `PYTHONPATH=FOLDER python record.py FOLDER`, with what `test_adapters.py` names.

A real pipeline on Beam's DirectRunner, with a model that answers from a script: a start that suspends, an export, the
refund's result, another export.
"""

import json
import sys
from pathlib import Path

import apache_beam as beam
import desk
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from beam_agents import AgentConfig, RunAgent
from beam_agents._protos import AgentEnvelope
from beam_agents.core.agent import intent_id_for
from beam_agents.model import openai_compat_decode
from beam_agents.model.client import LlmResponse

KEY, START = b"customer-42", 1_800_000_000_000
FOLDER = Path(sys.argv.pop(1))
CALLS = [("order_lookup", {"order": "7"}), ("refund", {"order": "7", "amount": "48.00"})]


def completion(asked):
    """What the model says to the nth request."""
    message = {"role": "assistant", "content": "Refunded." if asked == len(CALLS) else ""}
    if asked < len(CALLS):
        name, arguments = CALLS[asked]
        function = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": f"call-{asked}", "type": "function", "function": function}]
    choice = {"index": 0, "finish_reason": "tool_calls" if asked < len(CALLS) else "stop", "message": message}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "desk-1"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


class Model:
    asked = 0

    async def complete(self, request):
        Model.asked += 1
        return LlmResponse(completion(Model.asked - 1))


def envelope(after, **payload):
    return AgentEnvelope(entity_key=KEY, event_time_ms=START + after, **payload)


def export(after):
    return envelope(after, export_request=AgentEnvelope.StateExportRequest(request_id=f"at {after}"))


def keep(name):
    def write(element):
        value = element if isinstance(element, bytes) else element.SerializeToString(deterministic=True)
        size, head = len(value), b""
        while size > 127:
            head += bytes([size & 127 | 128])
            size >>= 7
        with (FOLDER / f"{name}.bin").open("ab") as file:
            file.write(head + bytes([size]) + value)

    return write


asked = envelope(0, external_event=b"Refund order 7, please.")
paid = envelope(4000)
paid.tool_result.intent_id = intent_id_for(KEY, seq=0, step_index=2)
paid.tool_result.status = 1
paid.tool_result.payload = b"paid"
for name, one in (("event", asked), ("result", paid)):
    (FOLDER / f"{name}.pb").write_bytes(one.SerializeToString(deterministic=True))

stream = TestStream().advance_watermark_to(START / 1000)
for one in (asked, export(2000), paid, export(6000)):
    stream = stream.add_elements([TimestampedValue(one, one.event_time_ms / 1000)])
    stream = stream.advance_watermark_to((one.event_time_ms + 1000) / 1000)

options = PipelineOptions()
options.view_as(StandardOptions).streaming = True
with beam.Pipeline(options=options) as pipeline:
    keyed = (
        pipeline
        | stream.advance_watermark_to_infinity()
        | beam.Map(lambda one: (one.entity_key, one)).with_output_types(tuple[bytes, AgentEnvelope])
    )
    config = AgentConfig(Model, decode=openai_compat_decode, tool_registry=desk.TOOLS)
    found = keyed | RunAgent(desk.AGENT, config=config)
    for stream_of, name in (
        (found.output, "outputs"), (found.intents, "intents"), (found.traces, "traces"), (found.snapshots, "snapshots"),
    ):  # fmt: skip
        stream_of | f"Keep {name}" >> beam.Map(keep(name))
