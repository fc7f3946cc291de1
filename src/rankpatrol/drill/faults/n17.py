"""N17, N4c: work that no counter of reads and writes of the rank itself shows."""

from rankpatrol.drill.faults.n4 import PreparesFiles


class CopiesInAChild(PreparesFiles):
    """A child process does the work, and rank 0 waits for it."""

    id = "N4c"
    do = "copy_in_a_child"


class LoadsByMmap(PreparesFiles):
    """Pages come in one by one: only major faults move."""

    id = "N17"
    do = "map_a_file"
