"""Takes secrets out of environments, command lines and free text, and leaves everything else as it is. Pure."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rankpatrol.evidence.secret_names import names_secret, takes_whole_line

REDACTED = "<redacted>"
_SHORT = 200

# Values with a shape of their own, whatever stands before them. The left border keeps `task-1234…` from reading as `sk-1234…`.
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|hf_[A-Za-z0-9]{16,}"
    r"|sk-(?=[\w-]*\d)[\w-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|xox[abeprs]-[\w-]{8,}|AIza[\w-]{30,}|nvapi-[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r")"
)
_URL_LOGIN = re.compile(r"(?<=://)[^\s/:@]{0,256}:[^\s/]{0,512}@")
# An exchange's address has its token in the place of a user.
_NATS_TOKEN = re.compile(r"(?<=nats://)[^\s/@]{1,512}@")
_BEARER = re.compile(r"\b(Bearer[ \t]+)[\w.~+/=:-]{8,}", re.IGNORECASE)
# What signs a link to storage for whoever holds it: Azure's `sig`, and what other clouds call theirs in full.
_URL_SIGNATURE = re.compile(r"(?<=[?&])((?:X-Goog-|X-Amz-)?(?:sig|signature)=)[^&\s\"'<>]{8,}", re.IGNORECASE)
_LOGIN_FLAG = re.compile(r"((?<!\S)--(?:proxy-)?user[ \t=]+|\bcurl\b[^\n]{0,300}?[ \t]-u[ \t]*)(?!<redacted>)[^\s:]+:\S+")
_KEY_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY-----.*?(?:-----END \1PRIVATE KEY-----|\Z)", re.DOTALL)
_KEY_END = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{16,}[ \t]*$")

# A name and what stands between it and its value: `name=`, `"name": `, `name => `, `os.environ["name"] = `.
_ASSIGNED = r"(?:\\*[\"'])?\]?[ \t]*+(?:=>|:=|==?|:(?!:))[ \t]*+"
# The same for a flag: `--name value`, and as Python prints a list, `'--name', 'value'`.
_FOLLOWED = r"\\*[\"'],?[ \t]++|[ \t]++"
_NAMED = re.compile(rf"(?<![\w.-])(?P<name>[\w.-]++)(?:{_ASSIGNED}|(?P<gap>{_FOLLOWED}))")

# A quoted value with its closing quote, if it has one, and what still clings to that: a secret may hold a quote itself.
_CLINGING = r"[^\s,;:)\]}]*"
_QUOTED = re.compile(
    r"(?P<open>(?:(?:SecretStr|Secret|str|bytes)\()?[bfruBFRU]{0,2})(?:"
    rf"(?P<quote>[\"'])(?P<plain>(?:\\.|(?!(?P=quote))[^\\\n])*+)(?P<close>(?P=quote){_CLINGING})?"
    rf"|(?P<slashed>\\+[\"'])(?P<inner>(?:(?!(?P=slashed))[^\n])*+)(?P<end>(?P=slashed){_CLINGING})?"
    r")"
)
_SCHEMES = r"(?:(?:bearer|basic|digest|token|apikey|negotiate)[ \t]+)?"
_BARE = re.compile(rf"{_SCHEMES}\S*", re.IGNORECASE)
_LINE = re.compile(r"[^\n\"']*\S*")
_AFTER_BARE = "\"'`,;)}]"

_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_SETTING = re.compile(r"([+~-]*[\w.@/-]+=)(.*)", re.DOTALL)
# Fields by which files are found again.
_OPENED = frozenset({"bundle", "checkpoint", "file", "path"})
_HARMLESS = frozenset({"", "true", "false", "none", "null", "yes", "no", "on", "off", REDACTED})


def redact_text(text: str) -> str:
    """Free text, of one or many lines, without the secrets in it."""
    return _redact_short(text) if len(text) <= _SHORT else _redact(text)


@functools.lru_cache(maxsize=8192)
def _redact_short(text: str) -> str:
    """The ranks of a large job say the same thousands of times: names of functions, files and threads."""
    return _redact(text)


def _redact(text: str) -> str:
    text = _KEY_BLOCK.sub(REDACTED, text)
    if _KEY_END.search(text):
        text = "\n".join(_without_key_tail(text.split("\n")))
    # Names come before shapes: a value that only begins with a known shape goes as a whole.
    text = _redact_named(text)
    text = _URL_LOGIN.sub(f"{REDACTED}@", text)
    text = _NATS_TOKEN.sub(f"{REDACTED}@", text)
    text = _URL_SIGNATURE.sub(rf"\g<1>{REDACTED}", text)
    text = _SHAPES.sub(REDACTED, text)
    text = _BEARER.sub(rf"\g<1>{REDACTED}", text)
    return _LOGIN_FLAG.sub(rf"\g<1>{REDACTED}", text)


def redact_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Consecutive lines of a log; a private key that spans several becomes one line."""
    return tuple(redact_text("\n".join(lines)).split("\n")) if lines else ()


