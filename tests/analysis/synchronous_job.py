"""A synchronous job in virtual time: in each step every rank does its own work, then waits for the slowest one."""

import bisect
import random

from rankpatrol.analysis.pace.pace import step
from rankpatrol.analysis.pace.records import Beat, Began, Eased, Moment, PacePolicy, PaceState, RankBeat, Slowed

POLICY = PacePolicy()


class SynchronousJob:
    """`work(step, rank)` says what a rank does in a step: (seconds, what it is at, seconds of it in which it waits for a CPU)."""

    def __init__(self, work, *, ranks=4, steps=600, seed=0, foreign_cpus=0.1, exact=True, waits_by="futex", pressure=None):
        self.dice, self.ranks, self.exact, self.waits_by = random.Random(seed), ranks, exact, waits_by
        self.pressure, self.pressed_s = pressure or (lambda _at_s: {}), {}
        self.foreign_cpus = foreign_cpus if callable(foreign_cpus) else lambda _at_s: foreign_cpus
        self.begins, self.works = [100.0], []
        for number in range(1, steps + 1):
            row = [work(number, rank) for rank in range(ranks)]
            self.works.append(row)
            self.begins.append(self.begins[-1] + max(seconds for seconds, _, _ in row))

    def onset_s(self, number):
        """When this step began."""
        return self.begins[number - 1]

    def run(self, policy=POLICY):
        """Rounds once a second, moments four times a second where asked for; what was said, with its time and step."""
        state, said = PaceState(), []
        state, _ = step(state, Began(at_s=self.begins[0]), policy)
        at_s, foreign_s = self.begins[0], 0.0
        while at_s < self.begins[-1] - 0.01:
            for _ in range(4):
                at_s += 0.25 + self.dice.uniform(0.0, 0.03)
                if state.odd:
                    state, _ = step(state, Moment(doing=self._doing(at_s)), policy)
            foreign_s += self.foreign_cpus(at_s) * 1.06
            state, findings = step(state, self._beat(at_s, foreign_s), policy)
            said += [(at_s, self._at(at_s), finding) for finding in findings]
        self.state = state
        return said

    def _at(self, at_s):
        return min(bisect.bisect_right(self.begins, at_s), len(self.works)) - 1

    def _beat(self, at_s, foreign_s):
        done = self._at(at_s)
        ranks = tuple(
            RankBeat(rank=rank, cpu_s=self._sum(rank, done, cpu=True), delay_s=self._sum(rank, done)) for rank in range(self.ranks)
        )
        stepped_at_s = self.begins[done] if self.exact else at_s
        doing = self._doing(at_s)
        self.pressed_s = {kind: self.pressed_s.get(kind, 0.0) + part * 1.06 for kind, part in self.pressure(at_s).items()}
        facts = {"ranks": ranks, "doing": doing, "foreign_cpu_s": foreign_s, "pressure_s": self.pressed_s}
        return Beat(at_s=at_s, steps=done, stepped_at_s=stepped_at_s, exact=self.exact, **facts)

    def _sum(self, rank, done, *, cpu=False):
        if not hasattr(self, "_sums"):
            self._sums = {}
            for each in range(self.ranks):
                cpus, delays = [0.0], [0.0]
                for row in self.works:
                    seconds, what, delay_s = row[each]
                    cpus.append(cpus[-1] + (seconds - delay_s if what == "running" else 0.0))
                    delays.append(delays[-1] + delay_s)
                self._sums[each] = cpus, delays
        return self._sums[rank][0 if cpu else 1][done]

    def _doing(self, at_s):
        number = self._at(at_s)
        row, into_s = self.works[number], at_s - self.begins[number]
        return {rank: row[rank][1] if into_s < row[rank][0] else self.waits_by for rank in range(self.ranks)}


def slow(said):
    return [finding.diagnosis for _, _, finding in said if isinstance(finding, Slowed)]


def eased(said):
    return [at_s for at_s, _, finding in said if isinstance(finding, Eased)]


def noisy(seed, base_s=0.2, noise=0.05):
    """Usual steps: each rank takes about as long as the others."""
    dice = random.Random(seed)
    return lambda _number, _rank: (base_s * (1 + noise * dice.gauss(0, 1) ** 2), "running", 0.0)
