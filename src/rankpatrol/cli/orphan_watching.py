"""`rankpatrol orphans --watch`: the whole node, again and again. Only what is new is said."""

import time
from collections.abc import Iterator
from typing import NoReturn

from rankpatrol.cli.orphan_words import finding, line_of, say_released
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import ProcessId
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, Released, reap, stopped_by
from rankpatrol.orphans.records import Judged, Verdict
from rankpatrol.orphans.state import Remembered

_AS_IT_SHOULD_BE = frozenset({Verdict.OWN, Verdict.SERVICE, Verdict.OURSELVES, Verdict.HARMLESS})
NVML_S = 3.0
Who = ProcessId | int | None


class News:
    """What was said already, by process or GPU. Pure."""

    def __init__(self) -> None:
        self._told: dict[Who, Verdict] = {}

    def of(self, judged: tuple[Judged, ...]) -> Iterator[Judged]:
        """What is worth a word and was not said before, or is judged otherwise by now."""
        now = {_who(one): one for one in judged if one.verdict not in _AS_IT_SHOULD_BE}
        yield from (one for who, one in now.items() if self._told.get(who) is not one.verdict)
        self._told = {who: one.verdict for who, one in now.items()}


def _who(one: Judged) -> Who:
    return one.gpu if one.process is None else one.process.id


def watch_node(patrol: OrphanPatrol, memory: Remembered, rules: ReapRules | None, *, every_s: float, as_json: bool) -> NoReturn:
    """Look, say what is new, release what is proven where there are `rules` for that; until we are ended. A scan that fails is said."""
    news, complaints = News(), Complaints()
    while True:
        try:
            patrol.gpus(NVML_S)  # what was said a minute or more ago says nothing of now
            judged = patrol.look()
            at_unix_s = time.time()
            for one in news.of(judged):
                _say(one, at_unix_s, as_json=as_json)
            complaints.say("not remembered", memory.keep(patrol.history, at_unix_s))
            if rules is not None:
                what = plan(judged, patrol.policy, stopped_by=stopped_by(rules.kill_switches))
                complaints.say("left alone", what.alert)
                _tell(reap(what, patrol, rules), as_json=as_json)
            complaints.say("this scan failed", "")
        except (OSError, PatrolError) as problem:
            complaints.say("this scan failed", str(problem))
        time.sleep(every_s)


class Complaints:
    """What is wrong with the watch itself: said on stderr when it begins or changes, not every minute."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def say(self, what: str, why: str) -> None:
        """An empty `why`: all is well again."""
        if why and self._said.get(what) != why:
            say(f"rankpatrol: {what}: {why}", err=True)
        self._said[what] = why


def _say(one: Judged, at_unix_s: float, *, as_json: bool) -> None:
    if as_json:
        say_json({"at_unix_s": at_unix_s, **finding(one)})
    else:
        say(line_of(one, at_unix_s))


def _tell(released: tuple[Released, ...], *, as_json: bool) -> None:
    if not as_json:
        say_released(released)
    for one in released if as_json else ():
        say_json({"at_unix_s": time.time(), "released": one})