def redact_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """A command line as its list of arguments."""
    redacted: list[str] = []
    before = ""
    for argument in arguments:
        redacted.append(_redact_argument(before, argument))
        before = argument
    return tuple(redacted)


def redact_texts(texts: Sequence[str], name: str) -> tuple[str, ...]:
    """Texts that stand under this name: those of `command` and `argv` are one command line, those of `tail` consecutive lines of a log."""
    match name:
        case "command" | "argv":
            return redact_command(texts)
        case "tail":
            return redact_lines(texts)
        case _:
            return tuple(redact_text(text) for text in texts)


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """A process's environment: values under a name that smells of a secret go, the others are read as free text."""
    return {name: redact_value(value) if names_secret(name) else redact_text(value) for name, value in environment.items()}


def redact_json(value: Any, key: str = "") -> Any:
    """Any JSON-able value, which stands under this key."""
    match value:
        case str():
            return redact_text(value)
        case dict():
            return {_redact_key(name): _redact_member(name, member) for name, member in value.items()}
        case list() | tuple() if value and all(isinstance(item, str) for item in value):
            return list(redact_texts(value, key))
        case list() | tuple():
            return [redact_json(item, key) for item in value]
        case _:
            return value


def redact_record(record: Any) -> Any:
    """An event, a diagnosis or a state as JSON-able values: its sentences without secrets, its paths as they are, since they are opened."""
    match record:
        case dict():
            return {name: member if name in _OPENED else redact_record(_redact_lists(name, member)) for name, member in record.items()}
        case list() | tuple():
            return [redact_record(item) for item in record]
        case str():
            return redact_text(record)
        case _:
            return record


def _redact_lists(name: Any, member: Any) -> Any:
    return redact_command(member) if name == "command" and isinstance(member, (list, tuple)) else member


def _without_key_tail(lines: list[str]) -> list[str]:
    """Without the end of a private key whose beginning was cut off: the last lines of a log may start anywhere."""
    kept: list[str] = []
    for line in lines:
        if _KEY_END.search(line):
            # The last line of base64 before the end may be a short one.
            while kept and (_KEY_LINE.search(kept[-1][-100:]) or (len(kept) > 1 and _KEY_LINE.search(kept[-2][-100:]))):
                kept.pop()
            kept.append(REDACTED)
        else:
            kept.append(line)
    return kept


def _redact_key(name: Any) -> Any:
    return redact_text(name) if isinstance(name, str) else name


def _redact_member(name: Any, member: Any) -> Any:
    if isinstance(name, str) and isinstance(member, str) and names_secret(name):
        return redact_value(member)
    return redact_json(member, name if isinstance(name, str) else "")


def _redact_argument(before: str, argument: str) -> str:
    if _FLAG.fullmatch(before) and names_secret(before) and not argument.startswith("--"):
        return redact_value(argument)
    if (setting := _SETTING.fullmatch(argument)) and names_secret(setting[1].rstrip("=")):
        return setting[1] + redact_value(setting[2])
    return redact_text(argument)


def redact_value(value: str) -> str:
    """What stands under a name that smells of a secret: gone, unless it is a mere yes or no."""
    return value if value.lower() in _HARMLESS else REDACTED


def _redact_named(text: str) -> str:
    """Hide each value that stands after a name which smells of a secret; one scan from left to right."""
    kept: list[str] = []
    at = 0
    while named := _NAMED.search(text, at):
        kept.append(text[at : named.end()])
        at = named.end()
        if names_secret(named["name"]) and _has_value(named, text):
            replacement, at = _hide(text, at, whole_line=takes_whole_line(named["name"]))
            kept.append(replacement)
    kept.append(text[at:])
    return "".join(kept)


def _has_value(named: re.Match[str], text: str) -> bool:
    """After a mere gap only a flag has a value, and another flag is not it."""
    if named["gap"] is None:
        return True
    return _FLAG.fullmatch(named["name"]) is not None and not text.startswith("--", named.end())


def _hide(text: str, at: int, *, whole_line: bool) -> tuple[str, int]:
    """What to write instead of the value at `at`, and where the text goes on behind it."""
    if text.startswith(REDACTED, at):
        return REDACTED, at + len(REDACTED)
    if quoted := _QUOTED.match(text, at):
        slashed = quoted["slashed"]
        opening, inner = (slashed, quoted["inner"]) if slashed else (quoted["quote"], quoted["plain"])
        closed = quoted["end"] if slashed else quoted["close"]
        return quoted["open"] + opening + redact_value(inner) + (opening if closed else ""), quoted.end()
    bare = (_LINE if whole_line else _BARE).match(text, at)
    value = bare[0] if bare else ""
    core = value.rstrip(_AFTER_BARE)
    return redact_value(core) + value[len(core) :], at + len(value)
