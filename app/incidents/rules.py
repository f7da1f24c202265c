"""The `[[freeze]]` tables of the configuration. Loads nothing else, so that reading settings stays cheap."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class FreezeRule(BaseModel):
    """One rule that exports a key by itself. All conditions that are given must hold, and there must be one."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(description="What people know it by; unique.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    pipelines: tuple[str, ...] = Field((), description="Names of the pipelines that it looks at; without any, all.")
    reason: str | None = Field(None, description="Reason of the failure, such as `activation_error`.", min_length=1)
    tool: str | None = Field(None, description="Tool of which an intent was emitted.", min_length=1)
    status: str | None = Field(
        None, description="How the attempt ended: `completed`, `suspended`, `failed`, `timed out`, `orphan`, …"
    )
    key: str | None = Field(
        None, description="Pattern that the key fits, `*` and `?` as in file names; a key that is no text is in hex."
    )
    per_key_s: float = Field(
        3600.0, description="Seconds for which a key is left alone after it was frozen.", ge=0, le=31_536_000
    )
    per_hour: int = Field(10, description="Keys of one pipeline that it freezes in an hour.", ge=1, le=10_000)

    @model_validator(mode="after")
    def _says_when(self) -> Self:
        if self.reason is None and self.tool is None and self.status is None and self.key is None:
            raise ValueError("a rule needs a condition: reason, tool, status or key")
        return self
