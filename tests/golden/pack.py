"""Rebuild the archive of recordings from a folder: `python tests/golden/pack.py SOURCE [ARCHIVE]`.

The same folder gives the same bytes: entries are sorted, times, owners and modes are fixed, and a file that
repeats an earlier one is stored as a link to it.
"""

import hashlib
import io
import lzma
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parent / "data" / "recordings.tar.xz"


def bundle(source: Path) -> bytes:
    """Return every file below `source` as one uncompressed tar; anything but plain files and folders is an error.

    What Python compiled while the recorded agents were imported is left out.
    """
    buffer = io.BytesIO()
    first: dict[bytes, str] = {}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(source.rglob("*"), key=lambda path: path.relative_to(source).as_posix()):
            if (path.is_dir() and not path.is_symlink()) or "__pycache__" in path.parts:
                continue
            if not path.is_file() or path.is_symlink():
                raise ValueError(f"{path} is not a plain file; only plain files can be packed")
            data = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(source).as_posix())
            entry.mode = 0o644
            original = first.setdefault(hashlib.sha256(data).digest(), entry.name)
            if original != entry.name and data:
                entry.type, entry.linkname = tarfile.LNKTYPE, original
                tar.addfile(entry)
            else:
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def main(arguments: list[str]) -> int:
    """Pack the folder named on the command line and say how large it became."""
    if len(arguments) not in (1, 2) or not Path(arguments[0]).is_dir():
        print(
            "usage: python tests/golden/pack.py SOURCE [ARCHIVE]   (SOURCE: the folder of recordings)", file=sys.stderr
        )
        return 2
    archive = Path(arguments[1]) if len(arguments) == 2 else ARCHIVE
    data = lzma.compress(bundle(Path(arguments[0])), preset=9 | lzma.PRESET_EXTREME)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(data)
    print(f"{archive}: {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
