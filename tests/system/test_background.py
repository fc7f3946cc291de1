"""Whoever must not wait does not, though what it asks for hangs."""

import threading

import pytest

from rankpatrol.core.records import Missing
from rankpatrol.system import background
from rankpatrol.system.background import Courier, Rounds, within


def test_an_answer_that_hangs_costs_only_the_deadline_and_the_last_one_stands():
    asked, free = threading.Event(), threading.Event()
    answers = iter([1, 2])

    def learn():
        answer = next(answers, 3)
        if answer == 2:
            asked.set()
            free.wait(10)
        return answer

    rounds = Rounds(learn, 0, every_s=0.01, name="test")
    assert asked.wait(10)
    assert rounds.now(0.05) == 1
    free.set()


def test_a_round_that_was_asked_for_begins_after_the_question():
    seen = []
    rounds = Rounds(lambda: len(seen), 0, every_s=3600, name="test")
    rounds.now(10)
    seen.append("something new")
    assert rounds.now(10) == 1


def test_deeds_are_done_in_order_and_a_hanging_one_holds_nobody_up():
    begun, free, done = threading.Event(), threading.Event(), []
    courier = Courier("test")

    def hang():
        begun.set()
        free.wait(10)

    courier.send(hang)
    assert begun.wait(10)
    for number in range(3):
        courier.send(lambda number=number: done.append(number))
    assert not courier.delivered(0.05)
    free.set()
    assert courier.delivered(10)
    assert done == [0, 1, 2]


def test_a_newer_state_takes_the_place_of_one_that_has_not_begun():
    begun, free, done = threading.Event(), threading.Event(), []
    courier = Courier("test")

    def hang():
        begun.set()
        free.wait(10)

    courier.send(hang)
    assert begun.wait(10)
    for number in range(100):
        courier.send(lambda number=number: done.append(number), instead_of="state.json")
    free.set()
    assert courier.delivered(10)
    assert done == [99]


class Disk:
    """Refuses while it is full."""

    def __init__(self):
        self.full, self.took = True, []

    def takes(self, what):
        def deed():
            if self.full:
                raise OSError(28, "No space left on device")
            self.took.append(what)

        return deed


def test_a_deed_that_fails_does_not_stop_the_others_and_is_not_called_done():
    disk, done = Disk(), []
    courier = Courier("test")
    courier.send(disk.takes("bundle"))
    courier.send(lambda: done.append(1))
    assert not courier.delivered(10)
    assert (done, courier.waiting(), courier.trouble()) == ([1], 1, "No space left on device")


def test_what_was_refused_is_tried_again_before_what_came_later():
    disk = Disk()
    courier = Courier("test")
    for what in (1, 2):
        courier.send(disk.takes(what))
    assert not courier.delivered(10)
    disk.full = False
    courier.send(disk.takes(3))
    assert courier.delivered(10)
    assert (disk.took in ([1, 2, 3], [3, 1, 2]), courier.waiting(), courier.trouble()) == (True, 0, "")


def test_a_newer_state_takes_the_place_of_one_that_was_refused():
    disk = Disk()
    courier = Courier("test")
    courier.send(disk.takes("old"), instead_of="state.json")
    assert not courier.delivered(10)
    disk.full = False
    courier.send(disk.takes("new"), instead_of="state.json")
    assert courier.delivered(10)
    assert disk.took == ["new"]


def test_what_was_refused_goes_with_the_next_thing_that_is_taken(monkeypatch):
    monkeypatch.setattr(background, "_RETRY_S", -1.0)
    disk, came = Disk(), threading.Event()
    courier = Courier("test")
    courier.send(disk.takes("bundle"))
    assert not courier.delivered(10)
    disk.full = False
    courier.send(lambda: None)
    courier.send(came.set)
    assert came.wait(10)
    assert disk.took == ["bundle"], "nobody had to ask"


def test_work_is_waited_for_until_the_deadline_and_then_left_behind():
    release = threading.Event()
    assert within(lambda: 7, 5, name="quick") == 7
    assert within(lambda: release.wait(30), 0.05, name="stuck") == Missing("not done within 0.05 s")
    release.set()


def test_what_the_work_raises_is_raised_to_whoever_waits():
    def fail():
        raise ValueError("no")

    def time_out():
        raise TimeoutError("its own")

    with pytest.raises(ValueError, match="no"):
        within(fail, 5, name="fails")
    with pytest.raises(TimeoutError, match="its own"):
        within(time_out, 5, name="times-out")


def threads_named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_rounds_that_nobody_has_any_more_end():
    rounds = Rounds(lambda: 1, 0, every_s=0.01, name="rounds-of-nobody")
    assert rounds.now(60) == 1
    (thread,) = threads_named("rounds-of-nobody")
    del rounds
    thread.join(60)
    assert not thread.is_alive()


def test_a_courier_that_nobody_has_any_more_ends_once_all_is_carried(monkeypatch):
    monkeypatch.setattr(background, "_OWNER_LOOK_S", 0.01)
    courier, carried, go = Courier("courier-of-nobody"), [], threading.Event()
    courier.send(lambda: carried.append(go.wait(60)))
    courier.send(lambda: carried.append("last"))
    (thread,) = threads_named("courier-of-nobody")
    del courier
    go.set()
    thread.join(60)
    assert carried == [True, "last"]
    assert not thread.is_alive()
