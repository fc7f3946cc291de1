"""Durations as users write them (`90s`, `3m`, `1h30m`) and as sentences say them."""

import re

from rankpatrol.core.errors import UsageProblem

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as `180s`, `3m` or `1h30m`; a bare number is refused, since its unit would be a guess."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageProblem(f"{text!r} is not a duration", help="Write a number with its unit, such as 180s, 3m or 1h30m.")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def say_duration(seconds: float) -> str:
    """A duration for people, in at most two units: `0.4 s`, `184 s`, `12 min 5 s`, `3 h 20 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 300:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
