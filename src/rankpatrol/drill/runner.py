"""One drill run: builds the scene, starts the patrol over the training, follows it to the end, and scores it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing, Record
from rankpatrol.drill.events import Event, EventFile
from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.outcome import Outcome
from rankpatrol.drill.scene import Scene, build
from rankpatrol.drill.steps import StepWatch
from rankpatrol.drill.truth import Truth, read_truth
from rankpatrol.drill.virtual import play_tape
from rankpatrol.system.command import run

_TICK_S = 0.1
_KEEPER_ENDS_S = 20.0  # its own deadlines sum up to 15 s
# Far beyond patience: who is suspected only is not judged later either.
_NO_VERDICT_S = 75.0
_HEAL_AT = frozenset({"action", "attempt_ended"})


class Settings(Record, frozen=True, kw_only=True):
    """How every run of a drill is done."""

    patience: str = "20s"
    # The training runs by itself, and is watched from outside.
    attached: bool = False
    # Is told every event as it comes.
    tell: Callable[[Event], None] | None = None
    record: bool = False
    max_restarts: int = 4
    deadline_s: float = 240.0


def patrol_command(scene: Scene, settings: Settings) -> list[str]:
    """`rankpatrol run` over the scene's training, as a user would call it."""
    return [
        *(sys.executable, "-m", "rankpatrol", "run", "--job-dir", str(scene.job), "--policy", "recover", "--patience", settings.patience),
        *(("--record",) if settings.record else ()),
        *("--checkpoints", str(scene.checkpoints), "--max-restarts", str(settings.max_restarts), *scene.training()),
    ]


def watch_command(scene: Scene, settings: Settings, which: Sequence[str]) -> list[str]:
    """`rankpatrol watch` of a training that runs already; a watch of everything names its folders itself."""
    place = () if "--all" in which else ("--job-dir", str(scene.job))
    return [sys.executable, "-m", "rankpatrol", "watch", *which, "--patience", settings.patience, *place]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours, with this Python's own torchrun first on the path. A fault that we play is no node's fault: nothing is remembered of it."""
    own = {"RANKPATROL_LEMONS": "", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    return {**os.environ, **own, **more}


@contextmanager
def kept(
    command: Sequence[str], env: Mapping[str, str], *, left_file: Path, output: Path | None, cwd: Path | None = None
) -> "Iterator[subprocess.Popen[bytes]]":
    """A command under its keeper, in a process group of its own: whatever it started is gone when the block is left."""
    argv = [sys.executable, "-m", "rankpatrol.drill.keeper", str(os.getpid()), str(left_file), *command]
    sink = output.open("wb") if output is not None else None
    try:
        keeper = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, process_group=0, cwd=cwd)
    finally:
        if sink is not None:
            sink.close()
    try:
        yield keeper
    finally:
        if keeper.poll() is None:
            keeper.terminate()
            keeper.wait(_KEEPER_ENDS_S)


class Followed(Record, frozen=True):
    """What was seen of a run while it went on. `resume_step` is the newest checkpoint's when the patrol had broken the attempt off."""

    events: tuple[Event, ...]
    step_seen_unix_s: Mapping[int, float]
    resume_step: int | None


def follow(
    fault: Fault,
    scene: Scene,
    keeper: "subprocess.Popen[bytes]",
    *,
    until_mono_s: float,
    tell: Callable[[Event], bool | None] | None = None,
) -> Followed:
    """Strike and heal at the right moments until the command ends, the deadline comes, or `tell` says of an event that it is enough."""
    journal, steps, resume_step = EventFile(scene.job / "events.jsonl"), StepWatch(), None
    heard: list[Event] = []
    while True:
        over = keeper.poll() is not None or time.monotonic() > until_mono_s
        steps.look([scene.output, *scene.job.glob("attempts/*/rank0.log")], at_unix_s=time.time())
        for event in map(fault.by_our_clock, journal.look()):
            heard.append(event)
            if event.kind == "progress" and event.step is not None:
                steps.note(event.step, event.at_unix_s)
            if event.kind in _HEAL_AT:
                resume_step = fault.resume_step(scene) if resume_step is None else resume_step
                fault.heal(scene)
            if tell is not None and tell(event):
                over = True
        if over:
            return Followed(tuple(heard), steps.first_seen_unix_s, resume_step)
        fault.strike(scene, Moment(step=steps.last, keeper_pid=keeper.pid))
        time.sleep(_TICK_S)


