"""Where to listen, as people write it: ADDR:PORT. Pure."""

from rankpatrol.core.errors import UsageProblem
from rankpatrol.core.records import Record

_HELP = "Write ADDR:PORT, such as 127.0.0.1:9464, [::1]:9464, or 0.0.0.0:9464 for all networks of this machine; port 0 takes a free one."


class Address(Record, frozen=True):
    """A host and a port. Port 0: any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises UsageProblem."""
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not colon or not bare or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise UsageProblem(f"{text!r} is no address with a port", help=_HELP)
        if (":" in bare) != (bare != host) or any(character.isspace() for character in bare):
            raise UsageProblem(f"{text!r} is no address with a port", help=_HELP)
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
