"""NCCL's own lines (NCCL_DEBUG=WARN and INFO) and its RAS text; 2.7 to 2.28."""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_tables.row import rows

ROWS = (
    *rows(
        Kind.SYMPTOM,
        (
            "link_down",
            "got_async_event",
            (
                r"(?<!\w)(?P<device>\w{1,40}(?::\d{1,4})?) ?:? ?Got (?:async|non-fatal async|fatal async) event ?: ?(?:port error"
                r"|link down|LID change|client reregistration|device fatal)"
            ),
        ),
        ("link_up", "got_async_event", r"Got async event ?: ?port active"),
        (
            "transport_error",
            "got_completion",
            r"Got completion (?:from peer (?P<peer>[\w.:\-\[\]]+)<\d+> )?with (?:status|error)[ =](?:IBV_WC_\w+ ?\()?(?P<status>\d+)",
        ),
        (
            "shm_too_small",
            "posix_fallocate shared_memory_segment nccl-shm",
            r"posix_fallocate failed|while (?:creating|attaching to) shared memory segment|nccl-shm.*No space left",
        ),
        ("shm_too_small", "no_space_left", r"(?:/dev/shm|shm).*No space left on device|No space left on device.*(?:/dev/shm|shm)"),
        (
            "no_interface",
            "socket_interface usable_interface no_interface",
            r"no (?:socket|usable|IP)? ?interface found|No (?:usable )?(?:socket )?interface",
        ),
        (
            "connect_failed",
            "connect_to",
            (
                r"[Cc]onnect to .{1,60} failed ?: ?(?P<why>Connection refused|Connection timed out|No route to host"
                r"|Network is unreachable|Software caused connection abort|[\w ]+)"
            ),
        ),
        ("connect_failed", "call_to_connect", r"Call to connect (?:to \S+ )?failed ?: ?(?P<why>[\w ]+)"),
        # gloo's mesh is built once, when a group is: before any step it is the network, or the interface that was chosen.
        ("connect_failed", "connectfullmesh", r"(?P<why>Gloo connectFullMesh failed)"),
        ("connect_failed", "no_route_to unreachable", r"(?P<why>No route to host|Network is unreachable)"),
        (
            "p2p_off",
            "p2p_is_disabled peer_access pci-e_access_control acs",
            r"P2P is disabled between|peer access is not supported|ACS (?:is )?(?:enabled|on)|IOMMU.{0,30}enabled",
        ),
        ("call_failed", "cuda_failure", r"Cuda failure (?:\d+ )?'(?P<message>[^']*)'"),
        ignore_case=False,
    ),
    *rows(
        Kind.COLLATERAL,
        ("peer_rank", "failed_to_execute", r"Failed to execute operation \w+ from rank (?P<from>\d+)"),
        ("remote_gone", "closed_by_remote", r"Connection closed by remote peer"),
        ("remote_gone", "call_to_recv call_to_send call_to", r"Call to (?:recv|send|ibv_\w+) (?:from|to)?.{0,60}failed"),
        ("nccl_error", "nccl_error nccl_errors", r"NCCL error(?:s)? in: (?P<where_in>\S+), (?P<what>[^,]+?)(?:,| \()"),
        ("nccl_error", "ncclsystemerror ncclinternalerror ncclunhandled", r"nccl(?P<what>System|Internal|UnhandledCuda)Error"),
        ("bootstrap", "bootstrap.cc:", r"bootstrap\.cc:\d+ (?:NCCL WARN|->)"),
        also=True,
    ),
    *rows(
        Kind.OBSERVED,
        ("ras_ahead", "launched_up_to", r"(?<!\d)(?P<count>\d{1,9}) ranks? ha(?:s|ve) launched up to operation (?P<operation>\d+)"),
        ("ras_mismatch", "mismatch", r"#\S+ \(\w+\) MISMATCH|\bRUNNING\s+MISMATCH\b"),
        (
            "ras_incomplete",
            "incomplete",
            (
                r"#\S+ \(\w+\) INCOMPLETE|\bINCOMPLETE\b.*?(?<!\d)\d{1,9} ranks? (?:did not"
                r"|unresponsive)|(?<!\d)(?P<missing>\d{1,9}) missing ranks?"
            ),
        ),
        ("ras_ok", "running", r"^\s*\d+\s+\d+\s+\d+\s+\d+\s+\d+\s+\d+\s+RUNNING\s+OK"),
        ignore_case=False,
    ),
)
