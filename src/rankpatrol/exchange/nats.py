"""The carrier NATS: core messages alone, nothing is stored. A lost connection is followed by a new one, whose pauses are ours."""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from rankpatrol.core.errors import UsageProblem
from rankpatrol.core.records import Missing
from rankpatrol.exchange.address import Address
from rankpatrol.exchange.backoff import pauses
from rankpatrol.exchange.key_files import KeyFiles, tls_context
from rankpatrol.exchange.loop_thread import shared_loop
from rankpatrol.exchange.names import name_of, token_of
from rankpatrol.exchange.nats_connection import FAILURES, Connection, Refused
from rankpatrol.exchange.port import Heard, Role
from rankpatrol.exchange.subjects import INBOX, orders_to, state_of, states_of_all, to_node
from rankpatrol.exchange.wire import MOST_BYTES, Order, Seat, Taker, bad, opened, settled
from rankpatrol.system.clock import Clock

# Of 5,000 nodes that come at once over TLS the last is served after 12 s.
_CONNECT_S = 20.0
# A peer that is gone without a word is noticed by the next state told, or else by pings.
_CONFIRM_S = 20.0
_PING_S = 20
_LAST_WORDS_S = 1.0
# While there is no hub the newest state is offered again, seldom: a new one comes every few seconds anyway.
_UNHEARD_S = 5.0
# A connection that lasted so long was a good one: the pauses begin anew.
_STEADY_S = 30.0