def play(fault: Fault, scene: Scene, settings: Settings, *, run_number: int, seed: str) -> Outcome:
    """One run from an empty folder to its outcome. Nothing that it started is alive afterwards."""
    if (played := play_tape(fault, scene, run_number=run_number, seed=seed)) is not None:
        return played
    build(scene)
    attached = settings.attached or fault.attached
    began = time.monotonic()
    left_file = scene.truth.with_name("left.txt")
    until_mono_s = began + settings.deadline_s
    try:
        env = environment(fault.prepare(scene))
        command = [word.replace("{checkpoint}", "") for word in scene.training()] if attached else patrol_command(scene, settings)
        with kept(command, env, left_file=left_file, output=scene.output) as keeper:
            if attached:
                seen = _follow_attached(fault, scene, keeper, settings, until_mono_s)
            else:
                seen = follow(fault, scene, keeper, until_mono_s=until_mono_s, tell=settings.tell)
            code = 0 if attached and keeper.poll() is None else keeper.poll()
    finally:
        fault.clear()
    truth = read_truth(scene.truth)
    return Outcome(
        fault=fault.id,
        expects=expectation(fault, attached=attached),
        verdict=fault.verdict,
        causes=fault.causes,
        run=run_number,
        seed=seed,
        truth=truth,
        onset_unix_s=onset(truth, seen.step_seen_unix_s),
        ended_unix_s=time.time(),
        resume_step=seen.resume_step,
        events=seen.events,
        exit_code=Missing(f"not at its end after {settings.deadline_s:g} s") if code is None else code,
        finished=scene.last_checkpoint.exists(),
        bundles=verify_bundles(seen.events, scene.job, _bundle_stands),
        names_nobody=fault.names_nobody,
        in_log_tail=fault.in_log_tail,
        log_tails=read_log_tails(seen.events, scene.job, _struck(truth, scene)),
        left=tuple(left_file.read_text().splitlines()) if left_file.exists() else (),
        seconds=round(time.monotonic() - began, 1),
        folder=str(scene.folder),
    )


def expectation(fault: Fault, *, attached: bool) -> Expectation:
    """Nobody is ended from outside."""
    if not attached or fault.expects is not Expectation.RECOVERS:
        return fault.expects
    return Expectation.SUSPECTS if fault.suspected_only else Expectation.NAMED


def _follow_attached(fault: Fault, scene: Scene, keeper: "subprocess.Popen[bytes]", settings: Settings, until_mono_s: float) -> Followed:
    """Attach once the training takes steps; a hang that was judged and sealed is left, since nobody is to end it."""
    steps = StepWatch()
    while steps.last < 1 and keeper.poll() is None and time.monotonic() < until_mono_s:
        steps.look([scene.output], at_unix_s=time.time())
        time.sleep(_TICK_S)
    if fault.suspected_only:
        until_mono_s = min(until_mono_s, time.monotonic() + _NO_VERDICT_S)
    command = watch_command(scene, settings, fault.watch_words(keeper.pid))
    left_file, output = scene.truth.with_name("left_by_watch.txt"), scene.folder / "watch.txt"
    with kept(command, environment({}), left_file=left_file, output=output, cwd=scene.folder):

        def is_enough(event: Event) -> bool:
            if settings.tell is not None:
                settings.tell(event)
            return event.kind == "bundle_sealed" and fault.expects is Expectation.RECOVERS

        return follow(fault, scene, keeper, until_mono_s=until_mono_s, tell=is_enough)


def onset(truth: Truth | Missing, first_seen_unix_s: Mapping[int, float]) -> float | Missing:
    """The culprit's last progress mark: the injector's own time, else the first sight of the step before the one it missed."""
    if isinstance(truth, Missing):
        return Missing(f"no onset: {truth.reason}")
    if truth.at_unix_s is not None:
        return truth.at_unix_s
    if truth.step is None:
        return Missing("no onset: this drill has none")
    return first_seen_unix_s.get(truth.step - 1, Missing(f"no onset: step {truth.step - 1} was never told"))


def _struck(truth: Truth | Missing, scene: Scene) -> int:
    return scene.rank if isinstance(truth, Missing) or truth.rank is None else truth.rank


def verify_bundles(events: Sequence[Event], job: Path, stands: Callable[[Path], bool]) -> dict[str, bool]:
    """Each sealed bundle's path, as its event gives it, and whether it stands; a relative path lies below the job directory."""
    return {event.path: stands(job / event.path) for event in events if event.kind == "bundle_sealed" and event.path}


def read_log_tails(events: Sequence[Event], job: Path, rank: int) -> dict[str, str]:
    """What each sealed bundle holds of the rank's log; a bundle without it is left out."""
    tails = {
        event.path: job / event.path / "ranks" / str(rank) / "log_tail.txt"
        for event in events
        if event.kind == "bundle_sealed" and event.path
    }
    return {path: tail.read_text(errors="replace") for path, tail in tails.items() if tail.is_file()}


def _bundle_stands(path: Path) -> bool:
    try:
        return run([sys.executable, "-m", "rankpatrol", "bundle", "verify", str(path)], deadline_s=60).exit_code == 0
    except CommandFailed:
        return False
