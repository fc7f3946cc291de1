"""Logs for tests: the collected ones, and time-outs rendered in the forms of torch's versions and of launchers' prefixes."""

import json
import re
from pathlib import Path

from rankpatrol.analysis.told.logs import diagnose_logs
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.formats.log_ledger import Ledger
from rankpatrol.formats.log_reader import Reader

DATA = Path(__file__).parent / "data"


def collected() -> dict[str, tuple[str, list[list]]]:
    """Text and accepted answers of each collected case, by name."""
    cases = {
        path.name[:3]: (path.with_name(f"{path.name[:3]}.input.txt").read_text(), json.loads(path.read_text())["accept"])
        for path in sorted((DATA / "cases").glob("*.expected.json"))
    }
    accepted = json.loads((DATA / "told" / "accepted.json").read_text())
    return cases | {name: ((DATA / "told" / f"{name}.txt").read_text(), answers) for name, answers in accepted.items()}


def answer_of(text: str) -> Diagnosis:
    ledger, reader = Ledger(), Reader("log")
    for number, line in enumerate(text.split("\n"), 1):
        ledger.take(reader.read(number, line))
    ledger.take(reader.finish())
    return diagnose_logs(ledger)


def named(answer: Diagnosis) -> list[int] | None:
    ranks = answer.awaited_ranks if answer.verdict == "benign_wait" else answer.culprit_ranks
    return sorted(ranks) if ranks else None


def short(answer: Diagnosis) -> list:
    return [answer.verdict, answer.cause, named(answer)]


# Where a rank's number stands in these texts; group 2 is the number.
_RANK = re.compile(
    r"(\b[Rr]ank\s*[ =:]{0,2}\s?|\[rank|\[1,|\btasks? |\bRanks (?:\d+, )*|\branks \d+, |^ {0,2}(?=\d{1,3}: \[rank))(\d{1,4})\b",
    re.MULTILINE,
)
_LIST = re.compile(r"\bRanks? (\d+(?:, \d+)+)")


def permuted(text: str, order: dict[int, int]) -> str:
    """The same text with each rank's number replaced."""

    def new(number: str) -> str:
        return str(order.get(int(number), int(number)))

    lists = {seen.start(1): seen for seen in _LIST.finditer(text)}
    replaced = _RANK.sub(
        lambda seen: seen[0] if any(begin <= seen.start(2) < lists[begin].end(1) for begin in lists) else seen[1] + new(seen[2]), text
    )
    return _LIST.sub(lambda seen: f"Ranks {', '.join(new(number) for number in seen[1].split(', '))}", replaced)


WORK = {
    "1.9": "WorkNCCL(OpType={op}, Timeout(ms)={ms})",
    "1.13": "WorkNCCL(SeqNum={seq}, OpType={op}, TensorShape=[{n}], Timeout(ms)={ms})",
    "2.0": "WorkNCCL(SeqNum={seq}, OpType={op}, Timeout(ms)={ms})",
    "2.1": "WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)={ms})",
}
HEAD = {
    "1.9": "[E ProcessGroupNCCL.cpp:325] [Rank {r}] ",
    "2.1": "[E ProcessGroupNCCL.cpp:475] [Rank {r}] ",
    "2.3": "[rank{r}]:[E ProcessGroupNCCL.cpp:563] [Rank {r}] ",
    "2.7": "[rank{r}]:[E722 09:00:10.118820000 ProcessGroupNCCL.cpp:632] [Rank {r}] ",
}
STATUS = {
    "2.3": "[rank{r}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {r}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {enq}, "
    "last completed NCCL work: {comp}.",
    "2.5": "[rank{r}]:[E722 09:00:10.118820000 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Exception (either an "
    "error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {enq}, last completed NCCL work: {comp}.",
    "2.7": "[rank{r}]:[E722 09:00:10.118820000 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by "
    "watchdog at work sequence id: {seq} PG status: last enqueued work: {enq}, last completed work: {comp}",
}
PREFIX = {
    "none": "",
    "srun": "{r:>3}: ",
    "mpirun": "[1,{r}]<stderr>:",
    "horovodrun": "[{r}]<stderr>:",
    "kubernetes": "2026-07-22T09:00:10.118820123Z stderr F ",
    "viewer": "[80746] ",
}


def waited(rank: int, *, version: str = "2.7", prefix: str = "none", seq: int = 812, op: str = "ALLREDUCE", numel: int = 4096) -> str:
    """One rank's lines of a time-out."""
    head = HEAD[version if version in HEAD else "2.1"]
    work = WORK[version if version in WORK else "2.1"].format(op=op, seq=seq, n=numel, ms=600000)
    lines = [f"{head.format(r=rank)}Watchdog caught collective operation timeout: {work} ran for 600{rank % 100:03} milliseconds before."]
    if version in STATUS:
        lines.append(STATUS[version].format(r=rank, seq=seq, enq=seq, comp=seq - 1))
    return "".join(f"{PREFIX[prefix].format(r=rank)}{line}\n" for line in lines)
