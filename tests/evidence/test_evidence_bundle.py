"""A bundle is whole under its final name, or not there at all; and it notices when it is touched."""

import ast
import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from evidence_scene import incident_ref, still_clock

import rankpatrol
from rankpatrol.core.errors import ExitCode
from rankpatrol.core.records import Missing
from rankpatrol.evidence import bundle
from rankpatrol.evidence.bundle import (
    BundleBroken,
    BundleExists,
    BundleFromElsewhere,
    BundleNotWritten,
    BundleWriter,
    IncidentRef,
    SealedBundle,
    is_abandoned,
    reopen,
)
from rankpatrol.evidence.manifest import ManifestUnreadable, NotABundle, UnsafePath, load_manifest, verify
from rankpatrol.system.clock import Clock

of = pytest.fixture(incident_ref)
clock = pytest.fixture(still_clock)


FILES = {"diagnosis.json": b"{}", "ranks/3/stack.json": b'{"pid": 1}', "ranks/3/log_tail.txt": b"step 812\n"}


def write_bundle(final: Path, of: IncidentRef, clock: Clock, files: dict[str, bytes] = FILES) -> SealedBundle:
    with BundleWriter(final, clock) as writer:
        for name, data in files.items():
            writer.add(name, data)
        writer.rank(3, node="n1", pid=4711)
        writer.captured(3, "stack")
        writer.missing(3, "native", "pystack was not done after 8 s")
        writer.touched("rank 3: py-spy non-blocking 3x")
        return writer.seal(of)


@pytest.fixture
def sealed(tmp_path: Path, of: IncidentRef, clock: Clock) -> Path:
    write_bundle(tmp_path / "1", of, clock)
    return tmp_path / "1"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_options_that_there_are(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_path: Path) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(bundle, "_claim", full)
    with pytest.raises(BundleNotWritten) as caught:
        BundleWriter(tmp_path / "1", clock)
    assert "(run --job-dir, capture --out)" in caught.value.help
    assert left_in(tmp_path) == []


def left_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_sealed_bundle_holds_every_file_and_the_manifest_names_them(sealed: Path) -> None:
    manifest = json.loads((sealed / "manifest.json").read_text())
    assert manifest["version"] == 1
    assert manifest["files"] == {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    assert manifest["ranks"] == [
        {"rank": 3, "node": "n1", "pid": 4711, "captured": ["stack"], "missing": {"native": "pystack was not done after 8 s"}}
    ]
    assert manifest["touched"] == ["rank 3: py-spy non-blocking 3x"]
    assert verify(sealed).problems == ()


def test_proof_speaks_of_this_incident_and_of_these_bytes(tmp_path: Path, of: IncidentRef, clock: Clock) -> None:
    proof = write_bundle(tmp_path / "1", of, clock)
    assert (proof.job, proof.attempt, proof.incident, proof.onset_unix_s) == (of.job, of.attempt, of.incident, of.onset_unix_s)
    assert (proof.sealed_unix_s, proof.sealed_mono_s) == (clock.unix_s(), clock.mono_s())
    assert proof.manifest_sha256 == hashlib.sha256((tmp_path / "1" / "manifest.json").read_bytes()).hexdigest()
    assert reopen(tmp_path / "1") == proof


def test_nothing_but_the_bundle_module_makes_a_proof() -> None:
    source = Path(rankpatrol.__file__).parent
    makers = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and "SealedBundle" in ast.unparse(node.func)
    ]
    assert makers == ["evidence/bundle.py"]


def test_nothing_is_seen_under_the_final_name_before_the_seal(tmp_path: Path, clock: Clock) -> None:
    with BundleWriter(tmp_path / "1", clock) as writer:
        writer.add("diagnosis.json", b"{}")
        assert not (tmp_path / "1").exists()
    assert left_in(tmp_path) == []


