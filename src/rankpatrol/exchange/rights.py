"""Who may say and hear what, as a broker's configuration: the broker itself keeps a node from speaking for another."""

from collections.abc import Iterable
from pathlib import Path

from rankpatrol.core.errors import BadInput
from rankpatrol.exchange.key_files import CA, CERTIFICATE, KEY
from rankpatrol.exchange.names import token_of
from rankpatrol.exchange.server_config import quoted
from rankpatrol.exchange.subjects import INBOX, orders_to, orders_to_all, state_of, states_of_all

HUB = "hub"
DEMANDS = "demands.conf"
# One answer to one order, within the longest deadline that an order has.
_ANSWERS = '{ max: 1, expires: "15m" }'
# 5,000 nodes at once keep one core busy for 12 s; NATS's own limit of 2 s would turn most of them away.
_HANDSHAKE_S = 20


def demands_of(server: Path, nodes: Iterable[str]) -> str:
    """Certificates of our authority alone, and what each of them allows. The user of a certificate is its subject: `CN=<node>`.

    A node tells its own state, hears its own orders and answers each of them once. It cannot ask: an answer of the hub, which may say
    anything, could be led to another node's orders.
    """
    tls = (
        f"tls {{ cert_file: {quoted(str(server / CERTIFICATE))}, key_file: {quoted(str(server / KEY))}, "
        f"ca_file: {quoted(str(server / CA))}, verify_and_map: true, timeout: {_HANDSHAKE_S} }}\n"
    )
    users = [_user(HUB, (orders_to_all(), state_of(HUB)), (states_of_all(), orders_to(HUB)))]
    users += [_user(node, (state_of(node),), (orders_to(node),)) for node in nodes]
    return f"{tls}authorization {{ timeout: {_HANDSHAKE_S}, users: [\n{''.join(users)}] }}\n"


def demands_in(keys: Path) -> str:
    """What keys.py wrote. Raises BadInput."""
    try:
        return (keys / DEMANDS).read_text()
    except (OSError, UnicodeError) as problem:
        raise BadInput(f"{keys / DEMANDS} cannot be read", help="Make it: rankpatrol hub init-keys DIR --nodes n1,n2") from problem


def _user(node: str, says: Iterable[str], hears: Iterable[str]) -> str:
    said = ", ".join(quoted(subject) for subject in says)
    heard = ", ".join(quoted(subject) for subject in (*hears, f"{INBOX}{token_of(node)}.>"))
    return (
        f"  {{ user: {quoted(f'CN={node}')}, permissions: {{ publish: [{said}], subscribe: [{heard}], allow_responses: {_ANSWERS} }} }}\n"
    )
