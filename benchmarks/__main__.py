"""Print the table of `benchmarks/README.md` and write it to `.cache/bench.md`; name parts to run only those."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).parents[1] / ".cache" / "bench.md"
PARTS: Final = (
    "replays",
    "suite",
    "story",
    "sandbox",
    "flink_import",
    "flink_rerun",
    "intake",
    "live",
    "kafka",
    "pool",
)


def main(chosen: list[str]) -> int:
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    lines = ["| what | measured | goal | held | against |", "|---|---|---|---|---|"]
    print("\n".join(lines))
    for part in chosen or PARTS:
        for row in importlib.import_module(f"benchmarks.{part}").rows():
            lines.append(str(row))
            print(row, flush=True)
            TABLE.parent.mkdir(exist_ok=True)
            TABLE.write_text("\n".join([*lines, ""]))
    print(f"\nwritten to {TABLE.relative_to(Path.cwd()) if TABLE.is_relative_to(Path.cwd()) else TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
