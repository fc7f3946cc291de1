"""`rankpatrol hub`: for resident agents of many nodes."""

import contextlib
import importlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from rankpatrol.agent.resident.hub import Hub, HubPlan
from rankpatrol.agent.resident.hub_seat import HubSeat
from rankpatrol.agent.resident.reached import Reached
from rankpatrol.agent.voice import Voice, stderr_voice
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import say, say_json
from rankpatrol.config.settings import PATIENCE
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import ExitCode, UsageProblem
from rankpatrol.core.records import Record
from rankpatrol.exchange.address import Address
from rankpatrol.exchange.key_files import key_files_in
from rankpatrol.exchange.keys import KeysMade, KeysWanted, init_keys
from rankpatrol.exchange.open import open_exchange, parse_address
from rankpatrol.exchange.port import Role
from rankpatrol.exchange.rights import HUB
from rankpatrol.exchange.server import Server, start_resident_server, start_server
from rankpatrol.metrics.address import Address as Listening
from rankpatrol.schedulers.slurm_words import nodes_of
from rankpatrol.system.clock import SystemClock

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ROUND_S, _SEAT_S = 0.5, 0.1
# A seal takes some seconds; the next hub takes up what was not finished.
_LAST_ROUNDS_S = 5.0


_NO_CLIENT = "metrics are not served: prometheus-client is not installed. The hub goes on. pip install '.[metrics]' in rankpatrol's clone"


class Stay(Record, frozen=True, kw_only=True):
    """The options of `rankpatrol hub`, but for the exchange."""

    keys: Path | None
    with_nats: bool
    jobs_dir: Path
    patience: str
    metrics: str | None


