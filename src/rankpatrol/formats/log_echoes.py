"""Exceptions that only echo another rank's end, or a launcher's, or a loader's. One row a form."""

import re

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
# By message, whatever the class.
_MESSAGES = re.compile(
    r"NCCL (?:error|communicator)|is setting up NCCL|unhandled (?:system|cuda) error|nccl(?:System"
    r"|Internal|UnhandledCuda)Error|ncclRemoteError|Connection closed by peer|Connection reset by peer"
    r"|Broken pipe|Read error \[|Write error \["
    r"|Timed out waiting \d+ms for (?:send|recv)|Gloo connectFullMesh|Watchdog caught|watchdog thread terminated|monitoredBarrier"
    r"|Detected mismatch between collectives|Pin memory thread exited|DataLoader worker|Socket Timeout"
    r"|store(?:d)? .*timeout|wait timeout after"
    r"|process group .*aborted|Caught \w+ in DataLoader worker process|worker .*(?:died|is dead)"
    r"|Rank \d+ .*received errors|Stop_waiting|remote process exited"
    r"|\[Rank \d+\] .*timed out in (?:call to wait|blocking wait)|killed due to|EngineCore"
    r"|Engine process failed|peer (?:exited|closed|is gone)"
)


def is_echo(exception: str, message: str, frames: str = "") -> bool:
    """Whether an exception says no more than that something else failed before it."""
    name = exception.rpartition(".")[2]
    return name in _CLASSES or _MESSAGES.search(message) is not None or (name == "RuntimeError" and "_error_if_any_worker_fails" in frames)
