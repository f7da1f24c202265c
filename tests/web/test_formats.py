"""One formatter per kind of value; none of them breaks on what a record may claim."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.web import formats


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01 00:00:00.000Z"),
        (1_795_918_447_512, "2026-11-29 02:14:07.512Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (-62_135_596_800_000, "0001-01-01 00:00:00.000Z"),
        (2**62, f"{2**62} ms since 1970"),
        (None, "—"),
    ],
)
def test_times_are_utc_with_milliseconds(ms: int | None, text: str) -> None:
    assert formats.utc(ms) == text


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_64_bit_time_can_be_shown(ms: int) -> None:
    machine = formats.iso(ms)
    assert machine is None or re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", machine)
    assert formats.utc(ms)


def test_sizes_counts_and_lengths_of_time() -> None:
    sizes = {0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1024: "1 KiB", 3174: "3.1 KiB", 64 << 20: "64 MiB"}
    assert {size: formats.size(size) for size in sizes} == sizes
    assert formats.size(5 << 60) == "5242880 TiB"
    times = {0: "0 ms", 999: "999 ms", 1300: "1.3 s", 123_000: "2 min 03 s", 3_720_000: "1 h 02 min"}
    assert {ms: formats.duration(ms) for ms in times} == times
    assert formats.number(1_234_567) == "1\u202f234\u202f567"
    assert (formats.plural(1, "event"), formats.plural(0, "event")) == ("1 event", "0 events")


def test_not_recorded_is_a_dash_and_zero_is_zero() -> None:
    for formatter in (formats.utc, formats.duration, formats.size, formats.number, formats.short):
        assert formatter(None) == "—"
    assert (formats.number(0), formats.size(0)) == ("0", "0 bytes")


def test_digests_keep_their_head() -> None:
    assert formats.short("ab" * 32) == "abababababab…"
    assert formats.short("short") == "short"


def test_a_clock_in_words_is_a_time() -> None:
    told = "the answer to intent 7 of event time 1795918447512, one of a batch of 3"
    assert formats.clocks(told) == "the answer to intent 7 of event time 2026-11-29 02:14:07.512Z, one of a batch of 3"
    assert formats.clocks("traces of the key") == "traces of the key"


# complaint 36: one helper writes times, and nothing else does
def test_no_other_module_formats_a_time() -> None:
    web = Path(formats.__file__).parent
    elsewhere = [path for path in web.glob("*.py") if path.name != "formats.py"]
    templates = list((web.parents[1] / "templates").glob("*.html"))
    assert elsewhere
    assert templates
    for path in [*elsewhere, *templates]:
        text = path.read_text()
        assert "strftime" not in text, path
        assert ".isoformat(" not in text, path
        assert "fromtimestamp" not in text, path
        assert path.name == "_macros.html" or "<time" not in text, path
