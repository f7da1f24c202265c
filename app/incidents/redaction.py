"""What somebody may see who was not meant to see everything: a closed list passes, everything else is its shape.

Deny by default: types, steps, counts, states, surfaces, verdicts and times pass, and only where they are what they
claim to be (a number, a word of ours). Any other value becomes its shape and a short digest. Equal values have equal
digests under one key, and the key never leaves the server, so that nobody can look a value up by hashing guesses.

`Reveal` names what an owner may open. `Rules` (from `[redaction]` of the configuration) hold even for what is opened.
"""

from __future__ import annotations

import fnmatch
import hmac
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Protocol

DIGEST_CHARACTERS: Final = 10
_DEEPEST: Final = 200


class Reveal(StrEnum):
    """What can be opened, each by itself; `TEXTS` are sentences that may quote any of the others."""

    KEY = "key"
    NAMES = "names"
    PAYLOADS = "payloads"
    MEMORY = "memory"
    TEXTS = "texts"


EVERYTHING: Final = frozenset(Reveal)


class RedactionSettings(Protocol):
    """The `[redaction]` table of the configuration."""

    @property
    def attributes(self) -> Sequence[str]: ...
    @property
    def paths(self) -> Sequence[str]: ...
    @property
    def patterns(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Rules:
    """What stays hidden whatever is opened.

    `attributes` are names of attributes, arguments or memory (`*` and `?` as in file names), `paths` lead into JSON
    values (`$.card.number`, `$.items[*].name`, `$..email`), `patterns` are regular expressions over any text.
    """

    attributes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: RedactionSettings) -> Rules:
        return cls(tuple(settings.attributes), tuple(settings.paths), tuple(settings.patterns))

    def covers(self, name: str) -> bool:
        """Whether a rule names this attribute, argument or key of memory."""
        bare = name.removeprefix("attributes.")
        return any(fnmatch.fnmatchcase(bare, rule) or fnmatch.fnmatchcase(name, rule) for rule in self.attributes)

    def covers_path(self, path: str) -> bool:
        """Whether a rule names this place in a JSON value, written `.card.numbers[0]`."""
        return any(rule.fullmatch(path) for rule in self._paths)

    @cached_property
    def _paths(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(path_pattern, self.paths))

    @cached_property
    def texts(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(re.compile, self.patterns))


NO_RULES: Final = Rules()
_STEP: Final = re.compile(r"\.\.(?P<deep>[^.\[\]]+)|\.(?P<name>[^.\[\]]+)|\[(?P<index>\d+|\*)\]")


def path_pattern(path: str) -> re.Pattern[str]:
    """Turn a JSON path into a pattern over places. Raises `ValueError` for what is no path."""
    rest = path.removeprefix("$")
    rest = rest if rest.startswith((".", "[")) else f".{rest}"
    made, at = "", 0
    while at < len(rest):
        step = _STEP.match(rest, at)
        if step is None:
            raise ValueError(f"{path!r} is not a JSON path such as $.card.number, $.items[*].name or $..email")
        if step["deep"]:
            made += r"(?:\.[^.\[\]]*|\[\d+\])*\." + _member(step["deep"])
        elif step["name"]:
            made += r"\." + _member(step["name"])
        else:
            made += r"\[\d+\]" if step["index"] == "*" else rf"\[{step['index']}\]"
        at = step.end()
    return re.compile(made, re.DOTALL)


def _member(name: str) -> str:
    return r"[^.\[\]]*" if name == "*" else re.escape(name)


def _place(name: str) -> str:
    """A member's name as one step of a place: what separates steps cannot stand in it."""
    return "." + re.sub(r"[.\[\]]", "_", name)


