"""The model as agent code sees it: a request, a response, and the errors a provider may raise.

The message of each provider error is fixed, because its repr reaches the dead letter.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class LlmRequest:
    """One model request; every field but the model id is any JSON value and part of the cache key."""

    model_id: str
    messages: Any
    tools_schema: Any
    sampling_params: Any


@dataclass(frozen=True)
class LlmResponse:
    """The provider's raw response bytes."""

    response: bytes

    @property
    def response_digest(self) -> bytes:
        """The sha256 of the response."""
        return hashlib.sha256(self.response).digest()


@runtime_checkable
class LLMClient(Protocol):
    """What `provider_factory` returns."""

    async def complete(self, request: LlmRequest) -> LlmResponse: ...


class ProviderError(Exception):
    """A model call failed in a way that another attempt may cure."""


class RateLimitError(ProviderError):
    """The provider asks to slow down; `retry_after_ms` is its wish in milliseconds, if it has one."""

    def __init__(self, retry_after_ms: int | None = None) -> None:
        super().__init__(f"rate limited (retry_after_ms={retry_after_ms})")
        self.retry_after_ms = retry_after_ms


class ServerError(ProviderError):
    """The provider answered with a server-side HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"server error (status={status})")
        self.status = status


class ProviderTimeout(ProviderError):
    """The provider did not answer in time."""

    def __init__(self) -> None:
        super().__init__("provider timeout")


class ProviderRequestError(Exception):
    """The provider refused the request itself: trying again cannot help."""

    def __init__(self, status: int) -> None:
        super().__init__(f"request error (status={status})")
        self.status = status
