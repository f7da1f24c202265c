"""What a ledger tells, entry by entry: decoded first, raw below, long values by head, size and digest."""

from dataclasses import dataclass, field
from typing import Any

from app.web.values import LARGE, Shown, emphasise, show, show_json
from app.web.views_story import SMALL, Step, Telling, story


@dataclass
class Entry:
    kind: str
    body: dict[str, Any]
    position: int = 0
    name: str = ""
    size: int = 0
    extra: list[str] = field(default_factory=list)


def tell(kind: str, telling: Telling | None = None, **body: Any) -> Step:
    (step,) = story([Entry(kind, body)], telling or Telling({}))
    return step


def texts(step: Step, line: int = 0) -> list[tuple[str, str]]:
    return [(said.label, said.value.text) for said in step.lines[line].texts]


REQUEST = {
    "model": "m",
    "messages": [{"role": "system", "content": "Decide."}, {"role": "user", "content": "I want 48,00 back"}],
    "params": {"temperature": 0},
    "tools": None,
    "key": "00",
    "seq": 1,
}
RESPONSE = '{"choices": [{"message": {"role": "assistant", "content": "pay 480000"}}]}'


def test_a_model_call_says_what_it_saw_and_what_it_said() -> None:
    step = tell(
        "model",
        Telling({"k" * 64: "snap.pb"}),
        cache_key="k" * 64,
        from_cache=True,
        request=REQUEST,
        response=RESPONSE,
        decoded={"text": "pay 480000", "tokens": [131, 19, 150]},
    )
    saw, answer = step.lines
    assert texts(step) == [("system", "Decide."), ("user", "I want 48,00 back"), ("sampling", '{"temperature": 0}')]
    assert [said.raw for said in saw.texts] == [False, False, True]
    assert (saw.facts, saw.cache_key) == (("model m",), "k" * 64)
    assert texts(step, 1)[0] == ("", "pay 480000")
    assert [said.label for said in answer.texts if said.raw] == ["raw response"]
    assert answer.facts == ("131 + 19 tokens", "from snap.pb", "a cache hit")
    assert answer.captured == "k" * 64


def test_without_a_decode_hook_a_known_shape_is_read() -> None:
    step = tell("model", cache_key="", from_cache=False, request=REQUEST, response=RESPONSE)
    assert texts(step, 1)[0] == ("assistant", "pay 480000")
    assert step.lines[1].texts[1].raw
    assert step.lines[1].facts == ("a recorded answer of the provider",)
    other = tell("model", cache_key="", from_cache=True, request=REQUEST, response="pong")
    assert texts(other, 1) == [("", "pong")]


def test_a_decode_hook_that_fails_is_told_with_what_it_failed_on() -> None:
    step = tell("model", cache_key="", request=REQUEST, response="junk", decoded={"error": "KeyError: x"})
    assert texts(step, 1) == [("the decode hook failed", "KeyError: x"), ("raw response", "junk")]


def test_what_was_cut_is_a_head_with_the_size_of_the_whole() -> None:
    cut = {"head": "x" * 1000, "bytes": 20_000_000, "sha256": "a" * 64}
    step = tell(
        "model", cache_key="", request={**REQUEST, "messages": [{"role": "user", "content": cut}]}, response=cut
    )
    for line in step.lines:
        shown = line.texts[0].value
        assert (shown.large, shown.length, shown.unit, shown.sha256) == (True, 20_000_000, "bytes", "a" * 64)
        assert [span.folded for span in shown.spans or () if span.folded] == [19_999_000]


def test_bytes_that_are_no_text_are_hex() -> None:
    short = show_json({"hex": "ff01", "bytes": 2})
    assert (short.text, short.length, short.unit) == ("0xff01", 2, "bytes")
    long = show_json({"hex": "ff" * 1000, "bytes": 20_000_000, "sha256": "b" * 64})
    assert long.text.startswith("0xffff")
    assert (long.length, long.sha256) == (20_000_000, "b" * 64)
    assert sum(span.folded for span in long.spans or ()) == 20_000_000 - 512


def test_an_object_that_only_looks_cut_stays_an_object() -> None:
    assert show_json({"head": 7, "bytes": 1, "sha256": ""}).text == '{"head": 7, "bytes": 1, "sha256": ""}'


def test_tools_say_how_they_ended() -> None:
    ran = tell("tool", tool="look", arguments='{"o":1}', value={"cents": 4800}, outcome="executed")
    assert texts(ran) == [("", '{"o":1}'), ("returned", '{"cents": 4800}')]
    assert ran.lines[0].what == "tool look"
    kept = tell("tool", tool="look", arguments="{}", error="PermissionError: no", outcome="confined")
    assert kept.lines[0].tone == "bad"
    assert texts(kept)[1] == ("error", "PermissionError: no")
    supplied = tell("tool", tool="look", arguments="{}", value=1, outcome="supplied")
    assert supplied.lines[0].facts == ("not run: the answer was supplied",)


def test_memory_tells_reads_from_writes() -> None:
    assert tell("memory", operation="get", key="tier", value="gold").lines[0].what == "reads memory tier"
    absent = tell("memory", operation="get", key="tier", value=None)
    assert texts(absent) == [("", "nothing: the key is absent")]
    written = tell("memory", operation="set", key="tier", before="tin", after="gold")
    assert (written.lines[0].what, texts(written)) == ("sets memory tier", [("before", "tin"), ("after", "gold")])
    fresh = tell("memory", operation="set", key="tier", before=None, after="gold")
    assert fresh.lines[0].texts[0].value.spans is None
    appended = tell("memory", operation="append", key="r", before=["a", "b"], after=["b", "c"])
    assert texts(appended) == [("added", "c"), ("before", '["a", "b"]')]
    assert appended.lines[0].facts == ("2 before, 2 after", "1 oldest dropped")


def test_what_a_later_version_writes_is_shown_as_it_is() -> None:
    assert texts(tell("dance", steps=3)) == [("", '{"steps": 3}')]


def test_a_brief_story_leaves_raw_values_out_and_long_ones_short() -> None:
    brief = Telling({}, brief=True)
    step = tell("model", brief, cache_key="", request=REQUEST, response=RESPONSE, decoded={"text": "y" * (SMALL + 1)})
    assert not any(said.raw for line in step.lines for said in line.texts)
    assert step.lines[1].texts[0].value.large


def test_many_messages_keep_the_last_and_say_so() -> None:
    many = [{"role": "user", "content": f"m{n}"} for n in range(500)]
    found = texts(tell("model", cache_key="", request={**REQUEST, "messages": many}, response=""))
    assert found[0][1] == "440 earlier messages are in the ledger's own lines"
    assert found[60] == ("user", "m499")


def marked(shown: Shown) -> list[str]:
    return [span.text for span in shown.spans or () if span.marked]


def test_words_are_marked_whole_and_nothing_is_lost() -> None:
    shown = emphasise(show("4900 or 49001 or (4900)"), ["4900"])
    assert marked(shown) == ["4900", "4900"]
    assert shown.text == "4900 or 49001 or (4900)"
    assert marked(emphasise(show("x" * (LARGE + 1)), ["x"])) == []
    assert len(marked(emphasise(show("4900 " * 500), ["4900"]))) == 10