@dataclass(frozen=True)
class Redactor:
    """Hides everything but what `reveal` opens; `key` makes the digests and stays on the server."""

    key: bytes = field(repr=False)
    reveal: frozenset[Reveal] = frozenset()
    rules: Rules = NO_RULES

    @property
    def redacts(self) -> bool:
        """Whether anything is hidden by default."""
        return self.reveal != EVERYTHING

    def shows(self, *groups: Reveal) -> bool:
        return all(group in self.reveal for group in groups)

    def digest(self, data: bytes) -> str:
        """A short digest that only this share's key can make."""
        return hmac.digest(self.key, data, "sha256").hex()[:DIGEST_CHARACTERS]

    def hidden(self, value: Any) -> str:
        """The shape of a value and its digest: `‹text, 24 characters · 3f2a9c1b4d›`."""
        return f"‹{shape(value)} · {self.digest(_bytes(value))}›"

    def text(self, value: str | None, *groups: Reveal, name: str = "") -> str | None:
        """A text, open if all of `groups` are and no rule forbids it; what is not there stays so."""
        if value is None:
            return None
        if not self.shows(*(groups or EVERYTHING)) or (name and self.rules.covers(name)):
            return self.hidden(value)
        return self.masked(self._by_paths(value, name))

    def masked(self, text: str) -> str:
        """A text with every match of the configured patterns replaced."""
        for pattern in self.rules.texts:
            text = pattern.sub(lambda match: self.hidden(match[0]) if match[0] else "", text)
        return text

    def entity_key(self, key: bytes | None) -> bytes | str | None:
        """The key itself where it is open, else its shape and digest."""
        if key is None:
            return None
        text = key.decode("utf-8", "replace")
        hides = self.rules.covers("entity_key") or self.masked(text) != text or self.masked(key.hex()) != key.hex()
        return key if self.shows(Reveal.KEY) and not hides else self.hidden(key)

    def json(self, value: Any, *groups: Reveal, place: str = "") -> Any:
        """A JSON value: whole where it is open (less what rules name), else one shape."""
        if value is None:
            return None
        if not self.shows(*(groups or EVERYTHING)):
            return self.hidden(value)
        return self._pruned(value, place, 0)

    def _pruned(self, value: Any, place: str, depth: int) -> Any:
        if (place and self.rules.covers_path(place)) or depth > _DEEPEST:
            return self.hidden(value)
        if isinstance(value, Mapping):
            return {
                self.masked(str(name)): self.hidden(item)
                if self.rules.covers(str(name))
                else self._pruned(item, place + _place(str(name)), depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._pruned(item, f"{place}[{n}]", depth + 1) for n, item in enumerate(value)]
        if isinstance(value, str):
            return self.masked(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            plain = json.dumps(value)
            return value if self.masked(plain) == plain else self.hidden(value)
        return value

    def _by_paths(self, value: str, name: str) -> str:
        """Apply JSON paths to a text that is JSON; a leaf (`args.amount`) knows its place by its name."""
        if not self.rules.paths and not self.rules.attributes:
            return value
        place = "." + name.partition(".")[2] if name.startswith("args.") else ""
        if place and self.rules.covers_path(place):
            return self.hidden(value)
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
        if not isinstance(parsed, dict | list):
            return value
        pruned = self._pruned(parsed, place, 0)
        return value if pruned == parsed else json.dumps(pruned, ensure_ascii=False, separators=(",", ":"))


def shape(value: Any) -> str:
    """What kind of value this is, and how large: never what it says."""
    match value:
        case bytes():
            return f"{len(value)} bytes"
        case bool():
            return "yes or no"
        case int() | float():
            return "number"
        case Mapping():
            return f"object, {_count(len(value), 'member')}"
        case list() | tuple():
            return f"list, {_count(len(value), 'item')}"
        case str():
            return _text_shape(value)
    return "value"


def _text_shape(text: str) -> str:
    if text[:1] in ("{", "[", '"') or re.fullmatch(r"-?\d[\d.eE+-]{0,40}", text):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return f"text, {_count(len(text), 'character')}"
        if not isinstance(parsed, str):
            return shape(parsed)
        return f"text, {_count(len(parsed), 'character')}"
    return f"text, {_count(len(text), 'character')}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _bytes(value: Any) -> bytes:
    """The bytes that stand for a value in a digest; a text and its bytes are the same value."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        value = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return str(value).encode("utf-8", "surrogatepass")


def chosen(names: Collection[str]) -> frozenset[Reveal]:
    """Read names of `Reveal`. Raises `ValueError` naming one that is not known."""
    for name in names:
        if name not in {str(each) for each in Reveal}:
            raise ValueError(f"{name!r} cannot be revealed; there are {', '.join(Reveal)}")
    return frozenset(map(Reveal, names))


# Errors --------------------------------------------------------------------------------------------------------------

_FRAME: Final = re.compile(r'\s*File ".*[/\\](app[/\\][\w/\\]+\.py)", line (\d+), in (\w+)')
_RAISED: Final = re.compile(r"((?:app|psycopg|sqlalchemy)(?:\.\w+)+|[A-Z]\w*(?:Error|Exception|Interrupt)): ?")
_HEAD: Final = re.compile(r"Hindcast [\w.]+, Python [\w.]+, \w+ \w+")


def outline(error: str) -> str:
    """An error's report without anything that an exception may quote: versions, our own frames, kinds of exceptions.

    This is what may be stored where people look who may not see payloads; the report itself stays with the operators.
    """
    return "\n".join(dict.fromkeys(_outline(error))) or f"({shape(error)})"


def _outline(error: str) -> Iterator[str]:
    for line in error.splitlines():
        if _HEAD.fullmatch(line):
            yield line
        elif frame := _FRAME.match(line):
            yield f"{frame[1]}:{frame[2]} in {frame[3]}"
        elif (raised := _RAISED.match(line)) and _known_exception(raised[1]):
            yield f"{raised[1]} ({shape(line[raised.end() :])})"


def _known_exception(name: str) -> bool:
    import builtins

    return "." in name or isinstance(getattr(builtins, name, None), type)
