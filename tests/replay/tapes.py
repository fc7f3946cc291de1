"""Jobs that live in virtual time: an agent's part of judging, which writes its tape as the recorder would."""

import msgspec

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.judge.judge import step
from rankpatrol.judge.records import AttemptBegan, JudgeState, LookCloser, Looked, Observed, Policy, RankActivity
from rankpatrol.judge.tape import AttemptOver, TapeBegan, TapeWriter, said

STUCK = Diagnosis(
    verdict="hang", cause="rank_blocked", culprit_ranks=(1,), victim_ranks=(0,), certainty=Certainty.SUPPORTED, sentence="rank 1 sleeps"
)
WORKS = Diagnosis(
    verdict="benign_wait", cause="none", awaited_ranks=(1,), victim_ranks=(0,), certainty=Certainty.SUPPORTED, sentence="rank 1 works"
)
OPEN = Diagnosis(verdict="undetermined", cause="unknown", victim_ranks=(0, 1), sentence="all ranks wait for their devices")
BEGAN_S = 5000.25


class Job:
    """Some ranks that move until they stand; `answer` is what a close look finds. What is judged live is kept beside the tape."""

    def __init__(self, policy=None, *, ranks=2, acts=True, round_s=1.0):
        self.policy, self.round_s = policy or Policy(), round_s
        self.at_s, self.answer, self.moving = BEGAN_S, STUCK, set(range(ranks))
        self.ranks = [
            RankActivity(
                rank=rank,
                ended=False,
                joined=True,
                traced=False,
                stopped=False,
                main_thread_ticks=0,
                switches=0,
                step=0,
                phase="train_step",
            )
            for rank in range(ranks)
        ]
        self.writer, self.lines, self.findings, self.state = TapeWriter(), [], [], JudgeState()
        self.write(TapeBegan(job="job", at_s=self.at_s, unix_s=1.8e9 + self.at_s, policy=self.policy, acts=acts, state=self.state))
        self.tell(AttemptBegan(at_s=self.at_s, attempt=0, world_size=ranks))

    def write(self, item):
        self.lines.append(self.writer.line(item))

    def tell(self, event):
        self.state, findings = step(self.state, event, self.policy)
        self.write(event)
        if findings:
            self.write(said(findings))
        for finding in findings:
            self.findings.append((event.at_s, finding))
            if isinstance(finding, LookCloser):
                self.tell(Looked(at_s=self.at_s + 0.0123, diagnosis=self.answer))

    def pass_time(self, seconds, *, steps_per_s=5, **changes):
        """Round by round; ranks that move also take steps."""
        for _ in range(round(seconds / self.round_s)):
            self.at_s = round(self.at_s + self.round_s, 3)
            for rank in self.moving:
                was = self.ranks[rank]
                stepped = was.step if was.step is None else was.step + steps_per_s
                self.ranks[rank] = msgspec.structs.replace(
                    was, main_thread_ticks=was.main_thread_ticks + 17 + rank, switches=was.switches + 40, step=stepped
                )
            shown = tuple(msgspec.structs.replace(rank, **changes) for rank in self.ranks)
            self.tell(Observed(at_s=self.at_s, ranks=shown))

    def stand(self, seconds, *, answer=STUCK):
        self.moving, self.answer = set(), answer
        self.pass_time(seconds)
        self.moving = set(range(len(self.ranks)))

    def over(self, *, by_us=False, ordered=False):
        self.write(AttemptOver(at_s=self.at_s, attempt=0, ordered=ordered, by_us=by_us))
