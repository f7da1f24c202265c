"""The recordings as a folder: tests want paths, the repository wants one small file."""

import hashlib
import os
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path, PurePosixPath

ARCHIVE = Path(__file__).parent / "data" / "recordings.tar.xz"
CACHE = Path(__file__).parents[2] / ".cache" / "golden"


@cache
def corpus() -> Path:
    """Unpack the recordings, unless this very archive was unpacked before, and return the folder.

    It holds `corpus/`, `corpus_multi/`, `pipeline/`, `truth.json` and `README.md`. Treat it as read-only: it
    outlives the test run, and every test process shares it.
    """
    target = CACHE / hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()[:16]
    if not target.is_dir():
        _unpack(ARCHIVE, target)
    return target


def _unpack(archive: Path, target: Path) -> None:
    # Several test processes may come here at once: each unpacks for itself and the first to rename wins, so a
    # folder under the final name is always whole.
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        _extract(archive, scratch)
        scratch.chmod(0o755)
        os.rename(scratch, target)  # noqa: PTH104  Path.rename says the same, but hides that this is the atomic step
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    contents: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if not (member.isreg() or member.islnk()) or member.name.startswith("/") or ".." in parts:
                raise ValueError(f"{archive.name} holds {member.name!r}, which is not a plain file; rebuild it")
            # A link stands for equal bytes. It becomes a file of its own, so that changing one changes no other.
            stream = None if member.islnk() else tar.extractfile(member)
            contents[member.name] = contents[member.linkname] if stream is None else stream.read()
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[member.name])
