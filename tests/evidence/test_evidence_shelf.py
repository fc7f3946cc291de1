"""The shelf stays under its cap, the oldest go first, and nothing but bundles is ever removed."""

from pathlib import Path

from evidence_scene import StillClock

from rankpatrol.evidence.bundle import BundleWriter, IncidentRef
from rankpatrol.evidence.manifest import verify
from rankpatrol.evidence.shelf import tidy


def shelve(incidents: Path, number: int, *, sealed_unix_s: float, size_bytes: int = 100_000) -> None:
    with BundleWriter(incidents / str(number), StillClock(sealed_unix_s)) as writer:
        writer.add("log.txt", b"x" * size_bytes)
        writer.seal(IncidentRef(job="8123", attempt=0, incident=number, onset_unix_s=0.0))


def left_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_oldest_go_first_by_the_time_of_sealing_not_by_name(tmp_path: Path) -> None:
    for number, sealed_unix_s in ((1, 300.0), (2, 100.0), (10, 200.0)):
        shelve(tmp_path, number, sealed_unix_s=sealed_unix_s)
    tidied = tidy(tmp_path, cap_bytes=150_000)
    assert tidied.removed == ("2", "10")
    assert left_in(tmp_path) == ["1"]
    assert verify(tmp_path / "1").ok
    assert 100_000 < tidied.kept_bytes < 150_000


def test_nothing_goes_under_the_cap(tmp_path: Path) -> None:
    shelve(tmp_path, 1, sealed_unix_s=1.0)
    assert tidy(tmp_path).removed == ()
    assert left_in(tmp_path) == ["1"]


def test_open_incident_stays_whatever_it_costs(tmp_path: Path) -> None:
    shelve(tmp_path, 1, sealed_unix_s=1.0)
    shelve(tmp_path, 2, sealed_unix_s=2.0)
    tidied = tidy(tmp_path, cap_bytes=10, open_names={"1"})
    assert tidied.removed == ("2",)
    assert left_in(tmp_path) == ["1"]
    assert tidied.kept_bytes > 10


def test_what_is_no_bundle_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "incidents").mkdir()
    (tmp_path / "mine").mkdir()
    shelve(tmp_path, 7, sealed_unix_s=1.0)
    (tmp_path / "incidents" / "notes").mkdir()
    (tmp_path / "incidents" / "file.txt").write_text("x")
    (tmp_path / "incidents" / "linked").symlink_to(tmp_path / "7")
    assert tidy(tmp_path / "incidents", cap_bytes=0).removed == ()
    assert left_in(tmp_path / "incidents") == ["file.txt", "linked", "notes"]
    assert verify(tmp_path / "7").ok


def test_bundle_that_is_being_written_stays_and_a_dead_writers_rest_goes(tmp_path: Path) -> None:
    (tmp_path / ".1.partial-00000000").mkdir()
    (tmp_path / ".1.partial-00000000" / "stack.json").write_text("{}")
    (tmp_path / ".9.doomed-00000000").mkdir()
    (tmp_path / ".mine").mkdir()
    with BundleWriter(tmp_path / "2", StillClock()) as writer:
        writer.add("log.txt", b"x")
        tidy(tmp_path, cap_bytes=0)
        assert [name[:11] for name in left_in(tmp_path)] == [".2.partial-", ".mine"]
        writer.seal(IncidentRef(job="8123", attempt=0, incident=2, onset_unix_s=0.0))
    assert verify(tmp_path / "2").ok


def test_directory_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert tidy(tmp_path / "incidents").kept_bytes == 0
