"""The archive and the folder are the same data, whichever way it is turned."""

import json
import lzma
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.golden import corpus, recordings
from tests.golden.pack import bundle


def test_layout() -> None:
    """Everything that the recordings' own index names is there."""
    folder = corpus()
    found: set[str] = set()
    for part, count in (("corpus", 163), ("corpus_multi", 51)):
        scenarios = {path.name for path in (folder / part).iterdir() if path.is_dir()}
        assert len(scenarios) == count
        assert all((folder / part / name / "expected.json").is_file() for name in scenarios)
        found |= scenarios
    assert found == set(json.loads((folder / "truth.json").read_text()))


def test_packing_the_unpacked_folder_gives_the_same_tar() -> None:
    """The compressor may change its mind between versions; what it compresses may not."""
    assert bundle(corpus()) == lzma.decompress(recordings.ARCHIVE.read_bytes())


def test_many_processes_unpack_at_once(tmp_path: Path) -> None:
    """The first to finish wins, the others use its folder, and nobody leaves a half-written one behind."""
    target = tmp_path / "cache" / "digest"
    with get_context("spawn").Pool(3) as pool:
        pool.starmap(recordings._unpack, [(recordings.ARCHIVE, target)] * 3)
    assert [path.name for path in target.parent.iterdir()] == ["digest"]
    assert bundle(target) == bundle(corpus())


def test_a_link_out_of_the_folder_is_not_packed(tmp_path: Path) -> None:
    """A link would make the archive depend on the machine that packed it."""
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="not a plain file"):
        bundle(tmp_path)
