import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from shelves import DATA, SHELVES, Damage, Restored, Shelf, flips, put, truncations
from spoiled_checkpoints import StandingClock

from rankpatrol.checkpoints.ledger import Ledger
from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.pace import Pace
from rankpatrol.checkpoints.report import CheckpointReport, CheckpointVerdict, Selection
from rankpatrol.checkpoints.set_verifier import SetVerifier
from rankpatrol.checkpoints.verifier import Closeness, Verifier

pytestmark = pytest.mark.timeout(120)  # some are hundreds of looks
FLIPS = 4
LATER = StandingClock(1_790_100_000)
by_name = pytest.mark.parametrize("shelf", SHELVES, ids=lambda shelf: shelf.name)


@pytest.fixture
def whole(shelf: Shelf, tmp_path: Path) -> Path:
    return put(shelf, tmp_path)


def look(directory: Path, *, ledger: Ledger | None = None, again: bool = False) -> CheckpointReport:
    return SetVerifier(Verifier(LATER, ledger=ledger, closeness=Closeness(again=again))).verify(directory)


def select(directory: Path) -> Selection:
    return newest_good(directory, Verifier(LATER))


def damages(shelf: Shelf, folder: Path) -> Iterator[Damage]:
    for name in shelf.needed:
        victim = folder / shelf.newer / name
        if name not in shelf.spare:
            yield Damage("missing", victim, Path.unlink)
        yield from truncations(victim) if name == shelf.needed[0] or name.endswith("distcp") else [*truncations(victim)][::7]
    for name in shelf.mixed:
        older = folder / shelf.older / name
        yield Damage("of an older step", folder / shelf.newer / name, partial(shutil.copyfile, older))


def test_the_matrix_has_its_300_damages(tmp_path: Path) -> None:
    counted = 0
    for shelf in SHELVES:
        folder = put(shelf, tmp_path)
        counted += sum(1 for _ in damages(shelf, folder)) + FLIPS * len(shelf.needed) + 3 * bool(shelf.pointer)
    assert counted >= 300


@by_name
def test_every_damage_is_refused_with_its_file(shelf: Shelf, whole: Path) -> None:
    kept = Restored(whole)
    for damage in damages(shelf, whole):
        kept.damaged(damage)
        selection = select(whole)
        told = [report for report in selection.rejected if report.file == str(damage.victim)]
        assert told, (damage.what, damage.victim, selection)
        assert told[0].verdict is not CheckpointVerdict.OK
        assert selection.newest_good is not None
        assert Path(selection.newest_good.path).name == shelf.older
        kept.again(damage.victim)
    assert look(whole / shelf.newer).verdict == "ok"


@by_name
def test_a_flipped_bit_is_told_by_checksum_or_first_look_and_never_vouched_for(shelf: Shelf, whole: Path, tmp_path: Path) -> None:
    kept = Restored(whole)
    ledger = Ledger(tmp_path / "ledger.json")
    newer = whole / shelf.newer
    assert look(newer, ledger=ledger).verdict == "ok"
    for name in shelf.needed:
        for damage in flips(newer / name, FLIPS):
            kept.damaged(damage)
            first_sight = look(newer)
            assert first_sight.verdict != "ok" or not first_sight.content_verified, damage
            later = look(newer, ledger=ledger, again=True)
            assert later.verdict != "ok", damage
            assert later.file == str(damage.victim), (damage, later)
            kept.again(damage.victim)
    again = look(newer, ledger=ledger, again=True)
    assert (again.verdict, again.content_verified) == ("ok", True)


@pytest.mark.parametrize("shelf", [shelf for shelf in SHELVES if shelf.pointer], ids=lambda shelf: shelf.name)
@pytest.mark.parametrize("says", ["stale", "nothing", "absent"])
def test_a_pointer_that_leads_elsewhere_is_told(shelf: Shelf, whole: Path, says: str) -> None:
    pointer = whole / shelf.pointer
    pointer.write_text({"stale": shelf.stale, "nothing": "", "absent": shelf.newer.replace("4", "9").removeprefix("iter_")}[says])
    selection = select(whole)
    assert [report.file for report in selection.pointers] == [str(pointer)]
    assert selection.newest_good is not None
    assert selection.newest_good.step == 4


@by_name
def test_both_whole_steps_are_accepted_and_a_second_look_reads_nothing(shelf: Shelf, whole: Path, tmp_path: Path) -> None:
    read: list[int] = []
    ledger = Ledger(tmp_path / "ledger.json")
    for step in (shelf.newer, shelf.older):
        assert SetVerifier(Verifier(LATER, ledger=ledger)).verify(whole / step).verdict == "ok"
    ledger.save()
    later = SetVerifier(Verifier(LATER, ledger=Ledger(tmp_path / "ledger.json"), pace=Pace(told=read.append)))
    assert {later.verify(whole / step).verdict for step in (shelf.newer, shelf.older)} == {CheckpointVerdict.OK}
    assert read == []


def test_a_lightning_file_of_another_step_is_told(tmp_path: Path) -> None:
    source = DATA / "lightning" / "epoch=0-step=4.ckpt"
    wrong = tmp_path / "epoch=0-step=8.ckpt"
    shutil.copyfile(source, wrong)
    report = Verifier().verify(wrong)
    assert (report.layout, report.verdict, report.key) == ("lightning", "corrupt", "global_step")
    for name in ("epoch=0-step=4.ckpt", "epoch=0-step=8.ckpt"):
        assert Verifier().verify(DATA / "lightning" / name).verdict == "ok"


def test_a_file_written_anew_is_a_first_look_and_no_damage(tmp_path: Path) -> None:
    shelf = next(shelf for shelf in SHELVES if shelf.name == "weights")
    folder = put(shelf, tmp_path)
    ledger = Ledger(tmp_path / "ledger.json")
    assert look(folder / shelf.newer, ledger=ledger).verdict == "ok"
    victim = folder / shelf.newer / "model-00001-of-00002.safetensors"
    shutil.copyfile(folder / shelf.older / victim.name, victim)
    os.utime(victim, (1_790_050_000, 1_790_050_000))
    report = look(folder / shelf.newer, ledger=ledger)
    assert (report.verdict, report.content_verified) == ("ok", False)
