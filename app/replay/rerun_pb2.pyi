from app.wire import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentCode(_message.Message):
    __slots__ = ("agent", "registry", "decode", "config", "paths")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    registry: str
    decode: str
    config: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agent: _Optional[str] = ..., registry: _Optional[str] = ..., decode: _Optional[str] = ..., config: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class RerunRequest(_message.Message):
    __slots__ = ("code", "entity_key", "seq", "clock_ms", "kind", "entry_step", "envelopes", "batch_trigger", "memory", "cache", "provider_answers", "continuation", "allow_network", "tool_answers", "ledger_bytes", "payload", "retries", "in_turn", "turns")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RerunRequest.Kind]
        START: _ClassVar[RerunRequest.Kind]
        RESUME: _ClassVar[RerunRequest.Kind]
    KIND_UNSPECIFIED: RerunRequest.Kind
    START: RerunRequest.Kind
    RESUME: RerunRequest.Kind
    CODE_FIELD_NUMBER: _ClassVar[int]
    ENTITY_KEY_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENTRY_STEP_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    BATCH_TRIGGER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    ALLOW_NETWORK_FIELD_NUMBER: _ClassVar[int]
    TOOL_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    IN_TURN_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    code: AgentCode
    entity_key: bytes
    seq: int
    clock_ms: int
    kind: RerunRequest.Kind
    entry_step: int
    envelopes: _containers.RepeatedCompositeFieldContainer[_records_pb2.AgentEnvelope]
    batch_trigger: str
    memory: _records_pb2.MemoryBlob
    cache: _records_pb2.LlmCacheBlob
    provider_answers: _records_pb2.LlmCacheBlob
    continuation: _records_pb2.Continuation
    allow_network: bool
    tool_answers: _containers.RepeatedCompositeFieldContainer[ToolAnswer]
    ledger_bytes: int
    payload: bytes
    retries: _containers.RepeatedCompositeFieldContainer[Retries]
    in_turn: bool
    turns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, code: _Optional[_Union[AgentCode, _Mapping]] = ..., entity_key: _Optional[bytes] = ..., seq: _Optional[int] = ..., clock_ms: _Optional[int] = ..., kind: _Optional[_Union[RerunRequest.Kind, str]] = ..., entry_step: _Optional[int] = ..., envelopes: _Optional[_Iterable[_Union[_records_pb2.AgentEnvelope, _Mapping]]] = ..., batch_trigger: _Optional[str] = ..., memory: _Optional[_Union[_records_pb2.MemoryBlob, _Mapping]] = ..., cache: _Optional[_Union[_records_pb2.LlmCacheBlob, _Mapping]] = ..., provider_answers: _Optional[_Union[_records_pb2.LlmCacheBlob, _Mapping]] = ..., continuation: _Optional[_Union[_records_pb2.Continuation, _Mapping]] = ..., allow_network: bool = ..., tool_answers: _Optional[_Iterable[_Union[ToolAnswer, _Mapping]]] = ..., ledger_bytes: _Optional[int] = ..., payload: _Optional[bytes] = ..., retries: _Optional[_Iterable[_Union[Retries, _Mapping]]] = ..., in_turn: bool = ..., turns: _Optional[_Iterable[int]] = ...) -> None: ...

class Retries(_message.Message):
    __slots__ = ("step_index", "model", "failed")
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    step_index: int
    model: str
    failed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step_index: _Optional[int] = ..., model: _Optional[str] = ..., failed: _Optional[_Iterable[int]] = ...) -> None: ...

class ToolAnswer(_message.Message):
    __slots__ = ("tool", "args_json", "value_json")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    tool: str
    args_json: str
    value_json: str
    def __init__(self, tool: _Optional[str] = ..., args_json: _Optional[str] = ..., value_json: _Optional[str] = ...) -> None: ...

