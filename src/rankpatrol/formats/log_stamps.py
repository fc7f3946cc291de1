"""Times as logs show them: ISO, glog, syslog, kernel, and bare clocks. One row a form."""

import re

from rankpatrol.core.testimony import Stamp

_CLOCK = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,9})?"
_MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip

# Each is tried where a stamp may begin; the first that fits wins.
FORMS = (
    ("iso", rf"(?P<y>20\d\d)[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ,_]{{1,2}}{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?"),
    ("date", rf"(?P<mo>\d\d)[-/](?P<d>\d\d) {_CLOCK}"),
    ("syslog", rf"(?:[A-Z][a-z][a-z] )?(?P<mon>[A-Z][a-z][a-z]) {{1,2}}(?P<d>\d{{1,2}}) {_CLOCK}(?: (?P<y>20\d\d))?"),
    ("clock", rf"(?<![\d:]){_CLOCK}(?![:\d])"),
)
_FORMS = tuple((name, re.compile(regex)) for name, regex in FORMS)
_GLOG = re.compile(rf"(?P<mo>\d{{1,2}})(?P<d>\d\d) {_CLOCK}")
_KERNEL = re.compile(r"\[\s{0,6}(?P<s>\d{1,9}\.\d{3,6})\]")
# The longest day count of a month is not checked: a stamp orders lines, it is no calendar.
_BEFORE_MONTH = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)


def stamp_at(text: str, begin: int = 0) -> tuple[Stamp, int] | None:
    """The stamp that begins at `begin`, and where it ends."""
    for form, regex in _FORMS:
        if seen := regex.match(text, begin):
            return _stamp(form, seen.groupdict()), seen.end()
    return None


def stamp_in(text: str) -> Stamp | None:
    """The first stamp anywhere in a text, most exact form first."""
    for form, regex in _FORMS:
        if seen := regex.search(text):
            return _stamp(form, seen.groupdict())
    return None


def glog_stamp(text: str) -> Stamp | None:
    """The `MDD HH:MM:SS.n` of c10 and of torchelastic, without a year; UTC or local is not said."""
    seen = _GLOG.match(text)
    return _stamp("glog", seen.groupdict()) if seen else None


def kernel_stamp(text: str, begin: int = 0) -> tuple[Stamp, int] | None:
    """Seconds since boot, comparable among the kernel's lines of one machine alone."""
    seen = _KERNEL.match(text, begin)
    return (Stamp(form="kernel", second_of_day_s=float(seen["s"])), seen.end()) if seen else None


def _stamp(form: str, parts: dict[str, str | None]) -> Stamp:
    second = int(parts["h"] or 0) * 3600 + int(parts["mi"] or 0) * 60 + int(parts["s"] or 0)
    fraction = float("0." + (parts.get("f") or ".0")[1:])
    month = _MONTHS.get((parts.get("mon") or "").lower()) or int(parts.get("mo") or 0)
    return Stamp(
        form=form,
        second_of_day_s=second + fraction,
        day=_day(int(parts.get("y") or 2000), month, int(parts["d"] or 1)) if 1 <= month <= 12 else None,
        has_year=parts.get("y") is not None,
    )


def _day(year: int, month: int, day: int) -> int:
    """Days since 2000-01-01 (every fourth year is long between 1901 and 2099)."""
    years = year - 2000
    short = 0 if years % 4 == 0 or month <= 2 else 1
    return years * 365 + (years + 3) // 4 + _BEFORE_MONTH[month - 1] + day - 1 - short
