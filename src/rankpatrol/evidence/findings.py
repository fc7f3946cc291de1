"""Everything that goes into one bundle, and the same without its secrets. Pure."""

from typing import Any

import msgspec

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import Snapshot
from rankpatrol.evidence.clean import clean, clean_json
from rankpatrol.evidence.redact import redact_record


class Findings(Record, frozen=True, kw_only=True):
    """What is known of an incident at the moment of sealing. `host` by fact: text, a JSON-able value or Missing; `native` by rank.

    `absent` are ranks of which nothing could be seen from here, and why.
    """

    diagnosis: Diagnosis
    snapshot: Snapshot
    snapshot_at_alert: Snapshot | None = None
    native: dict[int, str | Missing] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    scheduler: Any = None
    checkpoints: Any = None
    touched: tuple[str, ...] = ()
    absent: dict[int, str] = msgspec.field(default_factory=dict)


def without_secrets(findings: Findings) -> Findings:
    """The same findings, redacted, and without the half characters that a path or a log may hold and UTF-8 cannot."""
    alone = msgspec.structs.replace(findings, host={}, scheduler=None, checkpoints=None)
    return msgspec.structs.replace(
        clean(alone),
        host=clean_json(findings.host),
        scheduler=clean_json(findings.scheduler),
        checkpoints=clean_json(findings.checkpoints),
    )


def speakable(found: Diagnosis) -> Diagnosis:
    """The same diagnosis, without the secrets that a log's words brought into its sentences."""
    return msgspec.convert(redact_record(msgspec.to_builtins(found)), Diagnosis)
