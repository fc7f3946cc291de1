"""The port through which agents speak with each other. It knows no broker: every call has a deadline and returns a value or why not."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from rankpatrol.core.records import Missing, Record

# An answer is given to a command's name and its body.
Answer = Callable[[str, bytes], bytes]


class Role(StrEnum):
    """The hub hears the states of all nodes; a node tells its own."""

    HUB = "hub"
    NODE = "node"


class Heard(Record, frozen=True):
    """A node's newest state, and when it came in by our own monotonic clock."""

    state: bytes
    heard_at_mono: float


class Exchange(Protocol):
    """One agent's place among the others. All of it may be called from any thread."""

    def tell(self, state: bytes) -> None:
        """Give the hub this node's newest state. Never blocks, never raises; while cut off only the newest is kept."""

    def states(self) -> dict[str, Heard]:
        """The newest state of each node that the hub has heard since it came; empty on a node that is no hub."""

    def serve(self, answer: Answer) -> None:
        """Answer others' commands on worker threads, several at a time. What `answer` raises goes back as the reason why not."""

    def ask(self, node: str, command: str, body: bytes, deadline_s: float) -> bytes | Missing:
        """One node's answer. Missing at once where nobody of that name is connected. Asked twice, it is done twice."""

    def scatter(self, nodes: Sequence[str], command: str, body: bytes, deadline_s: float) -> dict[str, bytes | Missing]:
        """The answers of several nodes, asked side by side within one deadline."""

    def ask_each(self, bodies: Mapping[str, bytes], command: str, deadlines_s: Mapping[str, float]) -> dict[str, bytes | Missing]:
        """The same with a body and a deadline for each node."""

    def fetch(self, node: str, name: str, into: Path, deadline_s: float) -> int | Missing:
        """Copy a file that the node offers to `into`, whole and with the same hash, or not at all. Its size in bytes."""

    def offer(self, name: str, path: Path) -> None:
        """Let others fetch this file by a plain name. Raises UsageProblem where the name is none."""

    def connected(self) -> bool:
        """True while this node is part of the exchange; it returns by itself after an outage."""

    def trouble(self) -> str:
        """Why it is cut off, or what was refused last; empty where nothing is wrong."""

    def close(self) -> None:
        """Leave, for good."""
