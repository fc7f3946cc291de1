"""The page tells the story, opens offline, and does nothing but show text."""

import re
from html.parser import HTMLParser

import msgspec
import pytest
from evidence_scene import ONSET_UNIX_S, incident_ref, stuck_findings
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import LogSample, Snapshot, SystemCall
from rankpatrol.evidence.capture import Findings
from rankpatrol.evidence.picture import draw, say_ranks
from rankpatrol.evidence.report import is_library, render, short_file, waits_in

findings = pytest.fixture(stuck_findings)


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def page_of(findings: Findings) -> str:
    return render(incident_ref(), findings, ONSET_UNIX_S + 184)


class Elements(HTMLParser):
    """Collects every element with its attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_says_who_why_and_what_next(findings: Findings) -> None:
    text = Elements(page_of(findings)).text
    diagnosis = findings.diagnosis
    assert diagnosis.sentence in text
    for line in (*diagnosis.reasons_for, *diagnosis.reasons_against, *diagnosis.suggested):
        assert line.replace("`", "") in text
    assert "supported: two independent lines of evidence agree" in text
    assert "2026-11-29 12:20:16 UTC" in text
    assert "184 s later" in text
    assert "rank 3: native stack once, 0.3 s" in text
    assert "stands where it stood 168 s earlier" in text


def test_culprit_comes_first_with_what_its_loader_process_waits_in(findings: Findings) -> None:
    text = Elements(page_of(findings)).text
    rows = text[text.index("Rank by rank") :]
    assert re.findall(r"rank (\d)\s*(?:culprit|victim)", rows) == ["3", "0", "1", "2"]
    assert "pt_data_worker 23701: openat(/mnt/datasets/imagenet-wds/train/shard-0042.tar) · wait_for_partner" in rows


def test_every_frame_of_every_process_is_on_the_page(findings: Findings) -> None:
    text = Elements(page_of(findings)).text
    stacks = [stack for sample in findings.snapshot.ranks for stack in (sample.stack, *sample.child_stacks.values())]
    threads = [thread for stack in stacks if not isinstance(stack, Missing) for thread in stack.threads]
    assert len(threads) > 20
    assert all(frame.name in text for thread in threads for frame in thread.frames)


def test_page_asks_for_nothing_from_outside_and_runs_nothing(findings: Findings) -> None:
    html = page_of(findings)
    elements = Elements(html).found
    assert not {tag for tag, _ in elements} & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on") or name in {"src", "href", "action"}]
    assert "url(" not in html.replace("url(#head", "")
    assert {"content": "default-src 'none'; style-src 'unsafe-inline'", "http-equiv": "Content-Security-Policy"} in [
        attributes for _, attributes in elements
    ]


def hostile(findings: Findings, text: str) -> Findings:
    """The text in every place that comes from a user's machine."""
    sample = findings.snapshot.ranks[3]
    assert not isinstance(sample.process, Missing)
    assert not isinstance(sample.stack, Missing)
    thread = sample.stack.threads[0]
    frame = msgspec.structs.replace(thread.frames[0], name=text, file=text)
    call = SystemCall("openat", (), text)
    process = msgspec.structs.replace(sample.process, name=text, command=(text,), system_call=call, wait_channel=text)
    rank = msgspec.structs.replace(
        sample,
        node=text,
        process=process,
        stack=msgspec.structs.replace(sample.stack, threads=(msgspec.structs.replace(thread, name=text, frames=(frame,)),)),
        log=LogSample(1, (text,), None),
    )
    other = msgspec.structs.replace(findings.snapshot.ranks[2], stack=Missing(text), log=Missing(text))
    return msgspec.structs.replace(
        findings,
        diagnosis=msgspec.structs.replace(
            findings.diagnosis, verdict=text, cause=text, sentence=text, reasons_for=(text,), suggested=(f"`{text}`",), file=text
        ),
        snapshot=msgspec.structs.replace(findings.snapshot, job=text, ranks=(*findings.snapshot.ranks[:2], other, rank)),
        native={3: text},
        host={"kernel_log": text, text: [text]},
        scheduler={text: text},
        checkpoints=text,
        touched=(text,),
    )


def test_markup_in_logs_paths_and_names_is_inert(findings: Findings) -> None:
    plain, attacked = Elements(page_of(hostile(findings, "plain"))), Elements(page_of(hostile(findings, HOSTILE)))
    assert [tag for tag, _ in attacked.found] == [tag for tag, _ in plain.found]
    assert [sorted(attributes) for _, attributes in attacked.found] == [sorted(attributes) for _, attributes in plain.found]
    assert attacked.text.count("<script>alert(1)</script>") >= 15


