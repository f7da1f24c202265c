"""How the resources of an agent are treated while a recorded run of Flink Agents is re-run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from app.settings.base import Section

KINDS: Final = ("tool", "chat_model_connection", "embedding_model_connection", "vector_store", "function")


class Treatment(Section):
    """What becomes of calls to a resource, and what answers where the record does not."""

    policy: Literal["record", "recorded", "allow", "block"] = Field(
        "record",
        description="`record`: written down and answered from the record; `recorded`: answered from the record or the"
        " run ends; `allow`: executed, inside the sandbox; `block`: the run ends.",
    )
    answer: Any = Field(
        None, description="What answers a tool or a durable function under `record` where the record does not."
    )

    @property
    def has_answer(self) -> bool:
        return "answer" in self.model_fields_set


def _treatment(value: object) -> object:
    """A policy by itself stands for the table."""
    return {"policy": value} if isinstance(value, str) else value


def _known(resources: Mapping[str, Treatment]) -> Mapping[str, Treatment]:
    for key, treatment in resources.items():
        kind, colon, name = key.partition(":")
        if kind not in KINDS or (colon and not name):
            kinds = ", ".join(KINDS)
            raise ValueError(f"{key!r} names no resource: write a type, or `type:name`; types are {kinds}")
        if treatment.has_answer and (kind not in ("tool", "function") or treatment.policy != "record"):
            raise ValueError(f"{key!r}: an answer goes with a tool or a function whose policy is `record`")
    return resources


Resources = Annotated[
    dict[str, Annotated[Treatment, BeforeValidator(_treatment)]],
    AfterValidator(_known),
]
