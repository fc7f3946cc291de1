"""Where an exchange is: `nats://[TOKEN@]HOST:PORT`, `tls://HOST:PORT`, or `local:` for one process."""

import re
from urllib.parse import quote, unquote

import msgspec

from rankpatrol.core.errors import UsageProblem
from rankpatrol.core.records import Record

_FORMS = "Write nats://[TOKEN@]HOST:PORT, tls://HOST:PORT (certificates instead of a token), or local: for one process."
_BROKER = re.compile(r"(?:(?P<token>[^@/]*)@)?(?P<host>\[[0-9A-Za-z:.%_-]+\]|[^\s@/:\[\]]+)(?::(?P<port>\d{1,5}))?/?")
# IANA's port of NATS.
_PORT = 4222
_ALL_ADDRESSES = ("0.0.0.0", "::")  # ruff: ignore[S104] - recognised, not bound


class Address(Record, frozen=True, kw_only=True):
    """One exchange. `host` is without brackets; `room` tells exchanges of one process apart."""

    scheme: str
    host: str = ""
    port: int = 0
    token: str = ""
    room: str = ""

    def url(self, *, secret: bool = False) -> str:
        """The address as it is written; the token is shown only on demand."""
        if self.scheme == "local":
            return f"local:{self.room}"
        token = quote(self.token, safe="") if secret else "…"
        return f"{self.scheme}://{token + '@' if self.token else ''}{self.netloc()}"

    def seen_from_outside(self, host: str) -> "Address":
        """The same under the name by which other nodes reach it, where it listens on all of this node's addresses."""
        return msgspec.structs.replace(self, host=host) if self.host in _ALL_ADDRESSES else self

    def netloc(self) -> str:
        """HOST:PORT; an IPv6 address in brackets (RFC 3986), its zone behind %25 (RFC 6874)."""
        host = f"[{self.host.replace('%', '%25')}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Address({self.url()})"

    __str__ = url


def parse_address(text: str) -> Address:
    """The address that a person or a file names. Raises UsageProblem; what is said never repeats a token."""
    scheme, colon, rest = text.partition(":")
    if scheme == "local" and colon:
        return Address(scheme="local", room=rest)
    if scheme not in {"nats", "tls"} or not rest.startswith("//"):
        raise UsageProblem(f"{_shown(text)!r} is no address of an exchange", help=_FORMS)
    found = _BROKER.fullmatch(rest[2:])
    if found is None:
        raise UsageProblem(f"{_shown(text)!r} names no HOST:PORT", help=_FORMS)
    token, port = unquote(found["token"] or ""), int(found["port"] or _PORT)
    if not 0 < port < 65536:
        raise UsageProblem(f"{_shown(text)!r}: there is no port {port}", help="Ports are numbers from 1 to 65535.")
    if ":" in (found["token"] or ""):
        raise UsageProblem(f"{_shown(text)!r} holds a user and a password", help="An exchange takes one token: nats://TOKEN@HOST:PORT.")
    if token and scheme == "tls":
        raise UsageProblem(f"{_shown(text)!r} holds a token", help="tls:// takes certificates instead: tls://HOST:PORT.")
    return Address(scheme=scheme, host=unquote(found["host"].strip("[]")), port=port, token=token)


def _shown(text: str) -> str:
    """The text without whatever may be a secret."""
    before, at, after = text.rpartition("@")
    return f"{before.partition('://')[0]}://…@{after}" if at else text
