"""One connection of the NATS client, with what the client itself gets wrong put right."""

import asyncio
import contextlib
import logging
from typing import Any

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing

FAILURES = (OSError, NatsError, PatrolError)
# The client's own limit for a confirmation; ours comes long before.
_NEVER_S = 10**6
_SENT_S = 0.002
_LEAST_S = 0.001
_LOOKS_EVERY_S = 1.0
# The client begins without TLS and goes on with it, at which asyncio wonders at each end; without a handler that would go to stderr.
logging.getLogger("nats").addHandler(logging.NullHandler())
logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in str(record.msg))


class Refused(NatsError):
    """The broker's rights do not let us take this place."""


class Connection:
    """One connection, until it is lost."""

    def __init__(self) -> None:
        self.client = Client()
        loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = loop.create_future()
        self.joining = True
        self.refusal = ""
        self.orders: Subscription | None = None
        # The broker answers there where a state has no listener: its "no responders" of a request.
        self.unheard_at = ""
        self.unheard = False
        # Whoever waits for an answer, and on which subject: the future brings why the broker refused.
        self._waiting: dict[asyncio.Future[str], str] = {}
        self._confirming: set[asyncio.Task[None]] = set()

    async def confirmed(self, within_s: float) -> None:
        """Return once the broker has taken all that was sent so far, and what it said of it is here. Raises TimeoutError.

        The client's `flush` asks at once, and overtakes what has not left the client yet. It must not be broken off while the connection
        lives: an answer that nobody waits for any more ends the client's reading.
        """
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + within_s, 0.0
        while self.client.pending_data_size:
            if loop.time() > until:
                raise TimeoutError
            await asyncio.sleep(pause_s)
            pause_s = _SENT_S
        asking = loop.create_task(self.client.flush(_NEVER_S))
        asking.add_done_callback(_seen)
        self._confirming.add(asking)
        await asyncio.wait({asking}, timeout=until - loop.time())
        if not asking.done():
            raise TimeoutError
        self._confirming.discard(asking)
        asking.result()

    async def request(self, subject: str, body: bytes, deadline_s: float) -> bytes | Missing:
        """The answer to one message, or why there is none. Raises NatsError or OSError where it cannot be sent.

        Waited for from outside: the client swallows a cancellation that reaches it while it sends.
        """
        loop = asyncio.get_running_loop()
        refused: asyncio.Future[str] = loop.create_future()
        asking = loop.create_task(self.client.request(subject, body, timeout=max(deadline_s, _LEAST_S)))
        asking.add_done_callback(_seen)
        self._waiting[refused] = subject
        try:
            ends: list[asyncio.Future[Any]] = [asking, refused, self.over]
            await asyncio.wait(ends, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if refused.done():
                return Missing(f"the exchange refuses it: {refused.result()}")
            if asking.done():
                return bytes(asking.result().data)
            return Missing("the connection was lost before an answer came" if self.over.done() else f"no answer within {deadline_s:g} s")
        finally:
            del self._waiting[refused]
            asking.cancel()

    def refuse(self, message: str) -> None:
        """End the wait for an answer to what the broker did not let through."""
        for refused, subject in self._waiting.items():
            # The client gives the broker's word in lower case.
            if f'"{subject}"'.lower() in message.lower() and not refused.done():
                refused.set_result(message)

    def lose(self) -> None:
        """Nobody will answer any more."""
        if not self.over.done():
            self.over.set_result(None)

    async def lost(self) -> None:
        """Return once the connection is lost. The client forgets to say so where its last bytes cannot be sent any more."""
        while not self.over.done():
            await asyncio.wait([self.over], timeout=_LOOKS_EVERY_S)
            if self.client.is_closed:
                self.lose()

    async def close(self) -> None:
        """Never raises, and leaves nothing behind: the client does where the peer is gone before its last bytes are."""
        self.lose()
        with contextlib.suppress(*FAILURES):
            await self.client.close()
        for asking in self._confirming:
            asking.cancel()
        for subscription in list(getattr(self.client, "_subs", {}).values()):
            if reading := getattr(subscription, "_wait_for_msgs_task", None):
                reading.cancel()
        with contextlib.suppress(*FAILURES):
            if (transport := getattr(self.client, "_transport", None)) is not None:
                transport.close()

    def too_large(self, what: str, message: bytes) -> str:
        """Why a message cannot go, or nothing: a broker that others keep may have a limit below ours."""
        most = self.client.max_payload
        return f"{what} of {len(message)} bytes is larger than this broker takes (max_payload {most})" if len(message) > most else ""


def _seen(done: "asyncio.Task[Any]") -> None:
    """An error that nobody waits for any more is no news."""
    if not done.cancelled():
        done.exception()
