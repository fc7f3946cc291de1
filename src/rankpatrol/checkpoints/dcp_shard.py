"""A shard of a torch DCP checkpoint (`__0_0.distcp`): chunks in a row, each a torch file of its own, at the places `.metadata` gives."""

from typing import Final

import msgspec

from rankpatrol.checkpoints import torch_zip
from rankpatrol.checkpoints.dcp_metadata import Stored, plan_beside
from rankpatrol.checkpoints.opened import OpenedFile, Readable
from rankpatrol.checkpoints.report import CheckpointVerdict, Judgement, Look, corrupt, cut_short, good, say_since, unknown
from rankpatrol.core.records import Missing

NAME = "dcp_shard"
SUFFIX: Final = ".distcp"


def matches(file: Readable) -> bool:
    """By its name: torch names these files itself."""
    return file.path.suffix == SUFFIX


def verify(file: Readable, look: Look) -> Judgement:
    """Each chunk in its place, whole, and against its checksums."""
    plan = plan_beside(file.path)
    if isinstance(plan, Missing):
        return unknown(f"({file.size_bytes} bytes) cannot be told apart into chunks: {plan.reason}")
    mine = sorted((stored for stored in plan.stored if stored.file == file.path.name), key=lambda stored: stored.start_bytes)
    at = 0
    for stored in mine:
        if stored.start_bytes + stored.length_bytes > file.size_bytes:
            since = say_since(look.now_unix_s - file.modified_unix_s)
            needed = mine[-1].start_bytes + mine[-1].length_bytes
            said = f"ends at byte {file.size_bytes} in {stored.name!a}, where {needed} bytes are needed; {since}"
            return cut_short(said, key=stored.name, offset_bytes=file.size_bytes)
        if stored.start_bytes < at:
            return corrupt(f"has two chunks in one place, byte {stored.start_bytes}", key=stored.name, offset_bytes=stored.start_bytes)
        at = stored.start_bytes + stored.length_bytes
    if mine and at != file.size_bytes:
        return corrupt(f"holds {file.size_bytes - at} bytes more than its chunks need, from byte {at} on", offset_bytes=at)
    return _content(file, mine, look)


def _content(file: Readable, mine: list[Stored], look: Look) -> Judgement:
    verified = bool(mine)
    for stored in mine:
        if not isinstance(file, OpenedFile):
            return unknown("is part of another file")
        part = file.part(stored.start_bytes, stored.length_bytes)
        if stored.packed or (stored.offsets is None and not torch_zip.matches(part)):
            # A planner of the user's own may write objects as it likes.
            verified = False
            continue
        judgement = torch_zip.verify(part, look)
        if judgement.verdict is not CheckpointVerdict.OK:
            at = stored.start_bytes + (judgement.offset_bytes or 0)
            place = f"bytes {stored.start_bytes} to {stored.start_bytes + stored.length_bytes}"
            said = f"is damaged in {stored.name!a} ({place}): it {judgement.said}"
            return msgspec.structs.replace(judgement, verdict=CheckpointVerdict.CORRUPT, said=said, key=stored.name, offset_bytes=at)
        verified = verified and judgement.content_verified
    if not mine:
        return good(f"({file.size_bytes} bytes) is not used by the checkpoint it lies in")
    what = "every checksum right" if verified else "content unknown (saved without checksums)" if look.content else "content not read"
    return good(f"has all its {len(mine)} chunks whole, {what}", content_verified=verified)
