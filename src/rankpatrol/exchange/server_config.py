"""The configuration of a broker, as text. It holds the secret: it is written to a file of mode 0600, never to a command line."""

from pathlib import Path

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.exchange.wire import MOST_BYTES

# A node that is gone without a word is forgotten after two pings.
_PING_S = 20
_LOG_BYTES = 16 << 20


class Listen(Record, frozen=True, kw_only=True):
    """Where a broker listens (port 0: any free one), and what it demands of whoever connects, as configuration."""

    host: str
    port: int
    demands: str


def by_token(token: str) -> str:
    """Whoever knows the token may do all."""
    return f"authorization {{ token: {quoted(token)} }}\n"


def config_of(listen: Listen) -> str:
    """Only what NATS 2.9 knows as well: an unknown word stops the server."""
    return (
        f"host: {quoted(listen.host)}\n"
        f"port: {listen.port or -1}\n"
        f"max_payload: {MOST_BYTES}\n"
        f"ping_interval: {quoted(f'{_PING_S}s')}\n"
        f"{listen.demands}"
    )


def files_in(folder: Path) -> str:
    """Where a broker that we keep says what it does, and on which port it listens."""
    return f"ports_file_dir: {quoted(str(folder))}\nlog_file: {quoted(str(folder / 'nats.log'))}\nlogfile_size_limit: {_LOG_BYTES}\n"


def quoted(text: str) -> str:
    """A string of the configuration: the escapes of JSON that can occur here are NATS's as well."""
    return msgspec.json.encode(text).decode()
