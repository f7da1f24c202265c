"""Generate the protobuf modules beside the code that uses them, or say where they have drifted (`--check`).

A file `proto/app/<room>/<name>.proto` becomes `app/<room>/<name>_pb2.py` and its type stub.
"""

import argparse
import difflib
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "proto"


def generate(target: Path) -> list[Path]:
    """Write every module below `target` and return their paths, relative to it."""
    names = sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.proto"))
    code = protoc.main(["protoc", f"-I{SOURCES}", f"--python_out={target}", f"--pyi_out={target}", *names])
    if code:
        sys.exit("error: protoc refused the definitions in proto/; see the lines above")
    return sorted(Path(name).with_name(Path(name).stem + end) for name in names for end in ("_pb2.py", "_pb2.pyi"))


def drift() -> list[str]:
    """Return the lines in which the committed modules differ from freshly generated ones."""
    with tempfile.TemporaryDirectory() as folder:
        expected = generate(Path(folder))
        lines: list[str] = []
        for name in expected:
            committed = (ROOT / name).read_text().splitlines() if (ROOT / name).is_file() else []
            fresh = (Path(folder) / name).read_text().splitlines()
            lines += difflib.unified_diff(committed, fresh, f"committed {name}", f"generated {name}", lineterm="", n=0)
    stray = {path.relative_to(ROOT) for path in (ROOT / "app").rglob("*_pb2.py*") if path.suffix != ".pyc"} - set(
        expected
    )
    return lines + [f"{name} comes from no file in proto/" for name in sorted(stray)]


def main() -> int:
    """Generate, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the modules have drifted")
    if not parser.parse_args().check:
        print("\n".join(map(str, generate(ROOT))))
        return 0
    lines = drift()
    for line in lines:
        print(line[:200])
    if lines:
        print("error: generated protobuf modules have drifted from proto/; run: make proto", file=sys.stderr)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
