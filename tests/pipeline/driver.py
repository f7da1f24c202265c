"""A runner as small as one can be: elements, watermarks and processing time, in exactly the order of the steps."""

from collections import defaultdict
from collections.abc import Iterable

from app.pipeline.keyed import Emission, KeySettings, Stream, encode
from app.pipeline.keyspace import EVENT_TIME, PROCESSING_TIME, Keyspace, Turned
from tests.pipeline.recorded import PipelineRecording, Step

# What the flush timer is set from. It shows nowhere, it only has to lie before the steps that fire it.
WALL_MS = 1_750_000_000_000


class Driver:
    """A keyspace whose two clocks move only when told; `sent` is what went out, by stream."""

    def __init__(self, settings: KeySettings) -> None:
        self.keys = Keyspace(settings, wall=lambda: WALL_MS)
        self.watermark_ms = 0
        self.processing_ms = 0
        self.emissions: list[Emission] = []

    def take(self, step: Step) -> None:
        """Follow one step."""
        if step.envelope is not None:
            self._gather([self.keys.process(step.envelope.entity_key, step.envelope)])
            # An element behind the watermark may set a timer that is due already.
            self._gather(self.keys.fire_due(EVENT_TIME, self.watermark_ms))
        elif step.kind == "advance_watermark_ms":
            self.watermark_ms = 2**63 - 1 if step.at_ms is None else step.at_ms
            self._gather(self.keys.fire_due(EVENT_TIME, self.watermark_ms))
        else:
            assert step.kind == "advance_processing_time_ms"
            assert step.at_ms is not None
            self.processing_ms += step.at_ms
            self._gather(self.keys.fire_due(PROCESSING_TIME, self.processing_ms))

    def sent(self) -> dict[Stream, list[bytes]]:
        """The records of each stream."""
        streams: dict[Stream, list[bytes]] = defaultdict(list)
        for emission in self.emissions:
            streams[emission.stream].append(encode(emission))
        return streams

    def _gather(self, turns: Iterable[Turned]) -> None:
        for turned in turns:
            self.emissions.extend(turned.step.emissions)


def run(recording: PipelineRecording) -> dict[Stream, list[bytes]]:
    """Run a recording's steps; the provider and the store are set up anew for every element, as its runner did."""
    module = recording.load_agent()
    agent, config = recording.agent(module), recording.config(module)
    driver = Driver(KeySettings.open(agent, config))
    try:
        for step in recording.steps():
            driver.keys.settings = KeySettings.open(agent, config)
            driver.take(step)
    finally:
        driver.keys.close()
    return driver.sent()
