"""Ranks that run made-up programs of collectives in step, as their flight recorders would show them."""

import random

from rankpatrol.core.snapshot import Collective, FlightRecording, Frame, GroupStatus, ProcessGroup

WORLD = "default_pg"


def entry(group=WORLD, sequence=1, operation="all_reduce", size=16, *, retired=True, line=None, is_p2p=False):
    """One operation; gloo never changes its state."""
    return Collective(
        group=group,
        sequence=sequence,
        operation=operation,
        is_p2p=is_p2p,
        state="scheduled",
        retired=retired,
        input_sizes=((size,),),
        input_dtypes=("Float",),
        frames=(Frame("train_step", "/home/u/train.py", line),) if line else (),
    )


def recording(*entries, members=None):
    """A recording with the status that goes with its entries."""
    status = {}
    for each in entries:
        done = status[each.group].completed if each.group in status else 0
        status[each.group] = GroupStatus(enqueued=each.sequence, started=-1, completed=each.sequence if each.retired else done)
    return FlightRecording(version="2.10", members=members or {}, status=status, entries=tuple(entries))


def past(count, group=WORLD, **facts):
    """That many collectives, all over."""
    return tuple(entry(group, sequence, **facts) for sequence in range(1, count + 1))


class Job:
    """Ranks with a list of (group, operation, size) each; an operation ends when all members are in the same one."""

    def __init__(self, programs, groups, ring=10_000):
        self.programs = programs
        self.groups = groups
        self.ring = ring
        self.done = {rank: [] for rank in programs}
        self.inside = dict.fromkeys(programs)
        self.entered = {}

    def step(self, rank):
        """The rank enters its next operation, or leaves the one that all have entered. False where it can do neither."""
        if self.inside[rank] is not None:
            here = self.inside[rank]
            if not self._all_in(here):
                return False
            self.done[rank].append(entry(*here))
            self.inside[rank] = None
            return True
        done = self.done[rank]
        if len(done) == len(self.programs[rank]):
            return False
        group, operation, size = self.programs[rank][len(done)]
        sequence = 1 + sum(each.group == group for each in done)
        self.inside[rank] = (group, sequence, operation, size)
        self.entered.setdefault((group, sequence), {})[rank] = (operation, size)
        return True

    def _all_in(self, here):
        entered = self.entered[here[:2]]
        return set(entered) == set(self.groups[here[0]]) and len(set(entered.values())) == 1

    def run_to_the_end(self, rng):
        """Until nobody can do anything any more."""
        while any(map(self.step, rng.sample(list(self.programs), len(self.programs)))):
            pass

    def look(self, rank):
        """The rank's recording at this moment."""
        pending = [entry(*self.inside[rank], retired=False)] if self.inside[rank] else []
        full = recording(*self.done[rank], *pending)
        return FlightRecording(version="2.10", members={}, status=full.status, entries=full.entries[-self.ring :])

    def waiting(self):
        """The ranks whose stacks would show a collective."""
        return frozenset(rank for rank, here in self.inside.items() if here)

    def probed(self):
        """The groups as the probes of all ranks tell them."""
        told = {
            name: ProcessGroup(name="0" if name == WORLD else name.partition(":")[0], backend="gloo", ranks=tuple(ranks), timeout_s=None)
            for name, ranks in self.groups.items()
        }
        return {rank: tuple(group for group in told.values() if rank in group.ranks) for rank in self.programs}


def random_job(rng: random.Random, world_size: int, *, groups=(), length=12, ring=10_000):
    """A healthy program: every rank runs the operations of its groups in one common order."""
    names = {WORLD: tuple(range(world_size)), **{f"{number}:sub": ranks for number, ranks in enumerate(groups, 1)}}
    order = [
        (
            rng.choice(list(names)),
            *rng.choice([("all_reduce", 16), ("all_reduce", 8), ("barrier", 0), ("broadcast", 16), ("all_to_all", 4)]),
        )
        for _ in range(length)
    ]
    programs = {rank: [each for each in order if rank in names[each[0]]] for rank in range(world_size)}
    return Job(programs, names, ring)
