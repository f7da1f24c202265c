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

from app.pipeline.beam.sinks import DefaultSinkResolver
from app.pipeline.beam.transform import RunAgent, RunAgentOutputs
from app.runtime.config import AgentConfig

__all__ = ["AgentConfig", "DefaultSinkResolver", "RunAgent", "RunAgentOutputs"]
