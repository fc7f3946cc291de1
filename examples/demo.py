"""A training hangs, is named, broken off and finished: `make demo`, about a minute and a half on two cores.

One block of one rank's data stops in mid-read, as storage does. Nothing in train.py knows of any of this.
"""

import argparse
import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from rankpatrol.affinity.sysfs import read_machine
from rankpatrol.core.errors import PatrolError
from rankpatrol.drill.faults import make
from rankpatrol.drill.runner import Settings, environment, follow, kept, patrol_command
from rankpatrol.drill.scene import build, draw
from rankpatrol.drill.truth import read_truth

DEADLINE_S = 150
STOP_S = 45
SETTINGS = Settings(patience="15s")


def say(text=""):
    print(f"demo | {text}".rstrip(), flush=True)


def narrate(event):
    """What the patrol's own lines, which stand around these, do not say."""
    if event.kind == "alert":
        say("a suspect is named; nobody is touched yet, since the read may still go on by itself")
    elif event.kind == "bundle_sealed":
        say("the evidence is sealed: only now may the job be touched")
    elif event.kind == "attempt_ended" and event.attempt == 0:
        say("the storage is well again: the block is whole for the next attempt")


def introduce(scene, seed, command):
    say(f"four ranks train on two loader processes each; seed {seed} draws rank {scene.rank} and step {scene.step}")
    say(f"the block that rank {scene.rank} needs for step {scene.step} will give half of its bytes and then stop: {scene.block()}")
    say(binding())
    say("the command is")
    say(f"  {shlex.join(['rankpatrol', *command[3:]])}")
    say()


def binding():
    """What will be done about NUMA on this machine: often nothing, and that is said too."""
    nodes = read_machine().with_cpus()
    if len(nodes) <= 1:
        return "NUMA: one node has all the CPUs, so there is nothing to bind"
    return f"NUMA: {len(nodes)} nodes have CPUs; each rank says below what it is bound to, or why it is not"


def stages(events, step_seen, truth):
    """(what, when) of each stage that was reached, in the order of a good run."""
    first = {}
    for event in events:
        first.setdefault((event.kind, event.attempt > 0), event.at_unix_s)
    yield "start", first.get(("job_started", False))
    yield "first step", step_seen.get(1)
    if truth is not None:
        yield f"last step before the hang ({truth.step - 1})", step_seen.get(truth.step - 1)
    yield "suspect named", first.get(("alert", False))
    yield "verdict", first.get(("verdict", False))
    yield "evidence sealed", first.get(("bundle_sealed", False))
    yield "acted", first.get(("action", False))
    yield "attempt ended", first.get(("attempt_ended", False))
    yield "next attempt started", first.get(("attempt_started", True))
    if truth is not None:
        yield f"step {truth.step} done", step_seen.get(truth.step)
    yield "job ended", next((event.at_unix_s for event in reversed(events) if event.kind == "job_ended"), None)


def summarise(scene, seen, exit_code):
    truth = read_truth(scene.truth)
    truth = truth if hasattr(truth, "rank") else None
    named = [event for event in seen.events if event.named]
    sealed = [scene.job / event.path for event in seen.events if event.kind == "bundle_sealed" and event.path]
    resumed = [event for event in seen.events if event.kind == "resumed"]
    say()
    say(f"struck      rank {scene.rank}" + (f", loader process {truth.pids[0]}" if truth else ": the block was never asked for"))
    say(f"named       {', '.join(f'rank {rank}' for rank in named[-1].named) if named else 'nobody'}")
    if sealed:
        say(f"evidence    {sealed[0]}")
        say(f"            open {sealed[0] / 'report.html'} in a browser; `rankpatrol bundle verify` checks its hashes")
    say(f"resumed     {resumed[0].checkpoint if resumed else 'from nothing'}")
    say(f"finished    {'yes' if scene.last_checkpoint.exists() else 'no'}, exit code {exit_code}")
    say()
    before = None
    for what, when in stages(seen.events, seen.step_seen_unix_s, truth):
        if when is not None:
            before = before or when
            say(f"{when - before:8.1f} s  {what}")
    say()
    say(f"all of it is in {scene.folder}")
    return exit_code == 0 and bool(named) and named[-1].named == (scene.rank,) and scene.last_checkpoint.exists()


def perform(fault, scene, command, env):
    """Returns what was seen and the exit code; Ctrl-C is passed on as a terminal would, and what is left is ended."""
    with kept(command, env, left_file=scene.truth.with_name("left.txt"), output=None) as keeper:
        try:
            seen = follow(fault, scene, keeper, until_mono_s=time.monotonic() + DEADLINE_S, tell=narrate)
        except KeyboardInterrupt:
            say("stopping")
            keeper.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(STOP_S)
            raise
        return seen, keeper.poll()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default=secrets.token_hex(2), help="draws the same rank and step again")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rankpatrol-demo-"))
    scene = msgspec.structs.replace(draw(folder, seed=args.seed, ranks=4), steps=60)
    fault = make("F6b")
    try:
        build(scene)
        script = os.path.relpath(Path(__file__).with_name("train.py"))
        command = [script if word == str(scene.script) else word for word in patrol_command(scene, SETTINGS)]
        introduce(scene, args.seed, command)
        seen, exit_code = perform(fault, scene, command, environment(fault.prepare(scene)))
    except KeyboardInterrupt:
        say("all is ended")
        return 130
    except PatrolError as problem:
        say(f"{problem}. {problem.help}")
        return 1
    finally:
        fault.clear()
    return 0 if summarise(scene, seen, exit_code) else 1


if __name__ == "__main__":
    sys.exit(main())
