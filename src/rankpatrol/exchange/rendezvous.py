"""How the nodes that share a job directory find its hub: `exchange.json`, written by the hub's node, readable by its owner alone."""

import os
import stat
from pathlib import Path

import msgspec

from rankpatrol.core.errors import BadInput, NoPermission, PatrolError
from rankpatrol.core.records import Missing, Record
from rankpatrol.exchange.address import Address, parse_address
from rankpatrol.system.background import within
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_private

NAME = "exchange.json"
_MOST_BYTES = 64 << 10
_LOOKS_EVERY_S = 0.5
# One look at a file system that hangs; then its thread is left behind.
_LOOK_S = 10.0
_REMOVE = "Nothing was read from it. Remove it if nobody of yours runs there, and start the job again."


class RendezvousRefused(NoPermission):
    """Somebody else may have written the file, or can read its secret."""

    help = _REMOVE


class Rendezvous(Record, frozen=True, kw_only=True):
    """Where the hub of one run is. `run` tells this run from an earlier one of the same directory."""

    run: str
    url: str
    token: str
    hub: str
    started_unix_s: float

    def address(self) -> Address:
        """Raises UsageProblem."""
        return msgspec.structs.replace(parse_address(self.url), token=self.token)


def announce(job_dir: Path, run: str, hub: str, address: Address, clock: Clock) -> None:
    """Say where the hub of this run is, in place of what an earlier run said. Raises BadInput where the file cannot be written.

    A broker that listens on all addresses is announced under its node's name, `hub`.
    """
    address = address.seen_from_outside(hub)
    said = Rendezvous(
        run=run,
        url=msgspec.structs.replace(address, token="").url(),
        token=address.token,
        hub=hub,
        started_unix_s=clock.unix_s(),
    )
    try:
        write_private(job_dir / NAME, msgspec.json.format(msgspec.json.encode(said)))
    except OSError as problem:
        raise BadInput(
            f"the other nodes cannot be told where the hub is: {problem.strerror} ({job_dir / NAME})",
            help="Give a job directory that all nodes share and you can write to, or name a broker: --exchange nats://TOKEN@HOST:PORT",
        ) from problem


def take_back(job_dir: Path, run: str) -> None:
    """Remove what this run said; what another run says stays. Never raises."""
    try:
        if (said := read_rendezvous(job_dir)) is not None and said.run == run:
            (job_dir / NAME).unlink(missing_ok=True)
    except (OSError, PatrolError):
        return


def wait_for_hub(job_dir: Path, run: str, clock: Clock, deadline_s: float) -> Rendezvous | Missing:
    """Where the hub of this run is, once it says so. Raises RendezvousRefused at once where the file is not to be trusted."""
    until = clock.mono_s() + deadline_s
    found: Rendezvous | Missing | None = None
    while True:
        found = within(lambda: read_rendezvous(job_dir), _LOOK_S, name="exchange-rendezvous")
        if isinstance(found, Rendezvous) and found.run == run:
            return found
        if clock.mono_s() >= until:
            return Missing(_why_not(found, job_dir, deadline_s))
        clock.sleep(min(_LOOKS_EVERY_S, until - clock.mono_s()))


def read_rendezvous(job_dir: Path) -> Rendezvous | None:
    """What is said there; None where nothing is. Raises RendezvousRefused, or BadInput where it is no such file."""
    path = job_dir / NAME
    try:
        # Opening the directory makes NFS ask its server again (close-to-open, nfs(5)): a file that was missing before is seen.
        os.close(os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError as problem:
        raise RendezvousRefused(f"{path} belongs to somebody else: it cannot be read") from problem
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}", help=_REMOVE) from problem
    try:
        _check(path, os.fstat(descriptor))
        content = os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
    try:
        return msgspec.json.decode(content, type=Rendezvous)
    except msgspec.MsgspecError as problem:
        raise BadInput(f"{path} is not what a hub writes: {problem}", help=_REMOVE) from problem


def _check(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise RendezvousRefused(f"{path} is no regular file")
    if facts.st_uid != os.geteuid():
        raise RendezvousRefused(f"{path} belongs to user {facts.st_uid}, and we are {os.geteuid()}: whoever wrote it could give orders")
    if facts.st_mode & 0o077:
        raise RendezvousRefused(f"{path} can be read or written by others (mode {facts.st_mode & 0o777:o}): its secret is none any more")


def _why_not(found: Rendezvous | Missing | None, job_dir: Path, deadline_s: float) -> str:
    waited = f"within {deadline_s:g} s"
    if isinstance(found, Missing):
        return f"the job directory does not answer ({found.reason}): {job_dir}"
    if found is None:
        asked = "was it started, with the same job directory, and has it a nats-server?"
        return f"the first node has not said where it is {waited} ({job_dir / NAME}): {asked}"
    return f"only an earlier run has said where its hub was {waited} ({job_dir / NAME}, on {found.hub})"
