"""The file for node_exporter: whole at any time, and nobody's trouble where its folder refuses."""

import os
import queue
import time

from prometheus_client.parser import text_string_to_metric_families
from readings import reading

from rankpatrol.metrics.textfile import MetricsFile


class Kept:
    """A file that is kept, and what was said of it."""

    def __init__(self, folder, *, every_s=0.01, job="train"):
        self.said, self.latest = queue.Queue(), [reading()]
        self.file = MetricsFile(folder, job, lambda: self.latest, lambda what, style: self.said.put((what, style)), every_s=every_s)


def test_the_file_is_whole_whenever_it_is_read(tmp_path):
    kept = Kept(tmp_path)
    until = time.monotonic() + 10
    seen = set()
    while len(seen) < 20:
        assert time.monotonic() < until
        kept.latest = [reading(step=len(seen) + 1)]
        try:
            content = kept.file.path.read_text()
        except FileNotFoundError:
            continue
        assert content.endswith("\n")
        families = {family.name: family for family in text_string_to_metric_families(content)}
        seen.add(families["rankpatrol_job_steps"].samples[0].value)
        assert "rankpatrol_agent_backlog_records" in families
    kept.file.last_word(10)
    assert [path.name for path in tmp_path.iterdir()] == ["rankpatrol-train.prom"]


def test_the_last_word_is_written_at_once_and_stays(tmp_path):
    kept = Kept(tmp_path, every_s=3600)
    kept.latest = [reading(ended="stopped")]
    kept.file.last_word(10)
    assert 'rankpatrol_job_ended{job_id="train",node="n0",reason="stopped"} 1.0' in kept.file.path.read_text()


def test_others_may_read_it_whatever_our_umask_is(tmp_path):
    before = os.umask(0o077)
    try:
        kept = Kept(tmp_path, every_s=3600)
        kept.file.last_word(10)
    finally:
        os.umask(before)
    assert kept.file.path.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_not_there_is_told_once_and_written_to_when_it_is(tmp_path):
    folder = tmp_path / "later"
    kept = Kept(folder)
    what, style = kept.said.get(timeout=10)
    assert style == "alert"
    assert what.startswith(f"metrics are not written: {folder}/rankpatrol-train.prom: No such file or directory. The patrol goes on")
    folder.mkdir()
    kept.file.last_word(10)
    assert kept.file.path.exists()
    assert kept.said.empty()


def test_a_folder_that_hangs_is_left_behind(tmp_path):
    kept = Kept(tmp_path, every_s=3600)
    kept.file._source = lambda: time.sleep(3600)
    began_s = time.monotonic()
    kept.file.last_word(0.2)
    assert time.monotonic() - began_s < 5


def test_what_ended_more_than_a_day_ago_is_swept_and_nothing_else(tmp_path):
    old = time.time() - 2 * 86400
    for name in ("rankpatrol-old.prom", "other-old.prom", "rankpatrol-old.txt", "rankpatrol-train.prom"):
        (tmp_path / name).write_text("x 1\n")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "rankpatrol-new.prom").write_text("x 1\n")
    Kept(tmp_path, every_s=3600).file.last_word(10)
    assert {path.name for path in tmp_path.iterdir()} == {
        "other-old.prom",
        "rankpatrol-old.txt",
        "rankpatrol-train.prom",
        "rankpatrol-new.prom",
    }


def test_who_leaves_a_job_that_goes_on_leaves_no_file(tmp_path):
    kept = Kept(tmp_path)
    until = time.monotonic() + 10
    while not kept.file.path.exists():
        assert time.monotonic() < until
    kept.file.withdraw(10)
    assert list(tmp_path.iterdir()) == []
