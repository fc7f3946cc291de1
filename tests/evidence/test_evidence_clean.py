"""Records are redacted as their JSON is, and what hides nothing stays what it is."""

import random

import msgspec
import pytest
from evidence_scene import stuck_findings

from rankpatrol.core.snapshot import Frame, Snapshot
from rankpatrol.evidence.clean import clean, clean_json
from rankpatrol.evidence.findings import Findings
from rankpatrol.evidence.redact import redact_json

SAID = (
    "HF_TOKEN=abcdef12",
    "--token",
    "s3cr3t-and-long",
    "hf_aBcDeFgHiJkLmNoPqRsT",
    "max_tokens=512",
    "a\udc80b",
    "-----END RSA PRIVATE KEY-----",
    "ü",
)


def with_words(value, dice: random.Random):
    """The same JSON with some of its words replaced; a word that says what kind a record is stays."""
    match value:
        case str():
            return dice.choice(SAID) if dice.random() < 0.3 else value
        case dict():
            kept = ("type", "verdict", "certainty", "cause")
            return {name: member if name in kept else with_words(member, dice) for name, member in value.items()}
        case list() | tuple():
            return [with_words(item, dice) for item in value]
        case _:
            return value


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_redaction_of_its_json(seed: int) -> None:
    plain = with_words(msgspec.to_builtins(stuck_findings().snapshot), random.Random(seed))
    snapshot = msgspec.convert(plain, Snapshot)
    told = msgspec.to_builtins(clean(snapshot))
    whole = msgspec.json.decode(msgspec.json.encode(redact_json(clean_json(plain))))
    assert msgspec.json.decode(msgspec.json.encode(told)) == whole
    assert clean(clean(snapshot)) == clean(snapshot)


def test_what_hides_nothing_is_the_same_object() -> None:
    frames = (Frame("forward", "/home/u/model.py", 41),)
    assert clean(frames) is frames
    snapshot = clean(stuck_findings().snapshot)
    assert clean(snapshot) is snapshot


def test_a_name_that_smells_of_a_secret_hides_what_stands_under_it() -> None:
    found = msgspec.structs.replace(stuck_findings(), native={0: "ok"}, absent={1: "password=abc def"}, host={"HF_TOKEN": "abc"})
    assert clean(found).host == {"HF_TOKEN": "<redacted>"}
    assert clean(found).absent == {1: "password=<redacted> def"}
    assert isinstance(clean(found), Findings)