class NatsWire:
    """A Wire (wire.py)."""

    def __init__(self, address: Address, seat: Seat, take: Taker, clock: Clock, keys: KeyFiles | None = None) -> None:
        self._address, self._seat, self._take, self._clock, self._keys = address, seat, take, clock, keys
        self._lock = threading.Lock()
        self._heard: dict[str, Heard] = {}
        self._heard_so_far: dict[str, Heard] | None = None
        self._newest: tuple[int, bytes] = (0, b"")
        self._told = 0
        self._trouble = "not connected yet"
        self._connection: Connection | None = None
        self._closed = False
        self._loop = shared_loop()
        self._news = asyncio.Event()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)

    def tell(self, state: bytes) -> None:
        if len(state) > MOST_BYTES:
            self._trouble = f"a state of {len(state)} bytes is larger than one message ({MOST_BYTES}) and was not told"
            return
        with self._lock:
            self._newest = (self._newest[0] + 1, bytes(state))
        self._soon(self._news.set)

    def states(self) -> dict[str, Heard]:
        with self._lock:
            if self._heard_so_far is None:
                self._heard_so_far = dict(self._heard)
            return self._heard_so_far

    def send(self, node: str, order: Order, deadline_s: float) -> "Future[bytes | Missing]":
        connection = self._connection
        if connection is None or self._closed:
            return settled(Missing(f"not connected to the exchange: {self._trouble}"))
        try:
            subject = to_node(node, order.kind, order.name)
        except UsageProblem as problem:
            return settled(Missing(str(problem)))
        return asyncio.run_coroutine_threadsafe(self._request(connection, node, (subject, order.body), deadline_s), self._loop)

    def connected(self) -> bool:
        return self._connection is not None

    def trouble(self) -> str:
        return self._trouble

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):  # the loop may be gone already
            asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result(3 * _LAST_WORDS_S)

    async def _live(self) -> None:
        waits = pauses(_chance)
        while True:
            began = self._loop.time()
            connection = Connection()
            try:
                await self._stay(connection)
                self._trouble = "the connection was lost"
            except FAILURES as problem:
                self._trouble = _why(problem)
            finally:
                self._connection = None
                await connection.close()
            if self._loop.time() - began > _STEADY_S:
                waits = pauses(_chance)
            await asyncio.sleep(next(waits))

    async def _stay(self, connection: Connection) -> None:
        """Be connected, until the connection is lost."""
        await asyncio.wait_for(self._join(connection), 2 * _CONNECT_S)
        self._trouble = ""
        self._connection = connection
        self._news.set()
        telling = asyncio.create_task(self._tell_on(connection))
        try:
            await connection.lost()
        finally:
            telling.cancel()

    async def _join(self, connection: Connection) -> None:
        async def lost() -> None:
            connection.lose()

        async def unheard(_: Msg) -> None:
            connection.unheard = True

        async def hear_error(problem: Exception) -> None:
            if connection.joining:
                raise problem  # out of `connect`, which would try again by itself
            connection.refusal = self._trouble = _why(problem)
            connection.refuse(str(problem))

        await connection.client.connect(
            servers=[f"{self._address.scheme}://{self._address.netloc()}"],
            name=token_of(self._seat.node),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=int(_CONNECT_S),
            ping_interval=_PING_S,
            inbox_prefix=INBOX + token_of(self._seat.node),
            tls=tls_context(self._keys) if self._keys else None,  # read again each time: certificates are renewed
            error_cb=hear_error,
            closed_cb=lost,
            token=self._address.token or None,
        )
        connection.joining = False
        connection.orders = await connection.client.subscribe(orders_to(self._seat.node), cb=self._on_order(connection))
        connection.unheard_at = connection.client.new_inbox()
        await connection.client.subscribe(connection.unheard_at, cb=unheard)
        if self._seat.role is Role.HUB:
            await connection.client.subscribe(states_of_all(), cb=self._on_state)
        # Once this returns the broker knows what we listen to.
        await connection.confirmed(_CONNECT_S)
        if connection.refusal:  # a place where nothing is heard is none
            raise Refused(connection.refusal)

    async def _tell_on(self, connection: Connection) -> None:
        """Send the newest state whenever there is one, and again until a hub is there to hear it."""
        again = pauses(_chance, most_s=_UNHEARD_S)
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                heard = await self._tell_newest(connection, _CONFIRM_S)
            except FAILURES as problem:
                self._trouble = f"a state could not be told: {_why(problem)}"
                connection.lose()
                return
            if heard:
                again = pauses(_chance, most_s=_UNHEARD_S)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), next(again))
            self._news.set()

    async def _tell_newest(self, connection: Connection, within_s: float) -> bool:
        """True once the broker has confirmed what came after it, and has not said that nobody listens."""
        with self._lock:
            number, state = self._newest
        if number == self._told:
            return True
        if too_large := connection.too_large("a state", state):
            self._trouble = too_large
            self._told = number
            return True
        connection.unheard = False
        await connection.client.publish(state_of(self._seat.node), state, reply=connection.unheard_at)
        await connection.confirmed(within_s)
        if connection.unheard:
            return False
        self._told = number
        return True

    async def _on_state(self, message: Msg) -> None:
        node = name_of(message.subject.rpartition(".")[2])
        if node is not None:
            with self._lock:
                self._heard[node] = Heard(message.data, self._clock.mono_s())
                self._heard_so_far = None

    def _on_order(self, connection: Connection) -> Callable[[Msg], Coroutine[Any, Any, None]]:
        async def on_order(message: Msg) -> None:
            kind, token = message.subject.split(".")[-2:]
            name = name_of(token)
            if name is not None and message.reply:
                self._take(Order(kind, name, message.data), self._reply(connection, message.reply))

        return on_order

    def _reply(self, connection: Connection, inbox: str) -> Callable[[bytes], None]:
        async def publish(answer: bytes) -> None:
            # Whoever asked over a connection that is lost has been told so and asks again.
            with contextlib.suppress(*FAILURES):
                if not connection.over.done():
                    too_large = connection.too_large("the answer", answer)
                    await connection.client.publish(inbox, bad(too_large) if too_large else answer)

        return lambda answer: self._soon(lambda: self._loop.create_task(publish(answer)))

    async def _request(self, connection: Connection, node: str, order: tuple[str, bytes], deadline_s: float) -> bytes | Missing:
        try:
            reply = await connection.request(*order, deadline_s)
        except NoRespondersError:
            return Missing(f"nobody named {node} is connected")
        except TimeoutError:
            return Missing(f"{node}: no answer within {deadline_s:g} s")
        except (OSError, NatsError) as problem:
            return Missing(f"{node} cannot be asked: {_why(problem)}")
        return Missing(f"{node}: {reply.reason}") if isinstance(reply, Missing) else opened(node, reply)

    async def _leave(self) -> None:
        """The newest state is still told, if it goes quickly; once this returns the broker knows that nobody is here."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(*FAILURES):
                if connection.orders is not None:
                    await connection.orders.unsubscribe()
                await self._tell_newest(connection, _LAST_WORDS_S)
                await connection.confirmed(_LAST_WORDS_S)
        self._life.cancel()
        if connection is not None:
            await connection.close()
        self._trouble = "this exchange was closed"

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the process is ending
            self._loop.call_soon_threadsafe(call)


def _chance() -> float:
    return secrets.randbelow(1 << 20) / (1 << 20)


def _why(problem: BaseException) -> str:
    """What went wrong, in the words of whoever refused."""
    text = str(problem).removeprefix("nats: ").strip("'\" ")
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    return text or type(problem).__name__
