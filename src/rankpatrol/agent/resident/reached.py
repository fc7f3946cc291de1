"""Says in the log of a service whether its exchange is reached: of a wrong key or address nothing else would be seen."""

from rankpatrol.agent.voice import Voice
from rankpatrol.exchange.port import Exchange
from rankpatrol.system.clock import Clock

# A broker that is started with us needs a moment, and an outage that is over by then is none to tell.
SAY_AFTER_S = 5.0


class Reached:
    """Told once each time it changes; a cut after it has lasted for SAY_AFTER_S. What is refused (another node's key) is told, too."""

    def __init__(self, exchange: Exchange, voice: Voice, clock: Clock) -> None:
        self._exchange, self._voice, self._clock = exchange, voice, clock
        self._cut_since_s: float | None = clock.mono_s()
        self._told = ""

    def mind(self) -> None:
        """To be called once in a while."""
        if self._exchange.connected():
            self._cut_since_s = None
            refused = self._exchange.trouble()
            self._tell(f"the exchange refuses us: {refused}" if refused else "the exchange is reached", "alert" if refused else "good")
            return
        now_s = self._clock.mono_s()
        self._cut_since_s = now_s if self._cut_since_s is None else self._cut_since_s
        if now_s - self._cut_since_s >= SAY_AFTER_S:
            self._tell(f"waiting for the exchange: {self._exchange.trouble() or 'it has not answered'}", "alert")

    def _tell(self, what: str, style: str) -> None:
        if self._told != what:
            self._told = what
            self._voice.say(what, style)
