"""The agent's keeper, over programs that stand for the agent."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch_subjects import wait_for

from rankpatrol.launch.agent_keeper import AgentKeeper, KeepingRules
from rankpatrol.launch.parent import ENDING

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); open({ready!r}, 'w').close(); time.sleep(30)"


@pytest.fixture(autouse=True)
def _blocked() -> Iterator[None]:
    """As run_job has it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING, signal.SIGCHLD})
    yield
    while signal.sigtimedwait({*ENDING, signal.SIGCHLD}, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keeper(code: str, **rules: float) -> AgentKeeper:
    return AgentKeeper([sys.executable, "-S", "-c", code], lambda: None, KeepingRules(**{"pause_s": 0.0, **rules}))  # type: ignore[arg-type]


def keep_until(agent: AgentKeeper, look: Callable[[], bool]) -> None:
    def kept() -> bool | None:
        agent.keep()
        return look() or None

    wait_for(kept)


def test_it_is_started_again_so_often_and_no_more(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    starts = tmp_path / "starts"
    agent = keeper(f"open({str(starts)!r}, 'a').write('x')", starts_most=3)
    keep_until(agent, lambda: agent._starts_left < 0)
    assert starts.read_text() == "xxx"
    assert capfd.readouterr().err == "rankpatrol: the agent ended too often and is not started again; the training goes on without patrol\n"


def test_it_is_not_started_again_at_once(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    agent = keeper(f"open({str(starts)!r}, 'a').write('x')", pause_s=60.0)
    agent.keep()
    wait_for(lambda: starts.exists() or None)
    wait_for(lambda: None if agent._runs() else True)
    agent.keep()
    agent.farewell(ENDING)
    agent.dismiss()
    agent.dismiss()
    assert starts.read_text() == "x"


def test_its_last_words_are_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    agent = keeper(DEAF.format(ready=str(ready)), last_words_s=0.3, goes_within_s=0.2)
    agent.keep()
    wait_for(lambda: ready.exists() or None)
    began = time.monotonic()
    agent.farewell(ENDING)
    agent.dismiss()
    assert 0.5 <= time.monotonic() - began < 3
    assert not agent._runs()


def test_last_words_that_come_are_waited_for_no_longer() -> None:
    agent = keeper("import time; time.sleep(0.2)", last_words_s=10.0)
    agent.keep()
    began = time.monotonic()
    agent.farewell(ENDING)
    assert time.monotonic() - began < 5


def test_a_ctrl_c_cuts_the_last_words_short_unless_it_came_before_them(tmp_path: Path) -> None:
    code = "import os, time; time.sleep(0.5); os.kill(os.getppid(), 2); time.sleep(30)"
    agent = keeper(code, last_words_s=15.0, goes_within_s=0.2)
    agent.keep()
    signal.raise_signal(signal.SIGINT)
    began = time.monotonic()
    agent.farewell(ENDING)
    assert 0.2 < time.monotonic() - began < 5
    agent.dismiss()
    assert not agent._runs()


def test_an_agent_that_cannot_be_started_is_no_matter() -> None:
    agent = AgentKeeper(["/no/such/program"], lambda: None, KeepingRules(pause_s=0.0, starts_most=2))
    agent.keep()
    agent.farewell(ENDING)
    agent.dismiss()
