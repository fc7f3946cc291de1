"""What was found lies in the bundle, in CONTRACT's layout, without its secrets, and comes out again as it went in."""

import json
from pathlib import Path

import msgspec
import pytest
from evidence_scene import incident_ref, still_clock, stuck_findings

from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Snapshot
from rankpatrol.evidence.bundle import BundleNotWritten, IncidentRef, SealedBundle
from rankpatrol.evidence.capture import Findings, seal
from rankpatrol.evidence.findings import without_secrets
from rankpatrol.evidence.manifest import Manifest, verify
from rankpatrol.evidence.reading import PartUnreadable, load_diagnosis, load_snapshot
from rankpatrol.system.clock import Clock

of = pytest.fixture(incident_ref)
clock = pytest.fixture(still_clock)
findings = pytest.fixture(stuck_findings)


@pytest.fixture
def sealed(tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock) -> Path:
    seal(tmp_path / "1", of, findings, clock)
    return tmp_path / "1"


def manifest_of(bundle: Path) -> Manifest:
    seen = verify(bundle)
    assert seen.problems == ()
    assert isinstance(seen.manifest, Manifest)
    return seen.manifest


def with_rank(snapshot: Snapshot, rank: int, **changes: object) -> Snapshot:
    ranks = tuple(msgspec.structs.replace(sample, **changes) if sample.rank == rank else sample for sample in snapshot.ranks)
    return msgspec.structs.replace(snapshot, ranks=ranks)


def test_bundle_has_the_layout_of_the_contract(sealed: Path) -> None:
    files = set(manifest_of(sealed).files)
    assert {"diagnosis.json", "report.html", "scheduler.json", "checkpoints.json", "host/kernel_log.txt", "host/load.json"} <= files
    for rank in range(4):
        assert {f"ranks/{rank}/stack.json", f"ranks/{rank}/proc.json", f"ranks/{rank}/log_tail.txt"} <= files
    assert {"ranks/3/native.txt", "ranks/3/children/23701.json", "at_alert/ranks/3/stack.json"} <= files


def test_manifest_says_what_was_captured_and_what_was_not(sealed: Path) -> None:
    manifest = manifest_of(sealed)
    assert manifest.ranks[3].captured == ("stack", "proc", "log_tail", "native", "children")
    assert manifest.ranks[3].missing == {"flight_recorder": "no probe in this rank"}
    assert manifest.ranks[0].missing["native"] == "no native stack was asked for"
    assert manifest.host_missing == {"gpus": "no nvidia-smi on PATH"}
    assert manifest.touched == ("ranks 0-3: py-spy non-blocking 3x", "rank 3: native stack once, 0.3 s")


def test_rank_that_could_not_be_captured_is_in_it_with_the_reasons(
    tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock
) -> None:
    gone = Missing("the process is gone")
    snapshot = with_rank(findings.snapshot, 2, process=gone, stack=gone, log=Missing("no log"), descendants=(), child_stacks={})
    seal(tmp_path / "1", of, msgspec.structs.replace(findings, snapshot=snapshot), clock)
    entry = manifest_of(tmp_path / "1").ranks[2]
    assert entry.captured == ()
    assert entry.missing == {
        "stack": "the process is gone",
        "proc": "the process is gone",
        "log_tail": "no log",
        "native": "no native stack was asked for",
        "flight_recorder": "no probe in this rank",
        "children": "the process is gone",
    }


def test_loader_without_a_stack_is_missing_by_its_process_id(tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock) -> None:
    snapshot = with_rank(findings.snapshot, 3, child_stacks={23701: Missing("py-spy was not done after 8 s")})
    seal(tmp_path / "1", of, msgspec.structs.replace(findings, snapshot=snapshot), clock)
    entry = manifest_of(tmp_path / "1").ranks[3]
    assert entry.missing["children/23701/stack"] == "py-spy was not done after 8 s"
    assert entry.missing["children/23706/stack"] == "no stack was taken of this process"


def test_snapshot_comes_out_as_it_went_in_but_for_secrets(sealed: Path, findings: Findings) -> None:
    clean = without_secrets(findings)
    assert load_snapshot(sealed) == clean.snapshot
    assert load_snapshot(sealed, at_alert=True) == clean.snapshot_at_alert
    assert load_diagnosis(sealed) == findings.diagnosis
    assert clean.snapshot != findings.snapshot
    assert [sample.stack for sample in clean.snapshot.ranks] == [sample.stack for sample in findings.snapshot.ranks]


def test_no_secret_is_in_any_file(sealed: Path) -> None:
    for file in sealed.rglob("*"):
        if file.is_file():
            text = file.read_text()
            assert "hf_aBcDeFgHiJkLmNoPqRsT" not in text, file
            assert "0123456789abcdef0123" not in text, file
    assert "max_tokens=512" in (sealed / "ranks/0/log_tail.txt").read_text()


def test_diagnosis_is_in_the_words_of_the_contract(sealed: Path) -> None:
    diagnosis = json.loads((sealed / "diagnosis.json").read_text())
    assert diagnosis["culprit_ranks"] == [3]
    assert diagnosis["awaited_ranks"] is None
    assert {"verdict", "cause", "victim_ranks", "certainty", "sentence", "for", "against", "suggested"} <= set(diagnosis)


def test_half_characters_of_a_path_do_not_stop_the_seal(tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock) -> None:
    broken = msgspec.structs.replace(findings.diagnosis, file="/data/\udcff.tar", sentence="blocked on \udcff")
    proof = seal(tmp_path / "1", of, msgspec.structs.replace(findings, diagnosis=broken, host={"log": "a\udc80b"}), clock)
    assert isinstance(proof, SealedBundle)
    assert load_diagnosis(tmp_path / "1").file == "/data/?.tar"


def test_capture_that_fails_leaves_nothing(tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock) -> None:
    too_long = msgspec.structs.replace(findings, host={"x" * 300: "no file name may be so long"})
    with pytest.raises(BundleNotWritten, match="File name too long"):
        seal(tmp_path / "1", of, too_long, clock)
    assert list(tmp_path.iterdir()) == []


def test_damaged_part_is_an_error_with_help(sealed: Path) -> None:
    (sealed / "snapshot.json").write_text("{}")
    (sealed / "diagnosis.json").unlink()
    for load in (load_snapshot, load_diagnosis):
        with pytest.raises(PartUnreadable):
            load(sealed)
