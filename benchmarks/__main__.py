"""Print the table that `benchmarks/README.md` reports; name parts to run only those."""

from __future__ import annotations

import importlib
import sys
from typing import Final

PARTS: Final = ("replays", "suite", "story", "sandbox", "flink_import", "flink_rerun", "intake", "live", "kafka", "pool")


def main(chosen: list[str]) -> int:
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    print("| what | measured | goal | held | against |\n|---|---|---|---|---|")
    for part in chosen or PARTS:
        for row in importlib.import_module(f"benchmarks.{part}").rows():
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
