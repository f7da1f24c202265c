"""What the what-if form says that a build would do, by its configured policies and the tools of the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.settings import Build
from app.web.views import Choice
from app.web.views_whatif import WhatIfBuild, what_if_builds


def build(name: str, **resources: Any) -> Build:
    told = {"name": name, "driver": "flink", "agent": "a:A", "paths": (Path(),), "resources": resources}
    return Build.model_validate(told)


def offered(*builds: Build, tools: tuple[str, ...] = (), wanted: str = "") -> list[WhatIfBuild]:
    return what_if_builds(builds, [Choice(one.name, False, "") for one in builds], tools, wanted)


def told(held: Any) -> list[tuple[str, str, str]]:
    return [(one.what, one.name, one.how) for one in held]


def test_each_policy_is_told_as_what_comes_of_it() -> None:
    (one,) = offered(
        build(
            "b",
            **{
                "tool": "block",
                "tool:look_up": "allow",
                "tool:refund": {"answer": {"receipt": "x" * 100}},
                "tool:mail": "recorded",
                "chat_model_connection:service": "allow",
                "embedding_model_connection": "record",
                "vector_store:books": "allow",
                "function:desk.draw": "record",
                "function:desk.pick": {"answer": 4},
            },
        ),
        tools=("look_up", "never_configured"),
    )
    assert told(one.runs) == [
        ("model connection", "service", "asked where the record has no answer"),
        ("tool", "look_up", "executed, inside the sandbox"),
        ("vector store", "books", "executed, inside the sandbox"),
    ]
    cut = '{"receipt": "' + "x" * 67 + "…"
    assert told(one.records) == [
        ("durable function", "desk.draw", "answered by a result that is handed in, or the run ends"),
        ("durable function", "desk.pick", "answered from the record, else with 4"),
        ("tool", "mail", "answered from the record, or the run ends"),
        ("tool", "refund", f"answered from the record, else with {cut}"),
        ("embedding connection", "every other embedding connection", "answered from the record, or the run ends"),
    ]
    # A tool of the record has its type's policy where it has none of its own.
    assert told(one.ends) == [
        ("tool", "never_configured", "the run ends where it is called"),
        ("tool", "every other tool", "the run ends where it is called"),
    ]
    assert one.asks


def test_without_a_line_a_tool_is_only_recorded_and_no_model_is_asked() -> None:
    (one,) = offered(build("b"), tools=("refund",))
    assert told(one.records) == [
        ("tool", "refund", "answered from the record, else with a note that it was not executed")
    ]
    assert (one.runs, one.ends, one.asks) == ([], [], False)


def test_the_first_that_may_ask_is_selected_unless_another_is_wanted() -> None:
    builds = build("one"), build("two", chat_model_connection="allow"), build("three", chat_model_connection="allow")
    assert [one.name for one in offered(*builds) if one.selected] == ["two"]
    assert [one.name for one in offered(*builds, wanted="one") if one.selected] == ["one"]
    assert [one.name for one in offered(*builds, wanted="gone") if one.selected] == ["two"]
    assert [one.name for one in offered(builds[0]) if one.selected] == ["one"]
    assert offered() == []
