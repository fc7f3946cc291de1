"""N12: steps of several minutes, played to the same judge in virtual time: nothing of it needs a machine, and all of it the rules."""

from collections.abc import Iterator

from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import Frame, IoCounters, ProcessSample, RankSample, Snapshot, Stack, SystemCall, ThreadStack
from rankpatrol.drill.faults.port import Expectation, Fault
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth
from rankpatrol.judge.judge import step as judge_step
from rankpatrol.judge.records import AttemptBegan, Event, JudgeState, LookCloser, Looked, Observed, Policy, RankActivity
from rankpatrol.judge.tape import TapeBegan, TapeItem

_BEGAN_S, _UNIX_S = 1000.0, 1.8e9
_STEP_S, _STEPS = 240, 9
# That of the other rows, far below a step.
_PATIENCE_S = 20.0
_PACKAGES = "/env/lib/python3.11/site-packages"
# A rank's stack, innermost frame first, and the call that the kernel shows; measured on torch 2.13.
_TRAIN = Frame("train", "/home/u/train.py", 103)
_BACKWARD = (Frame("_engine_run_backward", f"{_PACKAGES}/torch/autograd/graph.py", 979), _TRAIN)
_ON_DEVICE = (Frame("synchronize", f"{_PACKAGES}/torch/cuda/__init__.py", 1100), _TRAIN)
_COMPUTES = tuple((Frame(name, "/home/u/model.py", 20 + at), _TRAIN) for at, name in enumerate(("mix", "attend", "scan", "norm", "gate")))
_SLEEPS = (Frame("wait_for_file", "/home/u/train.py", 98), _TRAIN)
_FUTEX, _RUNNING, _NANOSLEEP = SystemCall("futex"), SystemCall("running"), SystemCall("clock_nanosleep", (0, 0, 0, 0))


