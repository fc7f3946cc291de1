"""`rankpatrol agent`: stay on a node, and tell a hub of the jobs that run there."""

import signal
import socket
from pathlib import Path

import click

from rankpatrol.agent.resident.node import Plan, ResidentNode
from rankpatrol.agent.resident.reached import Reached
from rankpatrol.agent.voice import stderr_voice
from rankpatrol.cli.paths import GivenPath
from rankpatrol.core.errors import ExitCode, PatrolError
from rankpatrol.exchange.key_files import key_files_in
from rankpatrol.exchange.open import open_exchange, parse_address
from rankpatrol.exchange.port import Role
from rankpatrol.system.clock import SystemClock
from rankpatrol.system.files import private_folder

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ROUND_S = 1.0


@click.command(short_help="Stay on this node, and tell a hub of its jobs.")
@click.option(
    "--exchange",
    required=True,
    metavar="URL",
    envvar="RANKPATROL_EXCHANGE",
    help="The broker, tls://HOST:PORT or nats://TOKEN@HOST:PORT.  [default: none; needed]",
)
@click.option(
    "--keys",
    type=GivenPath(),
    metavar="FOLDER",
    help="This node's folder of `rankpatrol hub init-keys`, for tls://.  [default: none, for nats://]",
)
@click.option("--node", metavar="NODE", help="This node's name, as in its certificate.  [default: this host's name]")
@click.option(
    "--state-dir",
    type=GivenPath(),
    metavar="FOLDER",
    default="/var/lib/rankpatrol",
    show_default=True,
    help="A local folder for what was seen of each job.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.5, 60.0),
    metavar="N",
    default=5.0,
    show_default=True,
    help="Seconds between two words to the hub.",
)
def agent(exchange: str, keys: Path | None, node: str | None, state_dir: Path, every_s: float) -> int:
    """Stay on this node: find its training jobs, tell the hub of them, and look closely when it asks. Nothing is ever ended.

    \b
    rankpatrol agent --exchange tls://hub:4222 --keys /etc/rankpatrol/keys
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    clock, voice, node = SystemClock(), stderr_voice(), node or socket.gethostname()
    place = open_exchange(parse_address(exchange), node, role=Role.NODE, clock=clock, keys=key_files_in(keys) if keys else None)
    resident = ResidentNode(place, Plan(node=node, folder=private_folder(state_dir, "the folder of --state-dir"), every_s=every_s), clock)
    reached = Reached(place, voice, clock)
    voice.say(f"looks after the jobs of node {node}, and ends none")
    try:
        while signal.sigtimedwait(_ENDING, _ROUND_S) is None:
            reached.mind()
            try:
                voice.show(resident.round())
            except (PatrolError, OSError) as problem:
                voice.say(f"a round failed: {problem}", "alert")
    finally:
        resident.close()
        voice.rest()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ExitCode.OK
