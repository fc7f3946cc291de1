"""Exceptions that only echo another rank's end, or a launcher's, or a loader's. One row a form."""

import re

from rankpatrol.formats.failures import ECHOES

# By class name, without its module.
_CLASSES = frozenset({
    "DistBackendError", "DistNetworkError", "DistStoreError", "ChildFailedError", "CalledProcessError",
    "SignalException", "KeyboardInterrupt", "SystemExit", "ConnectionResetError", "BrokenPipeError",
    "ConnectionAbortedError", "ConnectionRefusedError", "EOFError", "ProcessRaisedException", "ProcessExitedException",
    "RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError",
    "RendezvousClosedError", "RendezvousConnectionError", "RendezvousTimeoutError", "EngineDeadError", "StopIteration",
    "Empty", "Full", "GeneratorExit", "CancelledError", "RendezvousGracefulExitError", "RendezvousStateError",
    "ObjectLostError", "OwnerDiedError",
})  # fmt: skip
# By message, whatever the class: the forms that the live incident knows, and what whole logs hold besides.
_MORE = (
    r"NCCL (?:error|communicator)",
    r"is setting up NCCL",
    r"unhandled (?:system|cuda) error",
    r"nccl(?:System|Internal|UnhandledCuda|Remote)Error",
    r"Write error \[",
    r"watchdog thread terminated",
    r"monitoredBarrier",
    r"Detected mismatch between collectives",
    r"Pin memory thread exited",
    r"DataLoader worker",
    r"Caught \w+ in DataLoader worker process",
    r"Socket Timeout|wait timeout after|stored? .*timeout",
    r"process group .*aborted",
    r"timed out in (?:call to wait|blocking wait)",
    r"worker .*(?:died|is dead)|killed due to|EngineCore|Engine process failed|peer (?:exited|closed|is gone)",
)
_MESSAGES = re.compile("|".join((*ECHOES, *_MORE)))


def is_echo(exception: str, message: str, frames: str = "") -> bool:
    """Whether an exception says no more than that something else failed before it."""
    name = exception.rpartition(".")[2]
    return name in _CLASSES or _MESSAGES.search(message) is not None or (name == "RuntimeError" and "_error_if_any_worker_fails" in frames)
