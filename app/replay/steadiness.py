"""Whether an agent's code could give another result from the same inputs: by the clock, by chance, by the world.

Read off what its modules name, without running anything. It errs towards `may vary`: a run that is then made twice
costs time, one that is wrongly trusted costs the truth.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dis import get_instructions, opmap
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

# Packages whose functions give the same from the same, as far as agents use them.
_STEADY: Final = frozenset(
    {
        "__future__",
        "abc",
        "app",
        "ast",
        "asyncio",
        "base64",
        "beam_agents",
        "binascii",
        "builtins",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "decimal",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "html",
        "itertools",
        "json",
        "logging",
        "math",
        "numbers",
        "operator",
        "pydantic",
        "pydantic_core",
        "re",
        "statistics",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "typing_extensions",
        "unicodedata",
        "zlib",
        "google",
    }
)
_VARYING: Final = frozenset(
    {
        "datetime",
        "environ",
        "getenv",
        "getpid",
        "gettempdir",
        "hostname",
        "localtime",
        "monotonic",
        "now",
        "open",
        "perf_counter",
        "random",
        "secrets",
        "shuffle",
        "socket",
        "time",
        "today",
        "urandom",
        "utcnow",
        "uuid",
        "uuid1",
        "uuid4",
    }
)
# What wraps an agent of a framework: an instance says nothing of the module that the framework is imported in.
_ADAPTERS: Final = frozenset({"AdkAgent", "LangGraphAgent", "PydanticAIAgent"})
_IMPORT: Final = opmap["IMPORT_NAME"]


def may_vary(folders: Iterable[str], loaded_before: int = 0) -> bool:
    """Whether any loaded module below the agent's folders names what could give another result in another run.

    `loaded_before` modules were loaded before the agent's. They are not looked at: in a forked process each look makes
    pages its own, and there are hundreds.
    """
    below = tuple(folders)
    own = _below(below, len(sys.modules) - loaded_before) or _below(below, len(sys.modules))
    return any(_varies(module, {one.__name__ for one in own}) for module in own) if below else True


def _below(folders: tuple[str, ...], latest: int) -> list[ModuleType]:
    """Of the `latest` modules that were loaded, those whose files lie below the folders."""
    modules = list(islice(reversed(sys.modules.values()), max(0, latest)))
    return [module for module in modules if (getattr(module, "__file__", None) or "").startswith(folders)]


def _varies(module: ModuleType, own: set[str]) -> bool:
    for name, value in list(vars(module).items()):
        if name.startswith("__"):
            continue
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(home, str) and not _steady(home, own):
            return True
        if any(kind.__name__ in _ADAPTERS for kind in type(value).__mro__):
            return True
    return any((_VARYING | _ADAPTERS) & set(code.co_names) or not _steady_imports(code, own) for code in _codes(module))


def _steady(home: str, own: set[str]) -> bool:
    return home in own or home.partition(".")[0] in _STEADY


def _steady_imports(code: CodeType, own: set[str]) -> bool:
    """Whether what a code object imports when it runs is the agent's own, or steady."""
    if _IMPORT not in code.co_code[::2]:
        return True
    named = (one.argval for one in get_instructions(code) if one.opcode == _IMPORT)
    return all(not name or _steady(name, own) for name in named)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Every code object that a module defines: functions, methods, and what is nested in them."""
    waiting: list[Any] = [v for v in vars(module).values() if getattr(v, "__module__", None) == module.__name__]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            waiting.append(one.__code__)
        elif isinstance(one, CodeType):
            yield one
            waiting += [const for const in one.co_consts if isinstance(const, CodeType)]
        elif isinstance(one, type):
            waiting += vars(one).values()
        else:
            waiting += [getattr(one, name, None) for name in ("__func__", "__wrapped__", "fget", "function")]