@click.group(short_help="Judge the jobs of all nodes from one place.", invoke_without_command=True)
@click.option(
    "--exchange",
    metavar="URL",
    envvar="RANKPATROL_EXCHANGE",
    help="The broker, tls://HOST:PORT or nats://TOKEN@HOST:PORT.  [default: none; needed]",
)
@click.option(
    "--keys", type=GivenPath(), metavar="FOLDER", help="The folder of `rankpatrol hub init-keys`, for tls://.  [default: none, for nats://]"
)
@click.option("--with-nats", is_flag=True, help="Start the broker as well, on the port of --exchange, and end it with the hub.")
@click.option(
    "--jobs-dir", type=click.Path(path_type=Path), default=Path("rankpatrol-runs"), show_default=True, help="Where jobs' records go."
)
@click.option("--patience", metavar="DURATION", default="180s", show_default=True, help="How long nothing may work before it is a hang.")
@click.option("--metrics", metavar="ADDR:PORT", help="Serve Prometheus metrics of all jobs there.  [default: none]")
@click.pass_context
def hub(context: click.Context, /, exchange: str | None, **given: Any) -> int:
    """Judge the jobs of all nodes on which `rankpatrol agent` runs. It names, seals and tells; it ends nothing.

    \b
    rankpatrol hub init-keys KEYS --nodes 'n[1-64]' --server hub
    rankpatrol hub --with-nats --exchange tls://hub:4222 --keys KEYS
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    if context.invoked_subcommand is not None:
        return ExitCode.OK
    if exchange is None:
        raise UsageProblem("where do the nodes meet?", help="--exchange tls://HOST:PORT --keys DIR, or nats://TOKEN@HOST:PORT")
    _stay(parse_address(exchange), Stay(**given))
    return ExitCode.OK


def _stay(address: Address, given: Stay) -> None:
    """Be the hub until a signal ends it."""
    patience_s = PATIENCE.from_text(given.patience)
    metrics_at = Listening.parse(given.metrics) if given.metrics else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    clock, voice, keys = SystemClock(), stderr_voice(), given.keys
    given.jobs_dir.mkdir(parents=True, exist_ok=True)
    jobs_dir = given.jobs_dir.absolute()
    broker = _broker(address, keys, jobs_dir) if given.with_nats else None
    near = msgspec.structs.replace(address, host="localhost") if broker is not None and keys is None else address
    place = open_exchange(near, HUB, role=Role.HUB, clock=clock, keys=key_files_in(keys / HUB) if keys else None)
    try:
        seat, reached = HubSeat(place, HUB, clock), Reached(place, voice, clock)
        if _is_seated(seat, reached):
            judges = Hub(place, HubPlan(node=HUB, jobs_dir=jobs_dir, patience_s=patience_s, readings=metrics_at is not None), clock, voice)
            voice.say(f"the hub listens at {address}; records of jobs go to {jobs_dir}")
            with _served(metrics_at, judges, voice):
                _judge(judges, seat, reached, voice)
    finally:
        place.close()
        if broker is not None:
            broker.stop()
        voice.rest()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _is_seated(seat: HubSeat, reached: Reached) -> bool:
    """True once the seat is ours; False where a signal came first. Raises HubTaken."""
    while not seat.taken():
        if signal.sigtimedwait(_ENDING, _SEAT_S) is not None:
            return False
        reached.mind()
    return True


def _judge(judges: Hub, seat: HubSeat, reached: Reached, voice: Voice) -> None:
    """Round after round, until a signal comes. Raises HubTaken."""
    try:
        while signal.sigtimedwait(_ENDING, _ROUND_S) is None:
            seat.mind()
            reached.mind()
            voice.show(judges.round())
    finally:
        judges.settle(_LAST_ROUNDS_S)


@contextlib.contextmanager
def _served(at: Listening | None, judges: Hub, voice: Voice) -> Iterator[None]:
    """Metrics, where they were asked for and can be served; the hub works without."""
    try:
        serving = importlib.import_module("rankpatrol.metrics.serving") if at is not None else None
    except ImportError:
        voice.say(_NO_CLIENT, "alert")
        serving = None
    server = serving.MetricsServer(at, judges.readings, voice.say) if serving is not None else None
    try:
        yield
    finally:
        if server is not None:
            server.close()


def _broker(address: Address, keys: Path | None, jobs_dir: Path) -> Server:
    """A broker of our own, with certificates where there are some, else with the token of the URL."""
    folder = jobs_dir.absolute() / ".broker"
    if keys is not None:
        return start_resident_server(folder, keys.absolute(), host="0.0.0.0", port=address.port)[0]  # ruff: ignore[S104] - by certificate
    if not address.token:
        raise UsageProblem("a broker needs a secret", help="--exchange nats://TOKEN@HOST:PORT, or certificates: rankpatrol hub init-keys")
    return start_server(folder, host="0.0.0.0", port=address.port, token=address.token)[0]  # ruff: ignore[S104] - closed by the token


@hub.command("init-keys", short_help="Make certificates and rights for resident agents.")
@click.argument("folder", type=GivenPath(), metavar="FOLDER")
@click.option("--nodes", required=True, metavar="NODES", help="The nodes, by commas or as a hostlist: n[1-64].  [default: none; needed]")
@click.option(
    "--server", "hosts", multiple=True, metavar="HOST", help="How agents reach the broker.  [default: as before, or this machine]"
)
@click.option("--days", type=click.IntRange(1, 3650), metavar="N", default=730, show_default=True, help="How long a certificate is good.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", default=4222, show_default=True, help="Where the broker listens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def init_keys_command(folder: Path, nodes: str, hosts: tuple[str, ...], days: int, port: int, as_json: bool) -> None:
    """Make certificates and the broker's rights in FOLDER, so that no node can speak for another or hear another's orders.

    Run again, it adds nodes and renews what ends within 30 days; the rest stays. To shut a node out, remove FOLDER/nodes/NODE and run it
    again. Then tell the broker: nats-server --signal reload.
    """
    named = nodes_of(nodes)
    if not named:
        raise UsageProblem(f"{nodes!r} names no nodes", help="Write --nodes n1,n2 or --nodes 'n[1-64]'.")
    wanted = KeysWanted(nodes=named, hosts=hosts, here=_here(), lasts_days=days, port=port)
    made = init_keys(folder, wanted, SystemClock())
    if as_json:
        say_json(msgspec.to_builtins(made, enc_hook=str))
        return
    _print(made)


def _here() -> tuple[str, ...]:
    names = (socket.getfqdn(), socket.gethostname(), "localhost", "127.0.0.1")
    return tuple(dict.fromkeys(names))


def _print(made: KeysMade) -> None:
    say(f"{say_count(len(made.made), 'certificate')} made, {len(made.kept)} kept; the broker knows {say_count(len(made.known), 'node')}")
    say(f"  broker:  nats-server --config {made.folder / 'nats.conf'}   (known as {', '.join(made.hosts)})")
    say(f"  hub:     {made.folder / 'hub'}")
    say(f"  nodes:   copy {made.folder / 'nodes'}/NODE to that node alone, readable by its agent's user alone")
    say(f"  keep {made.folder / 'authority'} away from the cluster: it makes new certificates, and nothing else needs it")
