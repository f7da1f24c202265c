from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeptState(_message.Message):
    __slots__ = ("memory", "cache", "continuation", "pending", "seq", "batch", "ttl_ms", "hitl_ms", "flush_ms")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    HITL_MS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_MS_FIELD_NUMBER: _ClassVar[int]
    memory: bytes
    cache: bytes
    continuation: bytes
    pending: _containers.RepeatedScalarFieldContainer[bytes]
    seq: int
    batch: _containers.RepeatedScalarFieldContainer[bytes]
    ttl_ms: int
    hitl_ms: int
    flush_ms: int
    def __init__(self, memory: _Optional[bytes] = ..., cache: _Optional[bytes] = ..., continuation: _Optional[bytes] = ..., pending: _Optional[_Iterable[bytes]] = ..., seq: _Optional[int] = ..., batch: _Optional[_Iterable[bytes]] = ..., ttl_ms: _Optional[int] = ..., hitl_ms: _Optional[int] = ..., flush_ms: _Optional[int] = ...) -> None: ...

class JournalEntry(_message.Message):
    __slots__ = ("keys", "records", "offsets", "watermark_ms", "delivered")
    class Key(_message.Message):
        __slots__ = ("key", "state")
        KEY_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        key: bytes
        state: KeptState
        def __init__(self, key: _Optional[bytes] = ..., state: _Optional[_Union[KeptState, _Mapping]] = ...) -> None: ...
    class Record(_message.Message):
        __slots__ = ("stream", "key", "value")
        STREAM_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        stream: str
        key: bytes
        value: bytes
        def __init__(self, stream: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    KEYS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[JournalEntry.Key]
    records: _containers.RepeatedCompositeFieldContainer[JournalEntry.Record]
    offsets: _containers.ScalarMap[int, int]
    watermark_ms: int
    delivered: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[JournalEntry.Key, _Mapping]]] = ..., records: _Optional[_Iterable[_Union[JournalEntry.Record, _Mapping]]] = ..., offsets: _Optional[_Mapping[int, int]] = ..., watermark_ms: _Optional[int] = ..., delivered: bool = ...) -> None: ...
