"""What ordinary agent code may do inside, and what a run reports about itself."""

import json
import os
from pathlib import Path

from app.replay.rerun_pb2 import RerunRequest
from app.sandbox.model import Ending, Limits
from app.sandbox.runner import Sandbox
from tests.sandbox.conftest import AGENTS, QUICK, Attempt, is_root, request_for, said
from tests.waiting import PATIENCE_S


def test_a_run(attempt: Attempt, tier: str) -> None:
    finished = attempt("nice:greet", name="Ada")
    assert finished.ending is Ending.FINISHED
    assert finished.detail == ""
    assert said(finished) == "hello Ada"
    assert finished.printed == "greeting Ada\n"
    assert finished.discarded_bytes == 0
    assert finished.refusals == ()
    assert finished.duration_ms > 0


def test_its_confinement(attempt: Attempt, tier: str) -> None:
    confinement = attempt("nice:greet").confinement
    assert confinement is not None
    assert confinement.tier == tier
    baseline = {"no-new-privileges", "resource-limits", "landlock", "seccomp", "own-descriptors", "empty-environment"}
    reached = {measure.split("-7")[0].rstrip("-0123456789") for measure in confinement.measures}
    assert baseline <= reached
    spaces = {"user-namespace", "mount-namespace", "pid-namespace", "network-namespace", "ipc-namespace"}
    if tier == "namespaces":
        assert spaces <= reached
    else:
        assert not spaces & reached
        assert any(text.startswith("namespaces: ") and "not permitted" in text for text in confinement.missing)
    if not is_root():
        assert "own-user: only root can give each run a user of its own" in confinement.missing
    assert confinement.as_json() == {
        "tier": tier,
        "network": "off",
        "measures": list(confinement.measures),
        "missing": list(confinement.missing),
    }
    json.dumps(confinement.as_json())


def test_the_environment_is_empty(attempt: Attempt) -> None:
    assert said(attempt("nice:environment")) == "{}"


def test_the_result_is_the_only_open_channel(attempt: Attempt) -> None:
    assert len(json.loads(said(attempt("nice:open_descriptors")))) == 1


def test_event_loop_and_threads(attempt: Attempt) -> None:
    assert said(attempt("nice:event_loop_and_threads")) == "5"


def test_scratch_and_temporary_files(attempt: Attempt) -> None:
    finished = attempt("nice:scratch")
    assert said(finished) == "kept for this run, notes"
    assert finished.refusals == ()


def test_the_standard_library(attempt: Attempt) -> None:
    assert said(attempt("nice:standard_library")) == "1 1.5 csv Europe/Zurich"


def test_an_agent_reads_its_own_folder(attempt: Attempt) -> None:
    assert said(attempt("nice:own_code")).startswith("# ruff")


def test_the_same_everywhere_and_every_time(attempt: Attempt) -> None:
    """Time zone and the order of sets are no reason for two runs to differ."""
    assert said(attempt("nice:clock_zone")) == "1970-01-01T00:00:00"
    assert len({said(attempt("nice:order_of_a_set")) for _ in range(3)}) == 1


def test_each_run_is_a_user_of_its_own(attempt: Attempt, tier: str) -> None:
    first, second = (json.loads(said(attempt("nice:who"))) for _ in range(2))
    confinement = attempt("nice:who").confinement
    assert confinement is not None
    if "own-user" in confinement.measures:
        assert first["uid"] != second["uid"]
        assert min(first["uid"], first["gid"]) >= 65000
        assert first["groups"] == []
    else:
        assert any(text.startswith("own-user: ") for text in confinement.missing)


def test_a_changed_agent_is_seen(sandbox: Sandbox, open_folder: Path) -> None:
    file = open_folder / "changing.py"
    answers = []
    for number in (1, 2):
        file.write_text(f"def answer():\n    return {number}\n")
        answers.append(said(sandbox.run(request_for("changing:answer", (open_folder,)), QUICK)))
    assert answers == ["1", "2"]
    assert [path.name for path in open_folder.iterdir()] == ["changing.py"]


def test_an_agent_that_only_its_owner_can_read(sandbox: Sandbox, open_folder: Path) -> None:
    folder = open_folder / "private"
    folder.mkdir(mode=0o700)
    (folder / "private_agent.py").write_text("def answer():\n    return 'read'\n")
    (folder / "private_agent.py").chmod(0o600)
    if is_root():
        os.chown(folder, 1234, 1234)
        os.chown(folder / "private_agent.py", 1234, 1234)
    finished = sandbox.run(request_for("private_agent:answer", (folder,)), QUICK)
    if finished.ending is Ending.REFUSED_CONFINEMENT:
        # Only root can read the interpreter here, and root without its powers cannot read this agent.
        assert f"cannot read {folder}; make it readable" in finished.detail
        return
    assert said(finished) == "read"
    assert finished.confinement is not None
    assert any(text.startswith("own-user: ") for text in finished.confinement.missing)


def test_prints_beyond_the_limit_are_counted(attempt: Attempt) -> None:
    finished = attempt("nice:greet", Limits(wall_s=PATIENCE_S, output_bytes=8), name="Ada")
    assert finished.printed == "greeting"
    assert finished.discarded_bytes == len(" Ada\n")


def test_a_request_of_many_megabytes(sandbox: Sandbox) -> None:
    request = request_for("nice:greet")
    request.envelopes.add().external_event = bytes(20 << 20)
    finished = sandbox.run(request, Limits(wall_s=PATIENCE_S, memory_bytes=512 << 20))
    assert said(finished) == "hello world"


def test_a_result_of_many_megabytes(attempt: Attempt) -> None:
    finished = attempt("tries:large_result", Limits(wall_s=PATIENCE_S, memory_bytes=512 << 20), mib=40)
    assert len(said(finished)) == 40 << 20


def test_no_agent_at_all(sandbox: Sandbox) -> None:
    finished = sandbox.run(RerunRequest(), QUICK)
    assert finished.ending is Ending.CRASHED
    assert "Empty module name" in finished.detail


def test_an_agent_in_an_archive(sandbox: Sandbox, open_folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(open_folder / "agents.zip", "w") as archive:
        archive.write(AGENTS / "nice.py", "zipped_nice.py")
    finished = sandbox.run(request_for("zipped_nice:greet", (open_folder / "agents.zip",)), QUICK)
    assert said(finished) == "hello world"


def test_only_what_is_there_counts_as_refused(attempt: Attempt) -> None:
    """Looking for a file that nobody has is no reach for the machine."""
    paths = ["/etc/hostname", "/etc/hindcast-has-no-such-file", "/nowhere/at/all"]
    assert attempt("nice:look_for", paths=paths[1:]).refusals == ()
    finished = attempt("nice:look_for", paths=paths)
    assert "tried to read /etc/hostname" in finished.refusals
    assert not any("no-such-file" in text or "nowhere" in text for text in finished.refusals)
    assert finished.result is not None
    assert tuple(finished.result.refusals) == finished.refusals


def test_a_folder_with_very_many_entries(sandbox: Sandbox, open_folder: Path) -> None:
    """Each has to be allowed on its own where one beside them must not be read."""
    for number in range(3000):
        (open_folder / f"module_with_a_long_name_{number:05}.py").touch()
    (open_folder / ".env").write_text("secret")
    (open_folder / "crowded.py").write_text("import module_with_a_long_name_02999\ndef go(): return 'found'\n")
    assert said(sandbox.run(request_for("crowded:go", (open_folder,)), QUICK)) == "found"
