"""The subjects of a broker: where a state is told, and where a node's orders come in. A broker's rights are given on these."""

from rankpatrol.exchange.names import token_of

_ROOT = "rankpatrol"
# Answers come to a place of the asker's own: rights can be given on it.
INBOX = "_INBOX_"


def state_of(node: str) -> str:
    """Where a node tells its state."""
    return f"{_ROOT}.state.{token_of(node)}"


def states_of_all() -> str:
    """Where the hub listens."""
    return f"{_ROOT}.state.*"


def to_node(node: str, kind: str, name: str) -> str:
    """One order. A place that nobody listens to is known to the broker, so that whoever asks learns it at once."""
    return f"{_ROOT}.to.{token_of(node)}.{kind}.{token_of(name)}"


def orders_to(node: str) -> str:
    """Where a node listens."""
    return f"{_ROOT}.to.{token_of(node)}.>"


def orders_to_all() -> str:
    """Where a hub may give orders."""
    return f"{_ROOT}.to.>"
