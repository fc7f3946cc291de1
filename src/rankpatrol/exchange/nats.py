"""The carrier NATS: core messages alone, nothing is stored. A lost connection is followed by a new one, whose pauses are ours."""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from rankpatrol.core.errors import PatrolError, UsageProblem
from rankpatrol.core.records import Missing
from rankpatrol.exchange.address import Address
from rankpatrol.exchange.backoff import pauses
from rankpatrol.exchange.key_files import KeyFiles, tls_context
from rankpatrol.exchange.loop_thread import shared_loop
from rankpatrol.exchange.names import name_of, token_of
from rankpatrol.exchange.port import Heard, Role
from rankpatrol.exchange.subjects import INBOX, orders_to, state_of, states_of_all, to_node
from rankpatrol.exchange.wire import MOST_BYTES, Order, Seat, Taker, bad, opened, settled
from rankpatrol.system.clock import Clock

_CONNECT_S = 5.0
# A peer that is gone without a word is noticed by the next state told, or else by pings.
_CONFIRM_S = 10.0
_PING_S = 20
_LAST_WORDS_S = 1.0
_SENT_S = 0.002
# While there is no hub the newest state is offered again, seldom: a new one comes every few seconds anyway.
_UNHEARD_S = 5.0
# A connection that lasted so long was a good one: the pauses begin anew.
_STEADY_S = 30.0
# The client begins without TLS and goes on with it, at which asyncio wonders at each end; without a handler that would go to stderr.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in str(record.msg))
_Failure = (OSError, NatsError, PatrolError)


class Refused(NatsError):
    """The broker's rights do not let us take this place."""


class Connection:
    """One connection, until it is lost."""

    def __init__(self) -> None:
        self.client = Client()
        self.over = asyncio.Event()
        self.joining = True
        self.refusal = ""
        self.orders: Subscription | None = None
        # The broker answers there where a state has no listener: its "no responders" of a request.
        self.unheard_at = ""
        self.unheard = False
        # Who waits for an answer on which subject, and why the broker refused.
        self.waiting: dict[asyncio.Task[Any], str] = {}
        self.refused: dict[asyncio.Task[Any], str] = {}

    def lose(self) -> None:
        """Nobody will answer any more."""
        self.over.set()
        for task in list(self.waiting):
            task.cancel()

    def refuse(self, message: str) -> None:
        """End the wait for an answer to what the broker did not let through."""
        for task, subject in list(self.waiting.items()):
            if subject.lower() in message.lower():  # the client gives the broker's word in lower case
                self.refused[task] = message
                task.cancel()


class NatsWire:
    """A Wire (wire.py)."""

    def __init__(self, address: Address, seat: Seat, take: Taker, clock: Clock, keys: KeyFiles | None = None) -> None:
        self._address, self._seat, self._take, self._clock, self._keys = address, seat, take, clock, keys
        self._lock = threading.Lock()
        self._heard: dict[str, Heard] = {}
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
            return dict(self._heard)

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
            except _Failure as problem:
                self._trouble = _why(problem)
            finally:
                self._connection = None
                connection.lose()
                with contextlib.suppress(*_Failure):
                    await connection.client.close()
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
            await connection.over.wait()
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
        await _confirmed(connection.client, _CONNECT_S)
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
            except _Failure as problem:
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
        if len(state) > connection.client.max_payload:
            self._trouble = _too_large("a state", state, connection.client)
            self._told = number
            return True
        connection.unheard = False
        await connection.client.publish(state_of(self._seat.node), state, reply=connection.unheard_at)
        await _confirmed(connection.client, within_s)
        if connection.unheard:
            return False
        self._told = number
        return True

    async def _on_state(self, message: Msg) -> None:
        node = name_of(message.subject.rpartition(".")[2])
        if node is not None:
            with self._lock:
                self._heard[node] = Heard(message.data, self._clock.mono_s())

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
            with contextlib.suppress(*_Failure):
                if not connection.over.is_set():
                    if len(answer) > connection.client.max_payload:
                        answer = bad(_too_large("the answer", answer, connection.client))
                    await connection.client.publish(inbox, answer)

        return lambda answer: self._soon(lambda: self._loop.create_task(publish(answer)))

    async def _request(self, connection: Connection, node: str, order: tuple[str, bytes], deadline_s: float) -> bytes | Missing:
        task = asyncio.current_task()
        assert task is not None  # ruff: ignore[S101] - we run in one
        subject, body = order
        connection.waiting[task] = subject
        try:
            reply = await connection.client.request(subject, body, timeout=deadline_s)
            return opened(node, reply.data)
        except NoRespondersError:
            return Missing(f"nobody named {node} is connected")
        except TimeoutError:
            return Missing(f"no answer of {node} within {deadline_s:g} s")
        except (OSError, NatsError) as problem:
            return Missing(f"{node} cannot be asked: {_why(problem)}")
        except asyncio.CancelledError:
            refused = connection.refused.pop(task, None)
            return Missing(f"the exchange refuses it: {refused}" if refused else f"the connection was lost before {node} answered")
        finally:
            connection.waiting.pop(task, None)

    async def _leave(self) -> None:
        """The newest state is still told, if it goes quickly; once this returns the broker knows that nobody is here."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(*_Failure):
                if connection.orders is not None:
                    await connection.orders.unsubscribe()
                await self._tell_newest(connection, _LAST_WORDS_S)
                await _confirmed(connection.client, _LAST_WORDS_S)
        self._life.cancel()
        if connection is not None:
            with contextlib.suppress(*_Failure):
                await connection.client.close()
        self._trouble = "this exchange was closed"

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the process is ending
            self._loop.call_soon_threadsafe(call)


async def _confirmed(client: Client, within_s: float) -> None:
    """Return once the broker has taken all that was sent so far, and what it said of it is here.

    `flush` alone asks at once, and overtakes what the client has not put on its way yet.
    """
    async with asyncio.timeout(within_s):
        pause_s = 0.0
        while client.pending_data_size:
            await asyncio.sleep(pause_s)
            pause_s = _SENT_S
        await client.flush()


def _chance() -> float:
    return secrets.randbelow(1 << 20) / (1 << 20)


def _too_large(what: str, message: bytes, client: Client) -> str:
    """A broker that others keep may have a limit below ours."""
    return f"{what} of {len(message)} bytes is larger than this broker takes (max_payload {client.max_payload})"


def _why(problem: BaseException) -> str:
    """What went wrong, in the words of whoever refused."""
    text = str(problem).removeprefix("nats: ").strip("'\" ")
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    return text or type(problem).__name__
