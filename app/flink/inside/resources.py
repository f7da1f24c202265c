"""The resources of a plan, each made when it is first asked for, and always in its contained form."""

from __future__ import annotations

from typing import Any, Final

from flink_agents.api.resource import ResourceType
from flink_agents.api.resource_context import ResourceContext

from app.flink.inside.contained import (
    Bench,
    ContainedConnection,
    ContainedEmbedding,
    ContainedStore,
    ContainedTool,
    allow_store,
    contain_setup,
)
from app.flink.inside.messages import Policy, Resource
from app.flink.inside.stops import Stopped

# What a policy can be set for; the rest only holds these together.
ACTING: Final = ("tool", "chat_model_connection", "embedding_model_connection", "vector_store", "mcp_server")


class Resources(ResourceContext):
    """Hands out resources to actions and to other resources."""

    def __init__(self, plan: Any, bench: Bench) -> None:
        self._providers = plan.resource_providers or {}
        self._config = plan.config
        self._bench = bench
        self._made: dict[tuple[Any, str], Any] = {}

    def get_resource(self, name: str, resource_type: Any) -> Any:
        """The resource of a name and type. Raises `KeyError`, as the framework does, where the plan has none."""
        key = (resource_type, name)
        if key not in self._made:
            provider = self._providers.get(resource_type, {}).get(name)
            if provider is None:
                raise KeyError(f"Resource not found: '{name}' of type {resource_type}")
            self._made[key] = self._make(name, resource_type, provider)
        return self._made[key]

    def generate_available_skills_prompt(self, *skill_names: str) -> str:
        raise self._refuse(f"the skills {', '.join(skill_names)}")

    def get_skill_dirs(self, *skill_names: str) -> list[str]:
        raise self._refuse(f"the skills {', '.join(skill_names)}")

    def _make(self, name: str, kind: Any, provider: Any) -> Any:
        if type(provider).__name__.startswith("Java"):
            raise self._refuse(f"the Java resource {name!r} ({kind.value})")
        if "mcp" in getattr(provider, "module", "").split(".") and kind is ResourceType.PROMPT:
            raise self._refuse(f"the prompt {name!r}, which an MCP server gives,")
        if kind is ResourceType.TOOL:
            return self._tool(name, provider)
        if kind is ResourceType.CHAT_MODEL_CONNECTION:
            return ContainedConnection.around(name, lambda: self._original(provider), self._bench)
        if kind is ResourceType.EMBEDDING_MODEL_CONNECTION:
            return ContainedEmbedding.around(name, lambda: self._original(provider), self._bench)
        if kind is ResourceType.VECTOR_STORE:
            return self._store(name, provider)
        if kind is ResourceType.MCP_SERVER:
            raise self._refuse(f"the MCP server {name!r}")
        resource = self._original(provider)
        resource.open()
        if kind is ResourceType.CHAT_MODEL:
            contain_setup(name, resource, self._bench)
        return resource

    def _tool(self, name: str, provider: Any) -> Any:
        original = self._original(provider)
        if original.metadata is None:
            raise self._refuse(f"the Java tool {name!r}")
        return ContainedTool.around(name, original, self._bench)

    def _store(self, name: str, provider: Any) -> Any:
        if self._bench.now().handling("vector_store", name).policy is not Policy.ALLOW:
            return ContainedStore.around(name, self._bench)
        store = self._original(provider)
        store.open()
        allow_store(name, store, self._bench)
        return store

    def _original(self, provider: Any) -> Any:
        return provider.provide(resource_context=self, config=self._config)

    def _refuse(self, what: str) -> Stopped:
        return self._bench.now().unsupported(what)


def listed(plan: Any, handling: Any) -> list[Resource]:
    """What the plan holds and how each part is handled; `handling` gives a policy by type and name."""
    found = []
    for kind, providers in (plan.resource_providers or {}).items():
        for name in providers:
            policy = str(handling(kind.value, name).policy) if kind.value in ACTING else ""
            found.append(Resource(type=kind.value, name=name, policy=policy))
    return sorted(found, key=lambda one: (one.type, one.name))