class MemoryRead(_message.Message):
    __slots__ = ("operation", "key", "present", "own_write")
    class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPERATION_UNSPECIFIED: _ClassVar[MemoryRead.Operation]
        GET: _ClassVar[MemoryRead.Operation]
        RING: _ClassVar[MemoryRead.Operation]
        KEYS: _ClassVar[MemoryRead.Operation]
        ENTRY_SIZE: _ClassVar[MemoryRead.Operation]
        SIZE_BYTES: _ClassVar[MemoryRead.Operation]
        KIND: _ClassVar[MemoryRead.Operation]
    OPERATION_UNSPECIFIED: MemoryRead.Operation
    GET: MemoryRead.Operation
    RING: MemoryRead.Operation
    KEYS: MemoryRead.Operation
    ENTRY_SIZE: MemoryRead.Operation
    SIZE_BYTES: MemoryRead.Operation
    KIND: MemoryRead.Operation
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    OWN_WRITE_FIELD_NUMBER: _ClassVar[int]
    operation: MemoryRead.Operation
    key: str
    present: bool
    own_write: bool
    def __init__(self, operation: _Optional[_Union[MemoryRead.Operation, str]] = ..., key: _Optional[str] = ..., present: bool = ..., own_write: bool = ...) -> None: ...

class CacheMiss(_message.Message):
    __slots__ = ("reason", "cache_key", "request_json", "step_index")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[CacheMiss.Reason]
        NOT_CACHED: _ClassVar[CacheMiss.Reason]
        DIGEST_ONLY: _ClassVar[CacheMiss.Reason]
        EXPIRED: _ClassVar[CacheMiss.Reason]
    REASON_UNSPECIFIED: CacheMiss.Reason
    NOT_CACHED: CacheMiss.Reason
    DIGEST_ONLY: CacheMiss.Reason
    EXPIRED: CacheMiss.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    reason: CacheMiss.Reason
    cache_key: str
    request_json: str
    step_index: int
    def __init__(self, reason: _Optional[_Union[CacheMiss.Reason, str]] = ..., cache_key: _Optional[str] = ..., request_json: _Optional[str] = ..., step_index: _Optional[int] = ...) -> None: ...

class ToolRun(_message.Message):
    __slots__ = ("tool", "args_json", "outcome", "detail", "step_index")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[ToolRun.Outcome]
        EXECUTED: _ClassVar[ToolRun.Outcome]
        SUPPLIED: _ClassVar[ToolRun.Outcome]
        REFUSED: _ClassVar[ToolRun.Outcome]
        FAILED: _ClassVar[ToolRun.Outcome]
        CONFINED: _ClassVar[ToolRun.Outcome]
    OUTCOME_UNSPECIFIED: ToolRun.Outcome
    EXECUTED: ToolRun.Outcome
    SUPPLIED: ToolRun.Outcome
    REFUSED: ToolRun.Outcome
    FAILED: ToolRun.Outcome
    CONFINED: ToolRun.Outcome
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    tool: str
    args_json: str
    outcome: ToolRun.Outcome
    detail: str
    step_index: int
    def __init__(self, tool: _Optional[str] = ..., args_json: _Optional[str] = ..., outcome: _Optional[_Union[ToolRun.Outcome, str]] = ..., detail: _Optional[str] = ..., step_index: _Optional[int] = ...) -> None: ...

class ServedAnswer(_message.Message):
    __slots__ = ("cache_key", "from_cache", "step_index", "model", "response_digest")
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_CACHE_FIELD_NUMBER: _ClassVar[int]
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    cache_key: str
    from_cache: bool
    step_index: int
    model: str
    response_digest: bytes
    def __init__(self, cache_key: _Optional[str] = ..., from_cache: bool = ..., step_index: _Optional[int] = ..., model: _Optional[str] = ..., response_digest: _Optional[bytes] = ...) -> None: ...

