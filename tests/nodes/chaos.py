"""Agents and the broker of a two-node job killed at random moments of an incident: `chaos.py [RUNS]`.

After each run: nothing was acted upon twice, nothing without its whole bundle, no sealed evidence is lost, and the job came to its end.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from test_two_nodes import TRAINING, two_nodes


def broker_of(hub: int) -> int | None:
    for pid in Path(f"/proc/{hub}/task").glob("*/children"):
        for child in pid.read_text().split():
            if b"nats" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def victim(job, what: str) -> int | None:
    try:
        if what == "broker":
            return broker_of(job.agent_of(0))
        return job.agent_of(0 if what == "hub" else 1)
    except (AssertionError, OSError):
        return None


def play(folder: Path, dice: random.Random) -> list[str]:
    killed = []
    with two_nodes(folder, str(TRAINING), "1") as job:
        job.wait_for("attempt_started", 120)
        # The rank stands after 1 s, is named some seconds later, judged after 3 s, sealed and ended within 2.
        for _ in range(dice.randint(1, 3)):
            time.sleep(dice.uniform(0.0, 6.0))
            what = dice.choice(["hub", "node", "broker"])
            if (pid := victim(job, what)) is not None:
                os.kill(pid, signal.SIGKILL)
                killed.append(what)
        problems = [f"exit codes {codes}"] if (codes := job.codes()) != [0, 0] else []
        events = job.events()
    bundles = [event["path"] for event in events if event["kind"] == "bundle_sealed"]
    acted = [event for event in events if event["kind"] == "action" and event["what"] == "end_attempt" and event["done"]]
    if len(acted) != 1:
        problems.append(f"ended {len(acted)} times")
    for event in acted:
        before = [other for other in events if other["kind"] == "bundle_sealed" and other["at_unix_s"] <= event["at_unix_s"]]
        if not before:
            problems.append("an action without its bundle")
    for path in bundles:
        done = subprocess.run(
            [sys.executable, "-m", "rankpatrol", "bundle", "verify", str(folder / "job" / path)], capture_output=True, check=False
        )
        if done.returncode != 0:
            problems.append(f"{path} does not stand")
        ranks = json.loads((folder / "job" / path / "manifest.json").read_text())["ranks"] if done.returncode == 0 else []
        if [rank["rank"] for rank in ranks] != [0, 1]:
            problems.append(f"{path} holds {[rank['rank'] for rank in ranks]}")
    if [event["reason"] for event in events if event["kind"] == "job_ended"] != ["finished"]:
        problems.append("not finished once")
    print(f"killed {killed}: {'; '.join(problems) or 'ok'}", flush=True)
    return problems


def main(runs: int) -> int:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed:08x}")
    failed = 0
    for number in range(runs):
        folder = Path(tempfile.mkdtemp(prefix="rankpatrol-chaos-"))
        failed += bool(play(folder, random.Random(f"{seed:08x}-{number}")))
    print(f"{runs - failed} of {runs} without a problem")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