class MinutesLongSteps(Fault):
    """In turn: one rank computes and the others wait for it; all wait for their device asleep; all wait for it in a busy loop."""

    id = "N12"
    verdict = "healthy"
    causes: tuple[str, ...] = ("none",)
    expects = Expectation.SILENT
    # From this second of the training on the drawn rank sleeps for ever.
    asleep_from_s: float = float("inf")
    lasts_s = _STEP_S * _STEPS

    def tape(self, scene: Scene) -> tuple[Truth, Iterator[TapeItem]]:
        if self.asleep_from_s < self.lasts_s:
            truth = Truth(rank=scene.rank, step=_step(self.asleep_from_s), at_unix_s=_UNIX_S + self.asleep_from_s)
        else:
            truth = Truth(at_unix_s=_UNIX_S, until_unix_s=_UNIX_S + self.lasts_s)
        return truth, self._items(scene)

    def _items(self, scene: Scene) -> Iterator[TapeItem]:
        """Looks are taken when the judge asks for them, as the agent takes them; their stacks go through the same analysis."""
        policy, state = Policy(patience_s=_PATIENCE_S), JudgeState()
        yield TapeBegan(job="drill", at_s=_BEGAN_S, unix_s=_UNIX_S, policy=policy, acts=True, state=state)
        state, _ = judge_step(state, began := AttemptBegan(at_s=_BEGAN_S, attempt=0, world_size=scene.ranks), policy)
        yield began
        looks: list[Snapshot] = []
        for second in range(1, int(self.lasts_s) + 1):
            event: Event = Observed(at_s=_BEGAN_S + second, ranks=tuple(self._activity(scene, rank, second) for rank in range(scene.ranks)))
            yield event
            state, findings = judge_step(state, event, policy)
            if state.looked_at_s is None:
                looks = []
            if any(isinstance(finding, LookCloser) for finding in findings):
                looks = [*looks[-11:], self._look(scene, second)]
                event = Looked(at_s=event.at_s, diagnosis=diagnose(tuple(looks)))
                yield event
                state, _ = judge_step(state, event, policy)

    def _is_busy(self, scene: Scene, rank: int, second: float) -> bool:
        """In the first kind of step one rank computes; in the third all loop until their device is done."""
        kind = self._kind(second)
        return (kind == 0 and rank == scene.rank and second < self.asleep_from_s) or kind == 2

    def _kind(self, second: float) -> int:
        return 0 if second >= self.asleep_from_s else (_step(second) - 1) % 3

    def _ticks(self, scene: Scene, rank: int, second: float) -> int:
        """A hundred for each busy second of its own."""
        until = min(second, self.asleep_from_s)
        begins = range(0, int(until) + 1, _STEP_S)
        return 100 * int(sum(min(until, begin + _STEP_S) - begin for begin in begins if self._is_busy(scene, rank, begin)))

    def _activity(self, scene: Scene, rank: int, second: int) -> RankActivity:
        steps = _step(min(second, self.asleep_from_s)) - 1
        return RankActivity(
            rank=rank,
            ended=False,
            joined=True,
            traced=False,
            stopped=False,
            main_thread_ticks=self._ticks(scene, rank, second),
            switches=10 * steps,
            step=steps or None,
            marked_steps=steps,
        )

    def _look(self, scene: Scene, second: int) -> Snapshot:
        ranks = tuple(self._sample(scene, rank, second) for rank in range(scene.ranks))
        at_s = _BEGAN_S + second
        return Snapshot(job="drill", attempt=0, at_mono_s=at_s, at_unix_s=_UNIX_S + second, world_size=scene.ranks, ranks=ranks)

    def _sample(self, scene: Scene, rank: int, second: int) -> RankSample:
        frames, call = self._stands_in(scene, rank, second)
        busy, ticks, pid = call is _RUNNING, self._ticks(scene, rank, second), 100 + rank
        process = ProcessSample(
            id=ProcessId("boot", pid, 100),
            parent_pid=1,
            name="python3",
            command=("python", "train.py"),
            state="R" if busy else "S",
            tracer_pid=0,
            wait_channel="" if busy else "futex_do_wait",
            system_call=call,
            cpu_ticks=ticks,
            main_thread_ticks=ticks,
            voluntary_switches=0,
            involuntary_switches=0,
            minor_faults=0,
            major_faults=0,
            resident_bytes=1 << 28,
            io=IoCounters(0, 0, 0, 0),
            open_files=Missing("files were not listed in this round"),
            thread_names=("python3",),
        )
        thread = ThreadStack(thread_id=pid, name="MainThread", active=busy, owns_gil=False, frames=frames)
        return RankSample(rank=rank, local_rank=rank, node="n1", shim_pid=1, pid=pid, process=process, stack=Stack(pid, (thread,)))

    def _stands_in(self, scene: Scene, rank: int, second: int) -> tuple[tuple[Frame, ...], SystemCall]:
        if rank == scene.rank and second >= self.asleep_from_s:
            return _SLEEPS, _NANOSLEEP
        if self._kind(second) == 0:
            busy = self._is_busy(scene, rank, second)
            return (_COMPUTES[second % len(_COMPUTES)], _RUNNING) if busy else (_BACKWARD, _FUTEX)
        return _ON_DEVICE, (_FUTEX if self._kind(second) == 1 else _RUNNING)


class AsleepBetweenLongSteps(MinutesLongSteps):
    """The same steps, and then a rank sleeps for ever: what is learned of long silences delays the verdict, and does not prevent it."""

    id = "N12-F5"
    verdict = "hang"
    causes = ("rank_blocked",)
    expects = Expectation.WOULD_END
    asleep_from_s = float(_STEP_S * 6 + 10)
    lasts_s = _STEP_S * _STEPS
    # A silence may last half as long again as the longest that ended by itself.
    suspect_s = 1.5 * _STEP_S + 15.0
    ended_s = 1.5 * _STEP_S + 40.0


def _step(second: float) -> int:
    """The step that goes on at this second; they count from 1."""
    return int(second // _STEP_S) + 1
