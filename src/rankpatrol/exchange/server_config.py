"""The configuration of a broker, as text. It holds the secret: it is written to a file of mode 0600, never to a command line."""

from pathlib import Path

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.exchange.wire import MOST_BYTES

# A node that is gone without a word is forgotten after two pings.
_PING_S = 20
_LOG_BYTES = 16 << 20


class Listen(Record, frozen=True, kw_only=True):
    """Where a broker listens (port 0: any free one), and the secret that whoever connects must know."""

    host: str
    port: int
    token: str


def config_of(listen: Listen, folder: Path) -> str:
    """Only what NATS 2.9 knows as well: an unknown word stops the server."""
    return "\n".join(
        (
            f"host: {quoted(listen.host)}",
            f"port: {listen.port or -1}",
            f"max_payload: {MOST_BYTES}",
            f"ping_interval: {quoted(f'{_PING_S}s')}",
            f"ports_file_dir: {quoted(str(folder))}",
            f"log_file: {quoted(str(folder / 'nats.log'))}",
            f"logfile_size_limit: {_LOG_BYTES}",
            f"authorization {{ token: {quoted(listen.token)} }}",
            "",
        )
    )


def quoted(text: str) -> str:
    """A string of the configuration: the escapes of JSON that can occur here are NATS's as well."""
    return msgspec.json.encode(text).decode()
