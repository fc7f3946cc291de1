"""Places at an exchange, for tests."""

import time

from rankpatrol.exchange.open import connected_within, open_exchange
from rankpatrol.exchange.port import Role

WITHIN_S = 10.0


def eventually(look, within_s=WITHIN_S):
    """What `look` returns once it is true; it is asked again until then."""
    until = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)
    return seen


class Places:
    """Opens places at one exchange, and closes them at the end."""

    def __init__(self, address):
        self.address = address
        self._opened = []

    def node(self, name, role=Role.NODE, **more):
        exchange = open_exchange(self.address, name, role=role, **more)
        self._opened.append(exchange)
        assert connected_within(exchange, WITHIN_S), exchange.trouble()
        return exchange

    def hub(self, name="hub", **more):
        return self.node(name, Role.HUB, **more)

    def close(self):
        for exchange in self._opened:
            exchange.close()
