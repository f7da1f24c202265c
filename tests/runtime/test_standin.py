"""The stand-in: every promised name, lazily, in one process only, and a clear word about the rest.

Each test that imports runs in a fresh interpreter, because import state is what is being tested.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

PROMISED = {
    "beam_agents": "AgentConfig RunAgent RunAgentOutputs HitlPolicy Deny Drop Escalate FallbackContext StreamAgent tool"
    " ShardKeys shard_key unshard_key",
    "beam_agents._protos": "MemoryBlob ToolIntent ToolResult TraceEvent AgentEnvelope StateSnapshot"
    " ActivationErrorRecord Continuation LlmCacheBlob LongTermRecord",
    "beam_agents.core": "AgentContext AgentResult FunctionAgent StreamAgent",
    "beam_agents.core.agent": "Agent Complete Suspend Outcome FallbackContext FunctionAgent StreamAgent intent_id_for",
    "beam_agents.core.batching": "BatchPolicy BatchSettings DEFAULT_MAX_BATCH_SIZE DEFAULT_MAX_WAIT_MS BUFFER_HEADROOM"
    " TRIGGER_SIZE TRIGGER_TIMER TRACE_BATCH_SIZE TRACE_BATCH_TRIGGER resolve_batch_settings should_flush_on_size"
    " should_flush_on_timer buffer_is_full",
    "beam_agents.core.context": "ActivationContext",
    "beam_agents.core.migration": "CURRENT_STATE_SCHEMA_VERSION VERSIONED_MESSAGE_TYPES migrate_to_current migration"
    " StateMigrationError MissingMigrationError StateSchemaFromFutureError MigrationStepError",
    "beam_agents.core.transform": "AgentConfig RunAgent RunAgentOutputs DefaultSinkResolver UnknownSinkSchemeError",
    "beam_agents.hitl": "HitlPolicy Deny Drop Escalate Route deny HITL_TIMEOUT_OUTPUT REASON_HITL_TIMEOUT"
    " DEFAULT_HITL_TIMEOUT_MS DEFAULT_INTENT_TTL_MS DEFAULT_APPROVAL_CHANNEL intent_expired refuse_expired",
    "beam_agents.memory": "Memory MemoryOverflow Compactor LongtermMemory DropOldestCompactor Summarizer"
    " SummarizationView SummarizeCompactor ExpireHook ExpiringMemory FlushToLongterm",
    "beam_agents.memory.facade": "Memory MemoryOverflow Compactor LongtermMemory",
    "beam_agents.memory.compaction": "DropOldestCompactor Summarizer SummarizationView SummarizeCompactor ExpireHook"
    " ExpiringMemory FlushToLongterm",
    "beam_agents.memory.stores": "MemoryStore MemoryRecord InMemoryMemoryStore build_memory_store"
    " parse_memory_store_uri",
    "beam_agents.model": "LlmRequest LlmResponse LLMClient ProviderError RateLimitError ServerError ProviderTimeout"
    " ProviderRequestError DecodedResponse TokenUsage LlmFacade FacadeResult RetryPolicy CircuitBreaker CircuitState"
    " BudgetExceeded CircuitOpenError OutputSchemaError TokenBudget FakeLLM match_any match_contains match_model_id"
    " respond_with raise_error fail_then_succeed UnmatchedRequestError anthropic_decode openai_compat_decode"
    " MAX_ENTRIES BLOB_CAP_BYTES TTL_MS ReplayCache ReplayEntry compute_cache_key",
    "beam_agents.model.client": "LlmRequest LlmResponse LLMClient ProviderError RateLimitError ServerError"
    " ProviderTimeout ProviderRequestError",
    "beam_agents.model.facade": "DecodedResponse TokenUsage LlmFacade FacadeResult RetryPolicy CircuitBreaker"
    " CircuitState BudgetExceeded CircuitOpenError OutputSchemaError TokenBudget",
    "beam_agents.model.fake": "FakeLLM match_any match_contains match_model_id respond_with raise_error"
    " fail_then_succeed UnmatchedRequestError",
    "beam_agents.model.replay_cache": "MAX_ENTRIES BLOB_CAP_BYTES TTL_MS ReplayCache ReplayEntry compute_cache_key",
    "beam_agents.tools": "tool Tool ToolRegistry ToolRunner IntentInfo ToolError ToolDefinitionError ToolNotFoundError"
    " ToolArgumentError SideEffectToolError",
}


def python(code: str, *path: Path) -> str:
    """What a fresh interpreter prints."""
    script = "from app.runtime import standin\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        env={"PYTHONPATH": ":".join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_promised_name_is_importable_from_its_module() -> None:
    lines = [f"from {module} import {name}" for module, names in PROMISED.items() for name in names.split()]
    assert python("standin.install()\n" + "\n".join(lines) + "\nprint('all')") == "all"


def test_the_names_are_the_runtimes_own() -> None:
    assert (
        python("""
        standin.install()
        import app.wire.migration, app.runtime.tools, app.wire.records
        import beam_agents.core.migration as served
        from beam_agents.core import migration as again
        assert served is again is app.wire.migration is __import__("sys").modules["beam_agents.core.migration"]
        from beam_agents import tool
        from beam_agents.tools import tool as other
        assert tool is other is app.runtime.tools.tool
        from beam_agents._protos import TraceEvent
        assert TraceEvent is app.wire.records.TraceEvent
        import beam_agents
        assert beam_agents.core.agent.Complete.__name__ in dir(beam_agents.core.agent)
        print("same")
        """)
        == "same"
    )


def test_patching_the_schema_version_reaches_the_writers() -> None:
    assert (
        python("""
        standin.install()
        import beam_agents.core.migration as _m
        _m.CURRENT_STATE_SCHEMA_VERSION = 2
        from beam_agents.memory import Memory
        print(Memory(now_ms=0).image().state_schema_version)
        """)
        == "2"
    )


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    assert (
        python("""
        import sys
        standin.install()
        import beam_agents, beam_agents.model, beam_agents.core.context, beam_agents.memory.stores
        print([name for name in sys.modules if name.startswith(("app.runtime.", "app.wire", "google", "pydantic"))])
        beam_agents.model.LlmRequest
        print(sorted(name for name in sys.modules if name.startswith("app.runtime.model")))
        """)
        == "['app.runtime.standin']\n['app.runtime.model', 'app.runtime.model.client']"
    )


def test_an_unserved_module_names_itself_and_the_remedy() -> None:
    for name in ("beam_agents.adapters.langgraph", "beam_agents.model.openai", "beam_agents.core.dofn"):
        message = python(f"""
            standin.install()
            try:
                import {name}
            except ModuleNotFoundError as error:
                print(error.name, "|", error)
        """)
        unserved = "beam_agents.adapters" if "adapters" in name else name
        assert message.startswith(f"{unserved} | this runtime does not serve the module '{unserved}'")
        assert "run the replay with the pipeline's own installation" in message


def test_an_unserved_name_is_an_import_error_and_an_attribute_error() -> None:
    assert (
        python("""
        standin.install()
        import beam_agents.tools
        try:
            beam_agents.tools.Nonsense
        except AttributeError as error:
            print(error)
        try:
            from beam_agents.tools import Nonsense
        except ImportError as error:
            print(type(error).__name__)
        assert not hasattr(beam_agents.tools, "Nonsense")
        """).splitlines()[1]
        == "ImportError"
    )


@pytest.mark.parametrize("name", ["LangGraphAgent", "PydanticAIAgent", "AdkAgent"])
def test_adapters_fail_when_they_are_asked_for(name: str) -> None:
    message = python(f"""
        standin.install()
        import beam_agents
        assert "{name}" in beam_agents.__all__
        for attempt in (lambda: beam_agents.{name}, lambda: exec("from beam_agents import *")):
            try:
                attempt()
            except ImportError as error:
                print(error)
    """)
    assert f"beam_agents.{name} adapts" in message
    assert len(message.splitlines()) == 2


def test_an_installed_distribution_does_not_shadow_it(tmp_path: Path) -> None:
    package = tmp_path / "beam_agents"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").write_text("installed = True")
    (package / "core" / "__init__.py").write_text("")
    (package / "core" / "dofn.py").write_text("")
    assert (
        python(
            """
        standin.install()
        standin.install()
        import beam_agents
        print(hasattr(beam_agents, "installed"))
        try:
            import beam_agents.core.dofn
        except ModuleNotFoundError as error:
            print(error.name)
        """,
            tmp_path,
        )
        == "False\nbeam_agents.core.dofn"
    )


def test_what_was_imported_before_is_not_mixed_with(tmp_path: Path) -> None:
    (tmp_path / "beam_agents.py").write_text("")
    message = python(
        """
        import beam_agents
        try:
            standin.install()
        except RuntimeError as error:
            print(error)
        """,
        tmp_path,
    )
    assert message.startswith(f"beam_agents was already imported from {tmp_path}/beam_agents.py")


def test_without_install_the_name_means_nothing() -> None:
    assert (
        python("""
        import app.runtime.activation
        try:
            import beam_agents
        except ModuleNotFoundError as error:
            print(error)
        """)
        == "No module named 'beam_agents'"
    )


def test_the_runtime_starts_light() -> None:
    """It starts inside the sandbox: protobuf and the standard library; pydantic only when a tool is used."""
    found = python("""
        import sys
        before = set(sys.modules)
        import app.runtime.activation, app.runtime.config, app.runtime.transform
        roots = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(roots - sys.stdlib_module_names))
        from app.runtime.tools import tool
        assert "pydantic" not in sys.modules
        @tool
        def f(x: int) -> int:
            return x
        assert "pydantic" not in sys.modules
        assert f.schema["name"] == "f"
        assert "pydantic" in sys.modules
    """)
    assert found == "['app', 'google']"
