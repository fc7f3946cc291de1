"""What a release would do, as data. Pure: the very object that a dry run prints is the one that is carried out."""

from collections.abc import Iterable

from rankpatrol.core.records import Record
from rankpatrol.orphans.records import Judged, Policy, ProvenOrphan


class ReapPlan(Record, frozen=True, kw_only=True):
    """The proven orphans that are to be ended, in this order; `alert` says why there are none although some are proven."""

    orphans: tuple[ProvenOrphan, ...] = ()
    alert: str = ""


def plan(judged: Iterable[Judged], policy: Policy, *, stopped_by: str = "") -> ReapPlan:
    """Everything that carries a proof, unless that is too much to be true, or somebody said stop."""
    proven = tuple(one.proof for one in judged if one.proof is not None)
    if not proven:
        return ReapPlan()
    if stopped_by:
        return ReapPlan(alert=f"{len(proven)} orphans are proven; none is ended, since {stopped_by} is there")
    if len(proven) > policy.most:
        return ReapPlan(
            alert=f"{len(proven)} orphans are proven, more than the {policy.most} that may be ended in one scan: "
            "none is; look first, then raise the limit with --most"
        )
    return ReapPlan(orphans=proven)
