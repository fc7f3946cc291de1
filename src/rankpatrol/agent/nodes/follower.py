"""The agent of a node that does not judge: it tells the hub what it sees, and answers it. Cut off, it judges its own ranks alone."""

import contextlib
from pathlib import Path

import msgspec

from rankpatrol.agent.agent import Agent
from rankpatrol.agent.launcher_watch import LauncherWatch
from rankpatrol.agent.nodes.meeting import Seat
from rankpatrol.agent.nodes.others import CutOff
from rankpatrol.agent.nodes.service import NodeService
from rankpatrol.agent.taking_up import take_up
from rankpatrol.agent.voice import Voice
from rankpatrol.core.durations import say_duration
from rankpatrol.launch.nodes import plain_name
from rankpatrol.launch.rundir import Cluster, JobSpec, RunDir
from rankpatrol.system.clock import Clock

_TELL_EVERY_S = 1.0
# A hub that is started again is back after five; until then nobody need worry.
_CUT_OFF_S = 15.0
_LAST_WORDS_S = 3.0


class Follower:
    """One node's agent in a job of several, from its start to the end of its launcher."""

    def __init__(self, spec: JobSpec, cluster: Cluster, run_dir: RunDir, clock: Clock, voice: Voice) -> None:
        self._spec, self._node, self._run_dir, self._clock, self._voice = spec, cluster.node, run_dir, clock, voice
        self._launcher = LauncherWatch(run_dir, clock)
        self._alone: Agent | None = None
        self._service = NodeService(spec, run_dir, cluster.node, clock)
        self._seat = Seat(spec, cluster, run_dir, clock, self._service.answer)
        self._told_at_s = float("-inf")
        self._exits = (-1, 0)
        self._connected_at_s: float | None = None
        self._lost_at_s = clock.mono_s()
        self._said_cut_off = False
        self._judged_at_s, self._judged = float("-inf"), ""

    def round(self) -> str:
        """One short round; returns what is going on in one line."""
        now_s, exits = self._clock.mono_s(), self._service.exits()
        if exits != self._exits or now_s - self._told_at_s >= _TELL_EVERY_S:
            self._exits, self._told_at_s = exits, now_s
            self._seat.tell(self._service.state())
        self._mind_connection(now_s)
        if self._said_cut_off:
            return f"cut off · {self._judge_alone(now_s)}"
        attempt, ended = exits[0], exits[1] % 1000
        place = f"attempt {attempt}" if attempt >= 0 else "waiting for ranks"
        return f"{place} · {'the hub hears this node' if self._seat.connected() else 'no hub'}" + (f" · {ended} ended" if ended else "")

    def finished(self) -> bool:
        """True once this node's CMD has ended, and the hub has been told."""
        if not self._run_dir.path.exists():
            return True
        if self._launcher.told() is None and not self._launcher.gone():
            return False
        self._seat.tell(self._service.state())
        self._seat.close()
        return self._alone is None or not self._said_cut_off or self._alone.finished()

    def _judge_alone(self, now_s: float) -> str:
        """What a whole job's agent does, but for acting: a rank that stands here is seen here."""
        if self._alone is None:
            folder = Path(self._spec.job_dir) / "nodes" / plain_name(self._node)
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # the ranks' logs are where they were
                (folder / "attempts").symlink_to(Path(self._spec.job_dir) / "attempts")
            spec = msgspec.structs.replace(self._spec, policy="observe", job_dir=str(folder), checkpoints=None, record=False)
            alone = Agent(spec, self._run_dir, self._clock, self._voice, CutOff())
            take_up(alone, self._run_dir.spool)
            self._alone = alone
        self._alone.glance()
        if now_s - self._judged_at_s >= _TELL_EVERY_S:
            self._judged_at_s, self._judged = now_s, self._alone.cycle()
        return self._judged

    def _mind_connection(self, now_s: float) -> None:
        heard_s = self._service.greeted_at_s()
        if self._seat.connected() and heard_s is not None and now_s - heard_s < _CUT_OFF_S:
            if self._connected_at_s is None or self._said_cut_off:
                self._voice.say("the agent of the first node hears this one", "good" if self._said_cut_off else "plain")
            if self._alone is not None:
                self._alone.desk.progress_returned()
            self._connected_at_s = self._lost_at_s = now_s
            self._said_cut_off = False
        elif not self._said_cut_off and now_s - self._lost_at_s >= _CUT_OFF_S:
            self._said_cut_off = True
            why = "the first node's agent says nothing" if self._seat.connected() else self._seat.why_not()
            since = say_duration(now_s - self._lost_at_s)
            self._voice.say(f"cut off from the other nodes for {since} ({why}): this node ends nothing on its own", "alert")
