"""Resources in their contained form: they look the same to the agent, and do nothing that policy does not allow."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from flink_agents.api.chat_message import ChatMessage
from flink_agents.api.chat_models.chat_model import BaseChatModelConnection, BaseChatModelSetup
from flink_agents.api.embedding_models.embedding_model import BaseEmbeddingModelConnection
from flink_agents.api.tools.tool import Tool, ToolType
from flink_agents.api.vector_stores.vector_store import (
    BaseVectorStore,
    Document,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from app.flink.inside.messages import (
    Ending,
    Outcome,
    Policy,
    digest,
    query_digest,
    request_as_logged,
    tool_digest,
)
from app.flink.inside.run import Frame, Run, plain
from app.flink.inside.stops import RecordedFailure

NOT_EXECUTED = "(not executed: what this tool would have been called with was written down)"


class Bench:
    """Where contained resources find the run that is going on: they live longer than one input."""

    def __init__(self) -> None:
        self.run: Run | None = None

    def now(self) -> Run:
        assert self.run is not None, "a resource is used outside a run"
        self.run.check()
        return self.run


class ContainedTool(Tool):
    """A tool with the metadata of the original; `original` is called only where its policy is `allow`."""

    _bench: Bench = PrivateAttr()
    _original: Any = PrivateAttr()
    _name: str = PrivateAttr()
    _described: dict[str, Any] | None = PrivateAttr(default=None)

    @classmethod
    def around(cls, name: str, original: Any, bench: Bench) -> ContainedTool:
        tool = cls(metadata=original.metadata)
        tool._bench, tool._original, tool._name = bench, original, name
        return tool

    @classmethod
    def tool_type(cls) -> ToolType:
        return ToolType.FUNCTION

    def described(self) -> dict[str, Any]:
        """The tool as a model sees it; made once, for a schema takes long."""
        if self._described is None:
            self._described = _described(self.metadata)
        return self._described

    def call(self, *args: Any, **kwargs: Any) -> Any:
        run, name = self._bench.now(), self._name
        told = plain(kwargs if not args else {"*": list(args), **kwargs})
        handling = run.handling("tool", name)
        if handling.policy is Policy.BLOCK:
            run.note("tool", name, Outcome.REFUSED, request=told, detail="its policy is block")
            raise run.stop(Ending.REFUSED, f"the tool {name!r} was called, and its policy is block")
        if handling.policy is Policy.ALLOW:
            return run.execute("tool", name, told, lambda: self._original.call(*args, **kwargs))
        found = run.tool_answer(tool_digest(name, told))
        if found is not None:
            source = "supplied" if found.supplied else ""
            if found.error is not None:
                run.note("tool", name, Outcome.ANSWERED, request=told, detail=f"failed as recorded: {found.error}")
                raise RecordedFailure(found.error)
            run.note("tool", name, Outcome.ANSWERED, request=told, value=found.value, detail=source)
            return copy.deepcopy(found.value)
        if handling.policy is Policy.RECORD and handling.has_answer:
            run.note("tool", name, Outcome.STAND_IN, request=told, value=handling.answer)
            return copy.deepcopy(handling.answer)
        if handling.policy is Policy.RECORD and run.request.live:
            run.note("tool", name, Outcome.STAND_IN, request=told, value=NOT_EXECUTED)
            return NOT_EXECUTED
        run.note("tool", name, Outcome.MISSED, request=told)
        raise run.stop(Ending.MISSED, f"nothing recorded answers the tool {name!r} called with these arguments")


class ContainedConnection(BaseChatModelConnection):
    """A model connection that answers from the record; the original is made only where it may be asked."""

    _bench: Bench = PrivateAttr()
    _make: Any = PrivateAttr()
    _name: str = PrivateAttr()
    _original: Any = PrivateAttr(default=None)

    @classmethod
    def around(cls, name: str, make: Any, bench: Bench) -> ContainedConnection:
        connection = cls()
        connection._bench, connection._make, connection._name = bench, make, name
        return connection

    def chat(self, messages: Sequence[Any], tools: Any = None, **kwargs: Any) -> Any:
        run, name = self._bench.now(), self._name
        full = {
            "connection": name,
            "messages": [plain(message) for message in messages],
            "tools": [
                tool.described() if isinstance(tool, ContainedTool) else _described(tool.metadata)
                for tool in tools or ()
            ],
            "parameters": plain(kwargs),
        }
        return _Question(run, name, full).answer(lambda: self._ask(messages, tools, kwargs))

    def _ask(self, messages: Sequence[Any], tools: Any, kwargs: dict[str, Any]) -> Any:
        if self._original is None:
            self._original = self._make()
            self._original.open()
        return self._original.chat(messages, tools, **kwargs)


class _Question:
    """One request of a connection on its way to an answer."""

    def __init__(self, run: Run, name: str, full: dict[str, Any]) -> None:
        self._run = run
        self._name = name
        self._full = full
        frame = run.frame
        self._known = {
            "request": full,
            "full": digest(full),
            "digest": "" if frame is None else frame.digest,
            "processed": frame is not None and frame.processed,
        }

    def answer(self, ask: Any) -> Any:
        run, frame, name = self._run, self._run.frame, self._name
        policy = run.handling("chat_model_connection", name).policy
        if policy is Policy.BLOCK:
            self._note(Outcome.REFUSED, detail="its policy is block")
            raise run.stop(Ending.REFUSED, f"the model connection {name!r} was asked, and its policy is block")
        if frame is not None:
            frame.asked += 1
            if frame.asked > 1:
                raise run.unsupported(
                    f"the model set-up {frame.setup!r} asks its connection twice for one request, which"
                )
        found = None if frame is None else run.exchange(frame.digest)
        if found is not None and found.full not in (None, self._known["full"]):
            found = None
        if found is not None and found.failures:
            self._note(Outcome.ANSWERED, detail="a try that failed as recorded")
            raise RecordedFailure("this try failed when it was recorded")
        if found is not None and found.answer is not None:
            self._note(Outcome.ANSWERED, value=found.answer)
            assert frame is not None
            frame.answer = found.answer
            return ChatMessage.model_validate(copy.deepcopy(found.answer))
        if policy is Policy.ALLOW and run.request.live:
            try:
                value = ask()
            except Exception as error:
                self._note(Outcome.EXECUTED, detail=f"{type(error).__name__}: {error}")
                raise
            run.check()
            self._note(Outcome.EXECUTED, value=plain(value))
            return value
        self._note(Outcome.MISSED, detail="the record ends at this request" if found is not None else "")
        raise run.stop(Ending.MISSED, f"nothing recorded answers this request to the model connection {name!r}")

    def _note(self, outcome: Outcome, **more: Any) -> None:
        self._run.note("model", self._name, outcome, **self._known, **more)


def allow_store(name: str, store: Any, bench: Bench) -> None:
    """Have an allowed vector store write down what it is asked."""
    for what in ("query", "add", "update", "get", "delete"):
        object.__setattr__(store, what, _written_down(name, what, getattr(store, what), bench))


def _written_down(name: str, what: str, function: Any, bench: Bench) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        told = {what: plain([*args, kwargs])}
        return bench.now().execute("vector store", name, told, lambda: function(*args, **kwargs))

    return own(call)


def own(function: Any) -> Any:
    """Mark a function as ours: it writes down its calls itself."""
    function.hindcast = True
    return function


def is_own(function: Any) -> bool:
    """Whether a function writes down its calls itself."""
    holder = getattr(function, "__self__", None)
    contained = (ContainedTool, ContainedConnection, ContainedEmbedding, ContainedStore)
    return isinstance(holder, contained) or getattr(function, "hindcast", False)


def contain_setup(name: str, setup: Any, bench: Bench) -> None:
    """Have a model set-up say which request it is about to send; its own `chat` still builds it.

    What it returns is the recorded answer as it is: the log holds what came out of the set-up, not what went in.
    """
    original = setup.chat
    processed = getattr(type(setup), "chat", None) is not BaseChatModelSetup.chat

    def chat(messages: Any, *args: Any, **kwargs: Any) -> Any:
        run = bench.now()
        arguments = kwargs.get("prompt_args", args[0] if args else None)
        request = request_as_logged(name, [plain(message) for message in messages], plain(arguments or {}))
        with run.asking(Frame(name, digest(request), request, processed)) as frame:
            answer = original(messages, *args, **kwargs)
        if frame.answer is not None and processed:
            return ChatMessage.model_validate(copy.deepcopy(frame.answer))
        return answer

    object.__setattr__(setup, "chat", own(chat))


class ContainedEmbedding(BaseEmbeddingModelConnection):
    """An embedding connection: no log holds vectors, so only an allowed one can answer."""

    _bench: Bench = PrivateAttr()
    _make: Any = PrivateAttr()
    _name: str = PrivateAttr()
    _original: Any = PrivateAttr(default=None)

    @classmethod
    def around(cls, name: str, make: Any, bench: Bench) -> ContainedEmbedding:
        connection = cls()
        connection._bench, connection._make, connection._name = bench, make, name
        return connection

    def embed(self, text: Any, **kwargs: Any) -> Any:
        run, told = self._bench.now(), plain({"text": text, "parameters": kwargs})
        _only_if_allowed(run, "embedding_model_connection", self._name, told)
        return run.execute("embedding", self._name, told, lambda: self._ask(text, kwargs))

    def _ask(self, text: Any, kwargs: dict[str, Any]) -> Any:
        if self._original is None:
            self._original = self._make()
            self._original.open()
        return self._original.embed(text, **kwargs)


class ContainedStore(BaseVectorStore):
    """A vector store whose queries are answered from the record, and which stores nothing."""

    _bench: Bench = PrivateAttr()
    _name: str = PrivateAttr()

    @classmethod
    def around(cls, name: str, bench: Bench) -> ContainedStore:
        store = cls()
        store._bench, store._name = bench, name
        return store

    @property
    def store_kwargs(self) -> dict[str, Any]:
        return {}

    def open(self) -> None:
        """Nothing to open."""

    def query(self, query: Any) -> Any:
        run, told = self._bench.now(), plain(query)
        if run.handling("vector_store", self._name).policy is Policy.BLOCK:
            _only_if_allowed(run, "vector_store", self._name, told)
        found = run.documents(query_digest(self._name, query.query_text, query.limit))
        if found is None:
            run.note("vector store", self._name, Outcome.MISSED, request=told)
            raise run.stop(Ending.MISSED, f"nothing recorded answers this query of the vector store {self._name!r}")
        run.note("vector store", self._name, Outcome.ANSWERED, request=told, value=found)
        return VectorStoreQueryResult(documents=[Document.model_validate(one) for one in copy.deepcopy(found)])

    def _no(self, what: str, told: Any) -> Any:
        run = self._bench.now()
        run.note("vector store", self._name, Outcome.MISSED, request={what: plain(told)})
        raise run.stop(Ending.MISSED, f"the record does not tell what {what} on the vector store {self._name!r} gave")

    def add(self, documents: Any, *args: Any, **kwargs: Any) -> Any:
        return self._no("add", documents)

    def update(self, documents: Any, *args: Any, **kwargs: Any) -> Any:
        return self._no("update", documents)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._no("get", [args, kwargs])

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        return self._no("delete", [args, kwargs])

    def create_collection_if_not_exists(self, name: str, **kwargs: Any) -> None:
        """Nothing is stored, so nothing has to be there."""

    def delete_collection(self, name: str) -> None:
        self._no("delete_collection", name)

    def _query_embedding(self, *args: Any, **kwargs: Any) -> Any:
        return self._no("query", [args, kwargs])

    def _add_embedding(self, *args: Any, **kwargs: Any) -> Any:
        return self._no("add", [args, kwargs])

    def _update_embedding(self, *args: Any, **kwargs: Any) -> Any:
        return self._no("update", [args, kwargs])


def _only_if_allowed(run: Run, kind: str, name: str, told: Any) -> None:
    policy = run.handling(kind, name).policy
    if policy is Policy.BLOCK:
        run.note(kind, name, Outcome.REFUSED, request=told, detail="its policy is block")
        raise run.stop(Ending.REFUSED, f"{kind} {name!r} was used, and its policy is block")
    if policy is not Policy.ALLOW:
        run.note(kind, name, Outcome.MISSED, request=told)
        raise run.stop(
            Ending.MISSED, f"no event log holds what {kind} {name!r} gives; only the policy allow can answer"
        )


def _described(metadata: Any) -> dict[str, Any]:
    return {
        "name": metadata.name,
        "description": metadata.description,
        "parameters": plain(metadata.get_parameters_dict()),
    }
