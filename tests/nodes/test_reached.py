"""A service says in its log whether its exchange is reached, once each time that changes."""

from clocks import FakeClock
from rankpatrol.agent.resident.reached import SAY_AFTER_S, Reached


class Place:
    """An exchange of which only its standing counts."""

    def __init__(self):
        self.up, self.why = False, ""

    def connected(self):
        return self.up

    def trouble(self):
        return self.why


class Heard:
    def __init__(self):
        self.lines = []

    def say(self, what, style="plain"):
        self.lines.append((style, what))


def test_an_exchange_that_is_not_there_is_told_once_it_lasts_and_that_it_came():
    place, heard, clock = Place(), Heard(), FakeClock()
    reached = Reached(place, heard, clock)
    place.why = "Connect call failed"
    for _ in range(10):
        reached.mind()
        clock.advance(SAY_AFTER_S / 5)
    place.up, place.why = True, ""
    reached.mind()
    reached.mind()
    assert heard.lines == [("alert", "waiting for the exchange: Connect call failed"), ("good", "the exchange is reached")]


def test_an_outage_that_is_soon_over_is_none_to_tell_and_a_long_one_is():
    place, heard, clock = Place(), Heard(), FakeClock()
    reached = Reached(place, heard, clock)
    for up, lasts_s in ((True, 1.0), (False, SAY_AFTER_S / 2), (True, 1.0), (False, 0.0), (False, SAY_AFTER_S)):
        place.up = up
        clock.advance(lasts_s)
        reached.mind()
    assert [what for _, what in heard.lines] == ["the exchange is reached", "waiting for the exchange: it has not answered"]


def test_what_is_refused_is_told():
    place, heard = Place(), Heard()
    reached = Reached(place, heard, FakeClock())
    place.up, place.why = True, "Permissions Violation for Publish"
    reached.mind()
    assert heard.lines == [("alert", "the exchange refuses us: Permissions Violation for Publish")]
