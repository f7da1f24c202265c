"""One formatter per kind of value, so that a time or a size reads the same on every page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

NOT_RECORDED: Final = "—"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


def iso(ms: int) -> str | None:
    """Epoch milliseconds as RFC 3339 for `<time datetime>`; None outside the calendar (records can lie)."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z".rjust(24, "0")


def iso_of_ns(ns: int) -> str:
    """Epoch nanoseconds as RFC 3339 to the microsecond; as the number that they are where no calendar has it."""
    try:
        moment = _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError:
        return str(ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}Z".rjust(27, "0")


def utc(ms: int | None) -> str:
    """Epoch milliseconds as people read them here: `2026-11-29 02:14:07.512Z`, always UTC."""
    if ms is None:
        return NOT_RECORDED
    text = iso(ms)
    return f"{ms} ms since 1970" if text is None else text.replace("T", " ")


def clocks(words: str) -> str:
    """Words of ours in which a clock stands as a number, with the time that people read in its place."""
    return re.sub(r"(?<=event time )\d+", lambda found: utc(int(found[0])), words)


def duration(ms: int | None) -> str:
    """A measured length of time: `84 ms`, `1.3 s`, `2 min 03 s`, `1 h 02 min`."""
    if ms is None:
        return NOT_RECORDED
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(count: int | None) -> str:
    """Bytes in binary units: `0 bytes`, `812 bytes`, `3.1 KiB`, `64 MiB`."""
    if count is None:
        return NOT_RECORDED
    if count < 1024:
        return f"{count} byte{'' if count == 1 else 's'}"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.1f}".removesuffix(".0") + f" {unit}"
    raise AssertionError("the last unit takes everything")


def number(count: int | None) -> str:
    """A count with thin spaces between thousands; a dash where nothing was counted, `0` only for a counted zero."""
    return NOT_RECORDED if count is None else f"{count:,}".replace(",", "\u202f")


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 event`, `2 events`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def short(digest: str | None, keep: int = 12) -> str:
    """The head of a digest or id, with a mark that it goes on."""
    if not digest:
        return NOT_RECORDED
    return digest if len(digest) <= keep + 1 else f"{digest[:keep]}…"
