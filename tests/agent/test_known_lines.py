"""Lines of code that were asked for once stay with a rank for as long as it stands."""

from pathlib import Path

import msgspec

from rankpatrol.agent.within import with_known_lines
from rankpatrol.core.records import Missing
from rankpatrol.formats.flight_recorder import parse_json, parse_pickle

DATA = Path(__file__).parent.parent / "data" / "flight_recorder" / "hang"
LINED = parse_pickle((DATA / "rank0.pickle").read_bytes())
PLAIN = parse_json((DATA / "rank0.json").read_bytes())


def test_a_rank_that_stands_keeps_its_lines():
    assert with_known_lines({0: PLAIN, 1: PLAIN}, {0: LINED}) == {0: LINED, 1: PLAIN}


def test_a_rank_that_has_moved_loses_them():
    moved = msgspec.structs.replace(PLAIN, entries=PLAIN.entries[:-1])
    assert with_known_lines({0: moved, 1: Missing("gone")}, {0: LINED, 1: LINED}) == {0: moved, 1: Missing("gone")}
