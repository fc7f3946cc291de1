"""Stacks as JSON inside a text: what `py-spy dump --json` prints, alone, one a rank, or within a larger document."""

import json
from typing import Any

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.core.snapshot import Stack, ThreadStack
from rankpatrol.formats.pyspy import parse_dump_value
from rankpatrol.formats.stack_lines import is_native, plain_native
from rankpatrol.formats.stack_marks import Header, ToldProcess

_DECODER = json.JSONDecoder()
_DEEPEST = 6


def read_documents(text: str) -> tuple[str, dict[str, tuple[ToldProcess, ...]]]:
    """The text with each JSON document that holds stacks replaced by a line of its own, and the processes of each such line."""
    if '"frames"' not in text:
        return text, {}
    documents: dict[str, tuple[ToldProcess, ...]] = {}
    out: list[str] = []
    at = 0
    while (start := _next_document(text, at)) is not None:
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = text.find("\n", start) + 1 or len(text)
            out.append(text[at:end])
            at = end
            continue
        processes = tuple(_processes(value, Header(), 0))
        mark = f"\x00{len(documents)}"
        out += [text[at:start], f"\n{mark}\n" if processes else text[start:end]]
        if processes:
            documents[mark] = processes
        at = end
    return "".join([*out, text[at:]]), documents


def _next_document(text: str, at: int) -> int | None:
    """Where the next line begins that may be JSON."""
    while at < len(text):
        if text[at] in "[{" and text[at + 1 : at + 2] in {"{", '"', "\n", "\r", " ", "["}:
            return at
        at = text.find("\n", at) + 1
        if at == 0:
            return None
    return None


def _processes(value: Any, header: Header, depth: int) -> list[ToldProcess]:
    if depth > _DEEPEST:
        return []
    if isinstance(value, list):
        if (stack := _stack(value)) is not None:
            known = Header(rank=header.rank, pid=stack.pid, parent_pid=header.parent_pid, node=header.node)
            threads = tuple(_split(thread) for thread in stack.threads)
            return [ToldProcess(header=known, threads=threads, activity=tuple(thread.active for thread in threads))]
        return [each for item in value for each in _processes(item, header, depth + 1)]
    if not isinstance(value, dict):
        return []
    here = _own_header(value, header)
    own = next((found for key in _STACK_KEYS if key in value and (found := _processes(value[key], here, depth + 1))), None)
    rest = value.get("children", {}) if own else value
    if not isinstance(rest, dict):
        return [*(own or []), *_processes(rest, here, depth + 1)]
    below = [(_named(key, here) if not own else Header(parent_pid=own[0].header.pid, rank=here.rank), item) for key, item in rest.items()]
    return [*(own or []), *(each for its, item in below for each in _processes(item, its, depth + 1))]


_STACK_KEYS = ("stack", "stacks", "threads", "plain", "dump", "pyspy")


def _own_header(value: dict[str, Any], header: Header) -> Header:
    def number(key: str) -> int | None:
        found = value.get(key)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    node = value.get("node") or value.get("hostname")
    return Header(
        rank=number("rank") if number("rank") is not None else header.rank,
        pid=number("pid"),
        parent_pid=number("ppid") or header.parent_pid,
        node=node if isinstance(node, str) else header.node,
    )


def _named(key: str, header: Header) -> Header:
    """A document keyed by rank: `{"0": […], "rank1": […]}`."""
    digits = key.lower().removeprefix("rank").strip("_- ")
    return Header(rank=int(digits), node=header.node) if digits.isascii() and digits.isdigit() and len(digits) < 6 else header


def _split(thread: ThreadStack) -> ThreadStack:
    """Python's frames and C's apart: `--native` prints them in one list."""
    python = tuple(frame for frame in thread.frames if not is_native(frame))
    native = tuple(plain_native(frame.name) for frame in thread.frames if is_native(frame))
    return msgspec.structs.replace(thread, frames=python, native=native)


def _stack(value: list[Any]) -> Stack | None:
    if not value or not all(isinstance(thread, dict) and "frames" in thread for thread in value):
        return None
    try:
        return parse_dump_value(value)
    except BadInput:
        return None
