"""The agent's files are compiled once for many runs, and a changed one is seen by the very next."""

import hashlib
import os
import py_compile
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

from app.sandbox import compiled
from app.sandbox.compiled import Compiled, compile_files
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import QUICK, request_for, said
from tests.waiting import until

AGENT = """
from importlib.machinery import SourceFileLoader

def version():
    kept = next(cell.cell_contents for cell in SourceFileLoader.source_to_code.__closure__
                if isinstance(cell.cell_contents, dict))
    return f"ONE {any(path == __file__ for path, _ in kept)}"
"""


def test_a_file_is_compiled_once_and_a_changed_one_is_seen(sandbox: Sandbox, open_folder: Path) -> None:
    file = open_folder / "compiled_agent.py"
    file.write_text(AGENT)
    # What is hard to compile stops neither the process that compiles nor any run.
    (open_folder / "a_deep.py").write_text("(" * 100_000)
    (open_folder / "a_wide.py").write_text("x = " + "-" * 100_000 + "1\n")
    os.mkfifo(open_folder / "a_pipe.py")
    request = request_for("compiled_agent:version", (open_folder,))

    def is_compiled() -> bool:
        told = said(sandbox.run(request, QUICK))
        assert told in ("ONE False", "ONE True")
        return told == "ONE True"

    until(is_compiled)
    file.write_text(AGENT.replace("ONE", "TWO"))
    assert said(sandbox.run(request, QUICK)).startswith("TWO")
    file.write_text(AGENT)  # its content counts, not its time
    assert said(sandbox.run(request, QUICK)) == "ONE True"


POISON = """
from importlib.machinery import SourceFileLoader

def poison():
    kept = next(cell.cell_contents for cell in SourceFileLoader.source_to_code.__closure__
                if isinstance(cell.cell_contents, dict))
    for key in list(kept):
        kept[key] = b"poison"
    return f"poisoned {len(kept)}"
"""


def test_what_a_run_does_to_compiled_files_is_its_own_affair(sandbox: Sandbox, open_folder: Path) -> None:
    (open_folder / "poisoning_agent.py").write_text(POISON)
    request = request_for("poisoning_agent:poison", (open_folder,))

    def poisoned() -> str:
        words = said(sandbox.run(request, QUICK))
        return "" if words == "poisoned 0" else words

    told = until(poisoned, "that something is compiled")
    assert told.startswith("poisoned")
    assert said(sandbox.run(request, QUICK)) == told  # read from what was compiled, and poisoned for itself again


def sent(folder: Path, known: dict[compiled.Key, bytes] | None = None) -> dict[compiled.Key, bytes]:
    """What compiling a folder sends, by way of the process that does it."""
    kept = Compiled()
    kept.code = dict(known or {})
    kept.begin(lambda send: compile_files([str(folder)], kept.code, send))
    assert kept.descriptor is not None
    os.set_blocking(kept.descriptor, True)
    while kept.receive():
        pass
    assert not kept.is_due()
    return kept.code


def test_what_is_compiled_and_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "venv").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    for name in ("venv/lib.py", ".hidden/secret.py", "package/inner.py", "ordinary.py", "data.txt"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def:\n")
    (tmp_path / "deep.py").write_text("(" * 5000 + ")" * 5000)
    (tmp_path / "nul.py").write_bytes(b"x = 1\0")
    (tmp_path / "huge.py").write_text("#" * (5 << 20))
    os.mkfifo(tmp_path / "pipe.py")
    found = sent(tmp_path)
    digest = hashlib.sha256(b"x = 1\n").digest()
    assert set(found) == {(f"{tmp_path}/{name}", digest) for name in ("ordinary.py", "package/inner.py")}
    assert sent(tmp_path, found) == found  # known already: nothing is sent again


def test_what_was_cut_off_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    ours, theirs = os.pipe()
    compile_files([str(tmp_path)], {}, theirs)
    os.close(theirs)
    whole = os.read(ours, 1 << 16)
    os.close(ours)
    assert len(dict(compiled._frames(whole))) == 1
    for cut in range(len(whole)):
        assert dict(compiled._frames(whole[:cut])) == {}


def test_the_import_system_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "imported.py"
    file.write_text("x = 1\n")
    monkeypatch.setattr(SourceFileLoader, "source_to_code", SourceFileLoader.source_to_code)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    kept = Compiled()
    kept.code = sent(tmp_path)
    kept.serve()
    loader = SourceFileLoader("imported", str(file))
    code = loader.get_code("imported")
    assert isinstance(code, CodeType)
    assert code.co_filename == str(file)
    (key,) = kept.code
    kept.code[key] = b"not code at all"
    with pytest.raises(ValueError, match="marshal"):
        loader.get_code("imported")
    file.write_text("x = 2\n")
    assert loader.get_code("imported") is not None
    py_compile.compile(str(file))
    assert loader.get_code("imported") is not None


def test_the_process_itself_makes_no_code_of_it() -> None:
    known = Compiled()
    known.code[("a.py", b"digest")] = b"code"
    given = known.code
    with known.set_aside():
        assert given == {}
    assert given == known.code == {("a.py", b"digest"): b"code"}
