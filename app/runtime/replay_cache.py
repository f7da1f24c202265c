"""Model responses of one key, kept so that a retried or replayed activation gets the same answers.

Bounded three ways: entries, age since creation, and serialized size. The newest answer always
stays, if need be as a digest alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from app.wire import identity, migration
from app.wire.records import LlmCacheBlob

if TYPE_CHECKING:
    from app.runtime.model.client import LlmRequest
    from app.runtime.probe import Probe

MAX_ENTRIES: Final = 64
TTL_MS: Final = 21_600_000
BLOB_CAP_BYTES: Final = 102_400

# Entries stay protobuf messages: loading shares them, committing copies them in C, and their size is exact.
ReplayEntry = LlmCacheBlob.LlmCacheEntry


def request_text(request: LlmRequest, *, entity_key: bytes, seq: int) -> str:
    """The canonical JSON text of a request; raises TypeError or ValueError for what JSON cannot hold."""
    return identity.request_material(
        entity_key=entity_key,
        seq=seq,
        model=request.model_id,
        messages=request.messages,
        tools=request.tools_schema,
        params=request.sampling_params,
    )


def compute_cache_key(request: LlmRequest, *, entity_key: bytes, seq: int) -> str:
    """The key under which one (key, seq) caches the answer to a request."""
    return identity.cache_key(request_text(request, entity_key=entity_key, seq=seq))


class ReplayCache:
    """The cache of one activation, on the activation's clock `now_ms`; the blob it loads is left as it is."""

    def __init__(self, blob: LlmCacheBlob | None = None, *, now_ms: int, probe: Probe | None = None) -> None:
        self.now_ms = now_ms
        self.probe = probe
        # Least recently used first.
        self._entries: OrderedDict[str, ReplayEntry] = OrderedDict()
        for entry in () if blob is None else blob.entries:
            key = entry.cache_key
            self._entries[key] = entry
            self._entries.move_to_end(key)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> ReplayEntry | None:
        """The live entry of a key, now the most recently used; an expired one is deleted and is None."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        if self._expired(entry):
            if self.probe is not None:
                self.probe.cache_unusable(key, "expired")
            return None
        if entry.digest_only and self.probe is not None:
            self.probe.cache_unusable(key, "digest_only")
        if entry.last_access_ms != self.now_ms:
            touched = ReplayEntry()
            touched.CopyFrom(entry)
            touched.last_access_ms = self.now_ms
            entry = touched
        self._entries[key] = entry
        return entry

    def put(self, key: str, response: bytes) -> None:
        """Cache a response under a key, evicting what the limits no longer allow."""
        entries = self._entries
        for old in [known for known, entry in entries.items() if self._expired(entry)]:
            del entries[old]
        entry = ReplayEntry(
            cache_key=key,
            response=response,
            response_digest=hashlib.sha256(response).digest(),
            created_at_ms=self.now_ms,
            last_access_ms=self.now_ms,
        )
        if _header_size(len(response)) + _framed_size(entry) > BLOB_CAP_BYTES:
            entry.response = b""
            entry.digest_only = True
        entries.pop(key, None)
        entries[key] = entry
        while len(entries) > MAX_ENTRIES:
            entries.popitem(last=False)
        self._evict_bytes()

    def image(self) -> LlmCacheBlob:
        """The blob to commit, stamped with the current schema version."""
        entries = self._entries.values()
        return LlmCacheBlob(
            state_schema_version=migration.CURRENT_STATE_SCHEMA_VERSION,
            entries=entries,
            total_response_bytes=sum(len(entry.response) for entry in entries),
        )

    def _expired(self, entry: ReplayEntry) -> bool:
        return self.now_ms - entry.created_at_ms > TTL_MS

    def _evict_bytes(self) -> None:
        entries = self._entries
        framed = sum(_framed_size(entry) for entry in entries.values())
        responses = sum(len(entry.response) for entry in entries.values())
        while len(entries) > 1 and _header_size(responses) + framed > BLOB_CAP_BYTES:
            _, oldest = entries.popitem(last=False)
            framed -= _framed_size(oldest)
            responses -= len(oldest.response)


def _varint_size(value: int) -> int:
    return (value.bit_length() + 6) // 7 or 1


def _framed_size(entry: ReplayEntry) -> int:
    body = entry.ByteSize()
    return 1 + _varint_size(body) + body


def _header_size(total_response_bytes: int) -> int:
    version = 1 + _varint_size(migration.CURRENT_STATE_SCHEMA_VERSION)
    return version + (1 + _varint_size(total_response_bytes) if total_response_bytes else 0)
