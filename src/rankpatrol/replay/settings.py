"""The judge's settings by their names, as a user writes them."""

import difflib
from collections.abc import Mapping

import msgspec

from rankpatrol.core.durations import parse_duration_s
from rankpatrol.core.errors import UsageProblem
from rankpatrol.judge.records import Policy

NAMES = tuple(field.name for field in msgspec.structs.fields(Policy))


def changed(policy: Policy, settings: Mapping[str, str | float]) -> Policy:
    """The policy with these settings in place of its own. Raises UsageProblem for an unknown name, with the nearest one, or a bad value.

    Durations are numbers of seconds or words such as `90s`. Whoever has settings from elsewhere (a file) hands them over here as well.
    """
    return msgspec.structs.replace(policy, **{_known(name): _value(_known(name), value) for name, value in settings.items()})


def _known(name: str) -> str:
    plain = name.strip().replace("-", "_")
    for known in (plain, f"{plain}_s"):
        if known in NAMES:
            return known
    near = difflib.get_close_matches(plain, NAMES, n=1, cutoff=0.3)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise UsageProblem(f"the judge has no setting {name!r}", help=f"{meant}There are: {', '.join(NAMES)}.")


def _value(name: str, value: str | float) -> float | int:
    number = _number(name, value)
    if name == "agreeing_looks":
        if number != int(number) or number < 1:
            raise UsageProblem(f"{name} is a number of looks, not {value}", help="Write 1, 2, 3 …")
        return int(number)
    if not 0 <= number < float("inf"):
        raise UsageProblem(f"{name} cannot be {value}", help="Write a number that is not negative.")
    return number


def _number(name: str, value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        if name.endswith("_s"):
            return parse_duration_s(str(value))
        raise UsageProblem(f"{name} is a number, not {value!r}", help=f"Write it as {name}=2.") from None
