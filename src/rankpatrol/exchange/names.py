"""Names as one token of a subject: any byte may stand in a name, only letters, digits, `-` and `_` stand in a token."""

import os
import re

from rankpatrol.core.errors import UsageProblem

# Linux's own names are shorter (HOST_NAME_MAX is 64, a file's name at most 255 bytes); a broker's line of control has room for 4096.
_MOST_BYTES = 255
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_EMPTY = "="


def token_of(name: str) -> str:
    """The token of a name; different names have different tokens. Raises UsageProblem above 255 bytes."""
    if _PLAIN.fullmatch(name):
        token = name
    else:
        token = "".join(chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"={byte:02X}" for byte in os.fsencode(name)) or _EMPTY
    if len(name) > _MOST_BYTES or len(os.fsencode(name)) > _MOST_BYTES:
        raise UsageProblem(f"a name of {len(name)} characters is too long", help=f"Names have at most {_MOST_BYTES} bytes.")
    return token


def name_of(token: str) -> str | None:
    """The name of a token; None where it is nobody's token."""
    if token == _EMPTY:
        return ""
    raw = bytearray()
    parts = re.findall(r"=([0-9A-F]{2})|([A-Za-z0-9_-])", token)
    for escaped, plain in parts:
        raw += bytes.fromhex(escaped) if escaped else plain.encode()
    name = os.fsdecode(bytes(raw))
    return name if raw and token_of(name) == token else None
