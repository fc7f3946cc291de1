"""N4: rank 0 prepares the data, while the others wait in a barrier before the first step."""

from rankpatrol.drill.faults.silence import Silence
from rankpatrol.drill.scene import Scene


class PreparesFiles(Silence):
    """It writes files and reads them back."""

    id = "N4a"
    at = "group"
    do = "shuffle_files"

    def step(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 1


class BuildsVocabulary(PreparesFiles):
    """It only computes, under changing frames: no byte is read, written or said."""

    id = "N4b"
    do = "build_vocabulary"
