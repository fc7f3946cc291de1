"""The one seat of a hub on an exchange: hubs hear each other's claims, and whoever came later goes."""

import random
import secrets
import socket

from rankpatrol.agent.nodes.wire import NotOurs, pack, unpack
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record
from rankpatrol.exchange.port import Exchange
from rankpatrol.system.clock import Clock

# A hub answers another's claim in its next round, half a second later; a busy machine gets its time.
ASKS_S = 3.0
# Not in step with another's: the newest claim alone is kept, and must not always be our own.
_CLAIMS_EVERY_S = (1.5, 2.5)
_DICE = random.Random()  # ruff: ignore[S311] - jitter, no secret


class HubTaken(PatrolError):
    """Another hub judges the jobs of this exchange."""

    help = (
        "Two hubs would alert twice and count each job twice. Stop the other one, or let it be: it goes on. "
        "If that host is gone for good, nothing answers there any more, and this command works."
    )


class Claim(Record, frozen=True, kw_only=True):
    """A hub's word: whose it is, how long it has had the seat (its own clock), and whether it only asks for it."""

    own: str
    host: str
    seated_for_s: float
    asks: bool


class HubSeat:
    """This hub's claim, told on its own subject."""

    def __init__(self, exchange: Exchange, name: str, clock: Clock) -> None:
        self._exchange, self._name, self._clock = exchange, name, clock
        self._own, self._host = secrets.token_hex(8), socket.gethostname()
        self._seated_at_s: float | None = None
        self._asks_until_s: float | None = None
        self._claim_due_s = float("-inf")
        self._read_at_s = float("-inf")

    def taken(self) -> bool:
        """One short step on the way to the seat: True once nobody has claimed it for a while. Raises HubTaken."""
        if self._seated_at_s is not None:
            return True
        now_s = self._clock.mono_s()
        other = self._others_claim()
        if other is not None and (not other.asks or other.own < self._own):
            raise HubTaken(f"another hub, on {other.host}, {_does(other)}")
        if not self._exchange.connected():
            self._asks_until_s = None
        elif self._asks_until_s is None:
            self._asks_until_s = now_s + ASKS_S
        elif now_s >= self._asks_until_s:
            self._seated_at_s = now_s
        if self._asks_until_s is not None and (self._seated_at_s is not None or now_s >= self._claim_due_s):
            self._claim()
        return self._seated_at_s is not None

    def mind(self) -> None:
        """Once a round: keep the claim up, and answer others'. Raises HubTaken where another has had the seat for longer."""
        other = self._others_claim()
        if other is not None and not other.asks and (other.seated_for_s, other.own) > (self._seated_for_s(), self._own):
            raise HubTaken(f"another hub, on {other.host}, {_does(other)}; this one came later")
        if other is not None or self._clock.mono_s() >= self._claim_due_s:
            self._claim()

    def _others_claim(self) -> Claim | None:
        """A claim that is not ours and was not read before."""
        heard = self._exchange.states().get(self._name)
        if heard is None or heard.heard_at_mono == self._read_at_s:
            return None
        self._read_at_s = heard.heard_at_mono
        try:
            claim = unpack(heard.state, Claim)
        except NotOurs:
            return None
        return None if claim.own == self._own else claim

    def _claim(self) -> None:
        self._claim_due_s = self._clock.mono_s() + _DICE.uniform(*_CLAIMS_EVERY_S)
        asks = self._seated_at_s is None
        self._exchange.tell(pack(Claim(own=self._own, host=self._host, seated_for_s=round(self._seated_for_s(), 3), asks=asks)))

    def _seated_for_s(self) -> float:
        return 0.0 if self._seated_at_s is None else self._clock.mono_s() - self._seated_at_s


def _does(other: Claim) -> str:
    return "is about to judge the jobs of this exchange" if other.asks else "judges the jobs of this exchange"
