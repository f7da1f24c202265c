# ruff: noqa: PTH208, PTH211
"""An agent that does nothing wrong, with the tools that ordinary agents use."""

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path


def greet(name="world"):
    print(f"greeting {name}")
    return f"hello {name}"


def environment():
    return json.dumps(dict(os.environ))


def open_descriptors():
    """What is open beside the standard three, told without /proc."""
    found = []
    for number in range(3, 1024):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return json.dumps(found)


def event_loop_and_threads():
    async def main():
        results = await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(4)), asyncio.sleep(0.01))
        return len(results)

    return asyncio.run(main())


def scratch():
    """Files in the working directory and through `tempfile`."""
    Path("notes/deep").mkdir(parents=True)
    Path("notes/deep/a.txt").write_text("kept for this run")
    Path("notes/deep/a.txt").rename("notes/b.txt")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "c").write_text("c")
    os.symlink("b.txt", "notes/link")
    text = Path("notes/link").read_text()
    Path("notes/b.txt").unlink()
    return text + ", " + ", ".join(sorted(os.listdir(".")))


def clock_zone():
    return datetime.fromtimestamp(0).isoformat()  # noqa: DTZ006


def order_of_a_set():
    return list({"alpha", "beta", "gamma", "delta", "epsilon", "zeta"})


def standard_library():
    """Modules that nobody had loaded before."""
    import csv
    import decimal
    import sqlite3
    import zoneinfo

    with sqlite3.connect(":memory:") as database:
        (one,) = database.execute("select 1").fetchone()
    return f"{one} {decimal.Decimal('1.5')} {csv.__name__} {zoneinfo.ZoneInfo('Europe/Zurich').key}"


def who():
    return json.dumps({"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "pid": os.getpid()})


def leave_something():
    """Marks that another run must not see."""
    sys.modules["json"].left_behind = "by an earlier run"
    threading.left_behind = bytearray(b"secret of an earlier run" * 1000)
    Path("left-behind").write_text("by an earlier run")


def find_something():
    return hasattr(json, "left_behind"), hasattr(threading, "left_behind"), os.listdir(".")


def nap(seconds):
    begun = time.monotonic()
    time.sleep(seconds)
    return f"{begun} {time.monotonic()}"


def own_code():
    return Path(__file__).read_text().splitlines()[0]


def look_for(paths):
    """As programs look for an optional file in several places."""
    found = []
    for path in paths:
        try:
            found.append(Path(path).read_text())
        except OSError:
            continue
    return found
