"""The pipeline on Apache Beam, for production: Flink, Dataflow, or the direct runner.

Needs the extra `hindcast-console[beam]`. Nothing else of this package imports Beam, so only a process that hosts a
pipeline pays for it.
"""

try:
    import apache_beam  # noqa: F401
except ImportError as error:
    raise ImportError(
        "app.pipeline.beam needs Apache Beam, which is not installed here: pip install 'hindcast-console[beam]'"
    ) from error

import importlib

from app.pipeline.beam.sinks import DefaultSinkResolver
from app.pipeline.beam.transform import RunAgent, RunAgentOutputs
from app.runtime import standin
from app.runtime.config import AgentConfig

__all__ = ["AgentConfig", "DefaultSinkResolver", "RunAgent", "RunAgentOutputs", "install"]


def install() -> None:
    """Serve `beam_agents` from this runtime, with the RunAgent of this package in it.

    For a pipeline whose own code says `from beam_agents import RunAgent`; to be called before it is imported.
    Raises RuntimeError when another `beam_agents` was imported before.
    """
    standin.install()
    served = {"RunAgent": RunAgent, "RunAgentOutputs": RunAgentOutputs, "DefaultSinkResolver": DefaultSinkResolver}
    for name in (standin.ROOT, f"{standin.ROOT}.core.transform"):
        module = importlib.import_module(name)
        for attribute in served.keys() & set(module.__all__):
            setattr(module, attribute, served[attribute])
