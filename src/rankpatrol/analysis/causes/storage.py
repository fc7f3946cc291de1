"""A rank blocked in a file operation of its own: reading a sample without loader processes, or saving a checkpoint."""

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Cause, Scene
from rankpatrol.analysis.waits import IO_CALLS, say_call
from rankpatrol.core.snapshot import ProcessSample


def in_kernel(process: ProcessSample, who: str) -> str | None:
    """A process in D state does not hear SIGKILL either: ending its job would end everybody but it (proc_pid_stat(5), state)."""
    return f"{who} is in uninterruptible sleep: no signal reaches it until its storage or device answers" if process.state == "D" else None


def explain(scene: Scene, rank: int) -> Cause | None:
    """Speaks where the rank's main thread is inside a file call or in D state."""
    wait = scene.waits[rank]
    process = scene.process_of(rank)
    # A pipe or a socket without a name leads to another process, not to storage.
    nameless = wait.call is not None and wait.call.path is not None and not wait.call.path.startswith("/")
    in_file_call = wait.call is not None and wait.call.name in IO_CALLS and not nameless
    if process is None or not (in_file_call or process.state == "D"):
        return None
    where = " while saving or loading a checkpoint" if wait.kind is WaitKind.CHECKPOINT else ""
    what = f"is blocked {say_call(wait.call)}" if wait.call is not None and in_file_call else wait.what
    return Cause(
        cause="filesystem_stall",
        rank=rank,
        phrase=f"rank {rank} {what}{where}",
        lines=2 if wait.by_stack else 1,
        reasons_for=(f"the kernel shows rank {rank} in {wait.call.name if wait.call else 'uninterruptible sleep'}{where}",),
        suggested=(f"Check the storage behind {wait.call.path}",) if wait.call and wait.call.path else (),
        not_to_be_ended=in_kernel(process, f"rank {rank}"),
        process=process,
        file=wait.call.path if wait.call else None,
        file_offset_bytes=wait.call.offset_bytes if wait.call else None,
    )
