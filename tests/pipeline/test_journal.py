"""The journal gives back what was written, whole entries or nothing, and lets one process in."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.journal import Journal, JournalError, Outgoing
from app.pipeline.keyed import EMPTY, KeyState, Marks, Stream

cells = st.none() | st.binary(max_size=8)
several = st.lists(st.binary(max_size=5), max_size=3).map(tuple)
marks = st.none() | st.integers(-5, 2**63 - 1)
states = st.builds(
    KeyState,
    memory=cells,
    cache=cells,
    continuation=cells,
    pending=several,
    seq=st.integers(0, 9),
    batch=several,
    marks=st.builds(Marks, marks, marks, marks),
)
records = st.builds(Outgoing, st.sampled_from(Stream), st.binary(max_size=3), st.binary(max_size=9))
entries = st.fixed_dictionaries(
    {
        "states": st.dictionaries(st.sampled_from([b"", b"a", b"\xff"]), st.one_of(states, st.just(EMPTY)), max_size=3),
        "records": st.lists(records, max_size=3),
        "offsets": st.dictionaries(st.integers(0, 3), st.integers(0, 99), max_size=2),
        "watermark_ms": st.integers(0, 99),
    }
)


def write(path: Path, written: list, delivered_after: int | None = None) -> None:  # type: ignore[type-arg]
    with Journal(path) as journal:
        for index, entry in enumerate(written):
            journal.append(**entry)
            if index == delivered_after:
                journal.delivered()


@given(st.lists(entries, max_size=5), st.none() | st.integers(0, 4))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    written: list,  # type: ignore[type-arg]
    delivered_after: int | None,
) -> None:
    path = tmp_path_factory.mktemp("journal") / "state" / "journal"
    write(path, written, delivered_after)
    expected: dict[bytes, KeyState] = {}
    offsets: dict[int, int] = {}
    for entry in written:
        expected.update(entry["states"])
        offsets.update(entry["offsets"])
    unsent = [
        one
        for index, entry in enumerate(written)
        if index > _last(written, delivered_after)
        for one in entry["records"]
    ]
    for _ in range(2):  # reading writes the file anew, which must not change what it says
        with Journal(path) as journal:
            kept = journal.kept
            assert kept.states == {key: state for key, state in expected.items() if state != EMPTY}
            assert kept.offsets == offsets
            assert kept.unsent == unsent
            assert kept.watermark_ms == (written[-1]["watermark_ms"] if written else 0)


def _last(written: list, delivered_after: int | None) -> int:  # type: ignore[type-arg]
    return -1 if delivered_after is None or delivered_after >= len(written) else delivered_after


def one(number: int) -> dict:  # type: ignore[type-arg]
    return {
        "states": {b"k": KeyState(seq=number, memory=b"m" * 20)},
        "records": [Outgoing(Stream.TRACES, b"k", b"t%d" % number)],
        "offsets": {0: number},
        "watermark_ms": number,
    }


def test_an_entry_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """Cut anywhere, as a kill may cut it: what is left is the state after some entry."""
    path = tmp_path / "journal"
    write(path, [one(1), one(2), one(3)])
    data = path.read_bytes()
    start = data.index(b"\n") + 1
    for cut in (0, *range(start, len(data) + 1)):
        path.write_bytes(data[:cut])
        with Journal(path) as journal:
            kept = journal.kept
        seq = kept.states.get(b"k", EMPTY).seq
        assert kept.offsets == ({0: seq} if seq else {})
        assert [record.value for record in kept.unsent] == [b"t%d" % number for number in range(1, seq + 1)]


def test_going_on_after_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, [one(1), one(2)])
    path.write_bytes(path.read_bytes()[:-3])
    write(path, [one(5)])
    with Journal(path) as journal:
        assert [record.value for record in journal.kept.unsent] == [b"t1", b"t5"]


def test_it_grows_no_further_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.pipeline.journal._COMPACT_FROM", 2000)
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for number in range(1, 400):
            journal.append(**one(number))
            journal.delivered()
            assert path.stat().st_size < 2500
    with Journal(path) as journal:
        assert journal.kept.states[b"k"].seq == 399
        assert journal.kept.unsent == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path), pytest.raises(JournalError, match="held by another process"):
        Journal(path)
    Journal(path).close()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"hello", "is not a journal: name another file"),
        (b"hindcast pipeline journal 2\n", "is not a journal"),
        (b"hindcast pipeline journal 1\n\x05hello", r"damaged journal \(not a JournalEntry"),
        (b"hindcast pipeline journal 1\n" + b"\xff" * 20, r"damaged journal \(byte 0: a frame length"),
        (b"hindcast pipeline journal 1\n\x04\x12\x02\x0a\x00", r"damaged journal \('' is not a valid Stream"),
    ],
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "journal"
    path.write_bytes(data)
    with pytest.raises(JournalError, match=problem):
        Journal(path)
    assert path.read_bytes() == data


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", sync=True) as journal:
        journal.append(**one(1))
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