class RerunResult(_message.Message):
    __slots__ = ("outcome", "events", "intents", "outputs", "output_problem", "memory", "cache", "continuation", "dead_letter", "miss", "reads", "tools", "served", "provider_calls", "refusal", "driver", "driver_version", "longterm_read", "error_type", "error_detail", "printed", "staged", "overwritten", "ledger", "payload", "batch_unknown", "tallied", "cache_seen", "concurrent", "options", "may_vary", "refusals")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[RerunResult.Outcome]
        COMPLETED: _ClassVar[RerunResult.Outcome]
        SUSPENDED: _ClassVar[RerunResult.Outcome]
        FAILED: _ClassVar[RerunResult.Outcome]
        TIMED_OUT: _ClassVar[RerunResult.Outcome]
        CACHE_MISS: _ClassVar[RerunResult.Outcome]
        REFUSED: _ClassVar[RerunResult.Outcome]
        UNMIGRATABLE: _ClassVar[RerunResult.Outcome]
    OUTCOME_UNSPECIFIED: RerunResult.Outcome
    COMPLETED: RerunResult.Outcome
    SUSPENDED: RerunResult.Outcome
    FAILED: RerunResult.Outcome
    TIMED_OUT: RerunResult.Outcome
    CACHE_MISS: RerunResult.Outcome
    REFUSED: RerunResult.Outcome
    UNMIGRATABLE: RerunResult.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    INTENTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_CALLS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    LONGTERM_READ_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAIL_FIELD_NUMBER: _ClassVar[int]
    PRINTED_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    OVERWRITTEN_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BATCH_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    TALLIED_FIELD_NUMBER: _ClassVar[int]
    CACHE_SEEN_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MAY_VARY_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    outcome: RerunResult.Outcome
    events: _containers.RepeatedCompositeFieldContainer[_records_pb2.TraceEvent]
    intents: _containers.RepeatedCompositeFieldContainer[_records_pb2.ToolIntent]
    outputs: _containers.RepeatedScalarFieldContainer[bytes]
    output_problem: str
    memory: _records_pb2.MemoryBlob
    cache: _records_pb2.LlmCacheBlob
    continuation: _records_pb2.Continuation
    dead_letter: _records_pb2.ActivationErrorRecord
    miss: CacheMiss
    reads: _containers.RepeatedCompositeFieldContainer[MemoryRead]
    tools: _containers.RepeatedCompositeFieldContainer[ToolRun]
    served: _containers.RepeatedCompositeFieldContainer[ServedAnswer]
    provider_calls: int
    refusal: str
    driver: str
    driver_version: str
    longterm_read: bool
    error_type: str
    error_detail: str
    printed: str
    staged: _containers.RepeatedCompositeFieldContainer[_records_pb2.TraceEvent]
    overwritten: _containers.RepeatedScalarFieldContainer[str]
    ledger: bytes
    payload: bytes
    batch_unknown: bool
    tallied: bool
    cache_seen: bool
    concurrent: bool
    options: _containers.RepeatedScalarFieldContainer[int]
    may_vary: bool
    refusals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, outcome: _Optional[_Union[RerunResult.Outcome, str]] = ..., events: _Optional[_Iterable[_Union[_records_pb2.TraceEvent, _Mapping]]] = ..., intents: _Optional[_Iterable[_Union[_records_pb2.ToolIntent, _Mapping]]] = ..., outputs: _Optional[_Iterable[bytes]] = ..., output_problem: _Optional[str] = ..., memory: _Optional[_Union[_records_pb2.MemoryBlob, _Mapping]] = ..., cache: _Optional[_Union[_records_pb2.LlmCacheBlob, _Mapping]] = ..., continuation: _Optional[_Union[_records_pb2.Continuation, _Mapping]] = ..., dead_letter: _Optional[_Union[_records_pb2.ActivationErrorRecord, _Mapping]] = ..., miss: _Optional[_Union[CacheMiss, _Mapping]] = ..., reads: _Optional[_Iterable[_Union[MemoryRead, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[ToolRun, _Mapping]]] = ..., served: _Optional[_Iterable[_Union[ServedAnswer, _Mapping]]] = ..., provider_calls: _Optional[int] = ..., refusal: _Optional[str] = ..., driver: _Optional[str] = ..., driver_version: _Optional[str] = ..., longterm_read: bool = ..., error_type: _Optional[str] = ..., error_detail: _Optional[str] = ..., printed: _Optional[str] = ..., staged: _Optional[_Iterable[_Union[_records_pb2.TraceEvent, _Mapping]]] = ..., overwritten: _Optional[_Iterable[str]] = ..., ledger: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., batch_unknown: bool = ..., tallied: bool = ..., cache_seen: bool = ..., concurrent: bool = ..., options: _Optional[_Iterable[int]] = ..., may_vary: bool = ..., refusals: _Optional[_Iterable[str]] = ...) -> None: ...
