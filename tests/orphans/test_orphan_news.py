"""A watch says what is new, once."""

from orphan_scenes import after, gpu, process, scan, word

from rankpatrol.cli.orphan_watching import Complaints, News
from rankpatrol.cli.orphan_words import line_of
from rankpatrol.orphans.records import JobState, Judged, Verdict

ENDED, LIVES = word("77"), word("77", JobState.LIVE)
ONE = process()


def verdicts(news: News, judged: tuple[Judged, ...]) -> list[Verdict]:
    return [one.verdict for one in news.of(judged)]


def test_what_was_said_is_not_said_again() -> None:
    news = News()
    orphan = after(scan(ONE, jobs=[ENDED]))
    assert verdicts(news, orphan) == [Verdict.ORPHAN]
    assert verdicts(news, orphan) == []


def test_what_is_judged_otherwise_is_said() -> None:
    news = News()
    assert verdicts(news, after(scan(ONE, jobs=[ENDED]), scans=1)) == [Verdict.UNKNOWN]
    assert verdicts(news, after(scan(ONE, jobs=[ENDED]), scans=2)) == [Verdict.ORPHAN]


def test_what_is_as_it_should_be_is_no_news() -> None:
    assert verdicts(News(), after(scan(ONE, jobs=[LIVES]))) == []


def test_what_went_and_came_again_is_news() -> None:
    news = News()
    orphan = after(scan(ONE, jobs=[ENDED]))
    assert verdicts(news, orphan) == [Verdict.ORPHAN]
    assert verdicts(news, ()) == []
    assert verdicts(news, orphan) == [Verdict.ORPHAN]


def test_a_gpu_is_told_beside_the_processes() -> None:
    judged = after(scan(process(devices=("/dev/nvidia7",)), jobs=[LIVES], gpus=(gpu(used_gib=39.0),)), scans=3)
    (one,) = News().of(judged)
    assert (one.verdict, one.gpu) == (Verdict.GHOST_MEMORY, 0)
    assert " ghost memory: GPU 0: 39.0 GiB are in use" in line_of(one, 0.0)


def test_a_complaint_is_made_when_it_begins_and_when_it_changes(capsys) -> None:
    complaints = Complaints()
    for why in ("no room", "no room", "", "no room", "refused"):
        complaints.say("not remembered", why)
    assert capsys.readouterr().err.splitlines() == [f"rankpatrol: not remembered: {why}" for why in ("no room", "no room", "refused")]
