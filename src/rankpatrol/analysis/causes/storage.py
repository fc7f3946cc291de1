"""A rank blocked in a file operation of its own: reading a sample without loader processes, or saving a checkpoint."""

import re

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Cause, Scene
from rankpatrol.analysis.waits import IO_CALLS, say_call
from rankpatrol.core.snapshot import ProcessSample


def in_kernel(process: ProcessSample, who: str) -> str | None:
    """A process in D state does not hear SIGKILL either: ending its job would end everybody but it (proc_pid_stat(5), state)."""
    return f"{who} is in uninterruptible sleep: no signal reaches it until its storage or device answers" if process.state == "D" else None


def waits_for_storage(process: ProcessSample) -> bool:
    """True where the kernel function a process sleeps in belongs to a file system or the block layer."""
    return isinstance(process.wait_channel, str) and _STORAGE_CHANNEL.search(process.wait_channel) is not None


def waits_for_driver(process: ProcessSample) -> bool:
    """True where it sleeps in a GPU driver: no storage, whatever its state."""
    return isinstance(process.wait_channel, str) and _DRIVER_CHANNEL.search(process.wait_channel) is not None


# Kernel functions by the file systems that own them: NFS and its RPC, Lustre, FUSE, Ceph, GPFS, CIFS, the page cache, the block layer.
_STORAGE_CHANNEL = re.compile(
    r"^(?:nfs|rpc_wait|__rpc|cl_|ll_|lov_|osc_|ptlrpc|ldlm|mdc_|request_wait_answer|fuse_|__fuse|ceph|mds_wait|cxi|gpfs|mmfs|cifs|smb2?_|"
    r"wait_for_response|p9_|v9fs|beegfs|FhgfsOps|folio_wait|__folio|wait_on_page|__wait_on_bit|io_schedule|blk_|bio_|xfs_|ext4_|jbd2|btrfs|"
    r"submit_bio|balance_dirty|flock_lock_inode_wait|locks_lock|__sb_start|percpu_rwsem)"
)
_DRIVER_CHANNEL = re.compile(r"^(?:nvidia|nv_|_nv|uvm_|rm_|os_acquire|nvmap|amdgpu|kfd_)")


def explain(scene: Scene, rank: int) -> Cause | None:
    """Speaks where the rank's main thread is inside a file call or in D state."""
    wait = scene.waits[rank]
    process = scene.process_of(rank)
    # A pipe or a socket without a name leads to another process, not to storage.
    nameless = wait.call is not None and wait.call.path is not None and not wait.call.path.startswith("/")
    in_file_call = wait.call is not None and wait.call.name in IO_CALLS and not nameless
    if process is None or not (in_file_call or process.state == "D" or waits_for_storage(process)) or waits_for_driver(process):
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