def test_rank_that_is_gone_says_how_and_what_is_missing(findings: Findings) -> None:
    gone = Missing("the process is gone")
    lost = msgspec.structs.replace(
        findings.snapshot.ranks[2], exit_status=-9, process=gone, stack=gone, log=Missing("no log file"), descendants=(), child_stacks={}
    )
    snapshot = msgspec.structs.replace(findings.snapshot, ranks=(*findings.snapshot.ranks[:2], lost, findings.snapshot.ranks[3]))
    text = Elements(page_of(msgspec.structs.replace(findings, snapshot=snapshot))).text
    assert "ended by SIGKILL" in text
    assert "no stack: the process is gone" in text
    assert "no log: no log file" in text


def test_nobody_named_draws_ranks_without_arrows(findings: Findings) -> None:
    undetermined = Diagnosis(verdict="undetermined", cause="unknown", sentence="no rank can be named")
    changed = msgspec.structs.replace(findings, diagnosis=undetermined, snapshot_at_alert=None, native={}, host={})
    assert "no rank can be named" in page_of(changed)
    assert draw(undetermined, findings.snapshot).arrows == ()


def test_picture_leads_from_victims_to_the_file(findings: Findings) -> None:
    picture = draw(findings.diagnosis, findings.snapshot)
    assert [box.kind for box in picture.boxes] == ["victim", "victim", "victim", "culprit", "process", "file"]
    assert [arrow.label for arrow in picture.arrows] == ["", "", "", "waits for", "blocked in openat()"]


@given(st.integers(1, 700), st.integers(0, 700), st.text(max_size=300), st.booleans())
def test_picture_of_any_job_stays_inside_its_frame(world: int, culprit: int, file: str, named: bool) -> None:
    ranks = tuple(
        msgspec.convert(
            {"rank": rank, "local_rank": 0, "node": "n", "shim_pid": 1, "pid": 2, "process": {"type": "missing", "reason": "x"}},
            type=Snapshot.__annotations__["ranks"].__args__[0],
        )
        for rank in range(world)
    )
    snapshot = Snapshot(job="j", attempt=0, at_mono_s=0.0, at_unix_s=0.0, world_size=world, ranks=ranks)
    victims = tuple(rank for rank in range(world) if rank != culprit)
    diagnosis = Diagnosis(
        verdict="hang", cause="x", sentence="s", culprit_ranks=(culprit,) if named else None, victim_ranks=victims, file=file or None
    )
    picture = draw(diagnosis, snapshot)
    assert len(picture.boxes) <= 13
    assert picture.width <= 1_200
    for box in picture.boxes:
        assert box.x >= 0
        assert box.x + box.width <= picture.width
        assert box.y + box.height <= picture.height


def test_page_of_a_large_job_keeps_full_stacks_of_those_waited_for(findings: Findings) -> None:
    template = findings.snapshot.ranks[0]
    many = tuple(msgspec.structs.replace(template, rank=rank, local_rank=rank % 8) for rank in range(4, 300))
    snapshot = msgspec.structs.replace(findings.snapshot, world_size=300, ranks=(*findings.snapshot.ranks, *many))
    html = page_of(msgspec.structs.replace(findings, snapshot=snapshot))
    assert len(html) < 3_000_000
    assert "DS.load_sample" in html
    assert "ranks/299/" in html


@pytest.mark.parametrize(
    ("file", "short", "library"),
    [
        ("/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", "torch/autograd/graph.py", True),
        ("/usr/local/lib/python3.11/multiprocessing/queues.py", "multiprocessing/queues.py", True),
        ("/home/me/projects/vision/train.py", "projects/vision/train.py", False),
        ("train.py", "train.py", False),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>", True),
        ("<string>", "<string>", False),
    ],
)
def test_file_is_shown_by_the_part_that_matters(file: str, short: str, library: bool) -> None:
    assert short_file(file) == short
    assert is_library(file) is library


def test_unknown_call_is_said_to_be_unknown(findings: Findings) -> None:
    process = findings.snapshot.ranks[0].process
    assert not isinstance(process, Missing)
    unknown = msgspec.structs.replace(process, system_call=Missing("may not be read"), wait_channel=Missing("may not be read"))
    assert waits_in(unknown) == "system call unknown: may not be read"
    assert waits_in(msgspec.structs.replace(process, system_call=SystemCall("running"), wait_channel="0")) == "in user space"


@pytest.mark.parametrize(("ranks", "said"), [((3,), "rank 3"), ((0, 1, 2, 5), "ranks 0-2, 5"), ((7, 3), "ranks 3, 7")])
def test_ranks_are_said_as_spans(ranks: tuple[int, ...], said: str) -> None:
    assert say_ranks(ranks) == said
