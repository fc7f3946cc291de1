"""Jobs whose work is done and whose processes do not end."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.elsewhere import last_phase
from rankpatrol.analysis.told.words import quote
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.testimony import Kind

# Ending takes its time: groups are destroyed, files flushed.
_STILL_ENDING_S = 300.0


def stuck_after_the_end(story: Story) -> Diagnosis | None:
    """The training says that it is done, and later something still waits: do not start it again."""
    finished = story.told(Kind.FINISHED)
    if not finished or story.counted_after(finished[-1].last):
        return None
    phase = last_phase(story)
    if phase is not None and phase.last.word in {"evaluating", "preprocessing"} and story.comes_before(finished[-1].last, phase.last):
        return None  # the training is over, and the job is not: it tests what it has trained
    after = [
        told
        for told in story.told(
            Kind.WATCHDOG_STUCK,
        )
        + story.told(Kind.TIMED_OUT)
        if story.comes_before(finished[-1].last, told.first) is not False
    ]
    silence = story.silence_s
    if not after and (silence is None or silence < _STILL_ENDING_S or not (story.goes_on or story.told(Kind.OBSERVED, "squeue_running"))):
        return None
    since = f"; nothing came for {say_duration(silence)} since" if silence is not None else ""
    return Diagnosis(
        verdict="zombie_job",
        cause="teardown_deadlock",
        certainty=Certainty.SUPPORTED,
        sentence=f"the training is done, and its processes hang while they end{since}",
        reasons_for=(quote(finished[-1].last), *(quote(told.first) for told in after[:2])),
        reasons_against=("a last save that takes long would look alike: check it first",),
        suggested=(
            "Check the last checkpoint (`rankpatrol checkpoints verify`), then end the job by its id",
            "Do not start it again: the work is done",
        ),
    )
