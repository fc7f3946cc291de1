"""`rankpatrol hub`: for resident agents of many nodes."""

import socket
from pathlib import Path

import click
import msgspec

from rankpatrol.cli.words import say
from rankpatrol.core.errors import UsageProblem
from rankpatrol.exchange.keys import KeysMade, KeysWanted, init_keys
from rankpatrol.schedulers.slurm_words import nodes_of
from rankpatrol.system.clock import SystemClock


@click.group()
def hub() -> None:
    """Keep watch over many nodes from one place."""


@hub.command("init-keys")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--nodes", required=True, metavar="N1,N2", help="The nodes, also as a hostlist: n[1-64].")
@click.option("--server", "hosts", multiple=True, metavar="HOST", help="How agents reach the broker; left out: as before, or this machine.")
@click.option("--days", type=click.IntRange(1, 3650), default=730, show_default=True, help="How long a certificate is good.")
@click.option("--port", type=click.IntRange(1, 65535), default=4222, show_default=True, help="Where the broker listens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def init_keys_command(folder: Path, nodes: str, hosts: tuple[str, ...], days: int, port: int, as_json: bool) -> None:
    """Make certificates and the broker's rights in DIR, so that no node can speak for another or hear another's orders.

    Run again, it adds nodes and renews what ends within 30 days; the rest stays. To shut a node out, remove DIR/nodes/NODE and run it
    again. Then tell the broker: nats-server --signal reload.
    """
    named = nodes_of(nodes)
    if not named:
        raise UsageProblem(f"{nodes!r} names no nodes", help="Write --nodes n1,n2 or --nodes 'n[1-64]'.")
    wanted = KeysWanted(nodes=named, hosts=hosts, here=_here(), lasts_days=days, port=port)
    made = init_keys(folder, wanted, SystemClock())
    if as_json:
        click.echo(msgspec.json.encode(made, enc_hook=str))
        return
    _print(made)


def _here() -> tuple[str, ...]:
    names = (socket.getfqdn(), socket.gethostname(), "localhost", "127.0.0.1")
    return tuple(dict.fromkeys(names))


def _print(made: KeysMade) -> None:
    say(f"{len(made.made)} certificates made, {len(made.kept)} kept; the broker knows {len(made.known)} nodes")
    say(f"  broker:  nats-server --config {made.folder / 'nats.conf'}   (known as {', '.join(made.hosts)})")
    say(f"  hub:     {made.folder / 'hub'}")
    say(f"  nodes:   copy {made.folder / 'nodes'}/NODE to that node alone, readable by its agent's user alone")
    say(f"  keep {made.folder / 'authority'} away from the cluster: it makes new certificates, and nothing else needs it")