def test_existing_bundle_is_never_overwritten(sealed: Path, of: IncidentRef, clock: Clock) -> None:
    with pytest.raises(BundleExists):
        BundleWriter(sealed, clock)
    assert verify(sealed).ok


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_name_taken_while_writing_is_left_alone(tmp_path: Path, of: IncidentRef, clock: Clock, kind: str) -> None:
    writer = BundleWriter(tmp_path / "1", clock)
    writer.add("diagnosis.json", b"{}")
    {
        "file": lambda path: path.write_text("mine"),
        "directory": lambda path: path.mkdir(),
        "link": lambda path: path.symlink_to("nowhere"),
    }[kind](tmp_path / "1")
    with pytest.raises(BundleNotWritten, match="took the name"):
        writer.seal(of)
    assert left_in(tmp_path) == ["1"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a/./b", "", ".", "a//b", "manifest.json", "a\0b", ".."])
def test_path_that_leads_elsewhere_is_refused(tmp_path: Path, clock: Clock, name: str) -> None:
    with BundleWriter(tmp_path / "in" / "1", clock) as writer, pytest.raises(UnsafePath):
        writer.add(name, b"x")
    assert left_in(tmp_path / "in") == []


def test_file_is_not_written_twice(tmp_path: Path, clock: Clock) -> None:
    with BundleWriter(tmp_path / "1", clock) as writer:
        writer.add("a", b"first")
        with pytest.raises(BundleExists):
            writer.add("a", b"second")


def test_writer_that_was_discarded_writes_no_more(tmp_path: Path, of: IncidentRef, clock: Clock) -> None:
    writer = BundleWriter(tmp_path / "1", clock)
    writer.discard()
    with pytest.raises(BundleNotWritten):
        writer.add("a", b"x")
    with pytest.raises(BundleNotWritten):
        writer.seal(of)
    assert left_in(tmp_path) == []


KILLED = """
import os, sys
from pathlib import Path
from rankpatrol.evidence.bundle import BundleWriter, IncidentRef
from rankpatrol.system.clock import SystemClock

until, calls, real = int(sys.argv[2]), 0, os.fsync

def stop_there(descriptor):
    global calls
    calls += 1
    if calls == until:
        print("ready", flush=True)
        sys.stdin.read()
    real(descriptor)

os.fsync = stop_there
writer = BundleWriter(Path(sys.argv[1]), SystemClock())
for number in range(3):
    writer.add(f"ranks/{number}/stack.json", b"x" * 100_000)
writer.seal(IncidentRef(job="8123", attempt=0, incident=1, onset_unix_s=0.0))
print("sealed", flush=True)
"""
# Three files, the manifest, the three folders, `ranks`, the bundle itself; the tenth flush is of the folder above, after the rename.
FLUSHES_BEFORE_RENAME = 9


@pytest.mark.parametrize("flush", [1, 4, FLUSHES_BEFORE_RENAME, FLUSHES_BEFORE_RENAME + 1])
def test_writer_killed_while_sealing_leaves_a_whole_bundle_or_none(tmp_path: Path, of: IncidentRef, clock: Clock, flush: int) -> None:
    final = tmp_path / "1"
    child = subprocess.Popen([sys.executable, "-c", KILLED, final, str(flush)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        partial = [entry for entry in tmp_path.iterdir() if entry.name != "1"]
        assert [is_abandoned(entry) for entry in partial] == [False] * len(partial)
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    if flush <= FLUSHES_BEFORE_RENAME:
        assert not final.exists()
        assert [is_abandoned(entry) for entry in partial] == [True]
        assert write_bundle(final, of, clock).path == str(final)
    assert verify(final).ok


FILLED = """
import sys
from pathlib import Path
from rankpatrol.evidence.bundle import BundleNotWritten, BundleWriter, IncidentRef
from rankpatrol.system.clock import SystemClock

final = Path(sys.argv[1])
writer = BundleWriter(final, SystemClock())
try:
    for number in range(64):
        writer.add(f"ranks/{number}/stack.json", b"x" * 100_000)
    writer.seal(IncidentRef(job="8123", attempt=0, incident=1, onset_unix_s=0.0))
except BundleNotWritten as problem:
    print(problem, problem.help, sorted(entry.name for entry in final.parent.iterdir()), sep="|")
"""


def test_full_disk_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1/1"'
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", tmp_path, sys.executable, FILLED],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip(f"no private mounts here: {result.stderr}")
    what, help_text, left = result.stdout.strip().split("|")
    assert "No space left on device" in what
    assert "The disk is full" in help_text
    assert left == "[]"


def test_file_over_the_size_limit_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FILLED, tmp_path / "1"],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert result.stdout.startswith("cannot write the bundle")
    assert result.stdout.strip().endswith("|[]")


def test_directory_that_is_a_file_is_an_error_with_help(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "incidents").write_text("")
    with pytest.raises(BundleNotWritten, match="cannot write the bundle"):
        BundleWriter(tmp_path / "incidents" / "1", clock)


def test_changed_file_is_named(sealed: Path) -> None:
    (sealed / "ranks/3/stack.json").write_bytes(b'{"pid": 2}')
    assert verify(sealed).problems == ("ranks/3/stack.json was changed after the bundle was sealed: its hash differs",)


def test_added_file_is_named(sealed: Path) -> None:
    (sealed / "ranks/3/extra.txt").write_text("hello")
    assert verify(sealed).problems == ("ranks/3/extra.txt is not listed in the manifest",)


def test_absent_file_is_named(sealed: Path) -> None:
    (sealed / "diagnosis.json").unlink()
    assert verify(sealed).problems == ("diagnosis.json is listed in the manifest but absent",)


def test_name_with_terminal_sequences_is_shown_harmless(sealed: Path) -> None:
    (sealed / "\x1b[2Jx").write_text("")
    assert verify(sealed).problems == (r"'\x1b[2Jx' is not listed in the manifest",)


def test_link_to_the_same_content_is_still_a_problem(sealed: Path, tmp_path: Path) -> None:
    stack = sealed / "ranks/3/stack.json"
    stack.rename(tmp_path / "elsewhere")
    stack.symlink_to(tmp_path / "elsewhere")
    assert verify(sealed).problems == ("ranks/3/stack.json is a symbolic link; a bundle holds plain files only",)


def test_linked_directory_is_a_problem_and_is_not_entered(sealed: Path, tmp_path: Path) -> None:
    (sealed / "ranks").rename(tmp_path / "elsewhere")
    (sealed / "ranks").symlink_to(tmp_path / "elsewhere")
    assert verify(sealed).problems == (
        "ranks is a symbolic link; a bundle holds plain files only",
        "ranks/3/log_tail.txt is listed in the manifest but absent",
        "ranks/3/stack.json is listed in the manifest but absent",
    )


def test_fifo_in_place_of_a_file_does_not_hold_the_check_up(sealed: Path) -> None:
    (sealed / "diagnosis.json").unlink()
    os.mkfifo(sealed / "diagnosis.json")
    assert verify(sealed).problems == ("diagnosis.json is not a plain file",)


def test_manifest_that_is_a_link_or_a_fifo_is_unreadable(sealed: Path, tmp_path: Path) -> None:
    (sealed / "manifest.json").rename(tmp_path / "elsewhere")
    (sealed / "manifest.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManifestUnreadable, match="symbolic link"):
        verify(sealed)
    (sealed / "manifest.json").unlink()
    os.mkfifo(sealed / "manifest.json")
    with pytest.raises(ManifestUnreadable, match="not a plain file"):
        verify(sealed)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"version": 1}', b"\xff\xfe", b"[" * 100_000, b'{"version": "1"}'])
def test_damaged_manifest_is_one_problem(sealed: Path, text: bytes) -> None:
    (sealed / "manifest.json").write_bytes(text)
    seen = verify(sealed)
    assert isinstance(seen.manifest, Missing)
    assert len(seen.problems) == 1
    with pytest.raises(ManifestUnreadable):
        load_manifest(sealed)


def test_manifest_of_a_later_version_is_not_guessed_at(sealed: Path) -> None:
    manifest = json.loads((sealed / "manifest.json").read_text())
    (sealed / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    assert verify(sealed).problems == ("manifest.json has version 2; this rankpatrol knows version 1",)


def test_manifest_cannot_make_us_read_outside(sealed: Path) -> None:
    manifest = json.loads((sealed / "manifest.json").read_text())
    outside = hashlib.sha256(Path("/etc/hostname").read_bytes()).hexdigest()
    manifest["files"]["../../../../../../../../etc/hostname"] = outside
    (sealed / "manifest.json").write_text(json.dumps(manifest))
    assert verify(sealed).problems == ("../../../../../../../../etc/hostname is listed in the manifest but absent",)


def test_capture_that_the_manifest_claims_must_be_there(tmp_path: Path, of: IncidentRef, clock: Clock) -> None:
    write_bundle(tmp_path / "1", of, clock, {"diagnosis.json": b"{}"})
    assert verify(tmp_path / "1").problems == ("rank 3: stack is said to be captured, but ranks/3/stack.json is not in the bundle",)


@pytest.mark.parametrize("what", ["nothing", "file", "empty directory"])
def test_what_is_no_bundle_is_said_so(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "file":
        path.write_text("")
    elif what == "empty directory":
        path.mkdir()
    with pytest.raises(NotABundle) as caught:
        verify(path)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_broken_bundle_proves_nothing(sealed: Path) -> None:
    (sealed / "diagnosis.json").write_text("changed")
    with pytest.raises(BundleBroken, match=r"diagnosis\.json was changed"):
        reopen(sealed)


def test_bundle_of_another_boot_proves_nothing(sealed: Path) -> None:
    manifest = load_manifest(sealed)
    (sealed / "manifest.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, boot_id="another")))
    assert verify(sealed).ok
    with pytest.raises(BundleFromElsewhere):
        reopen(sealed)
