"""c10d's lines: NCCL watchdog, gloo, the store, monitored barriers and the DETAIL wrapper; torch 1.9 to 2.13.

Texts as in the published wheels 1.13, 2.1, 2.3, 2.5, 2.7, 2.9, 2.11 and 2.13, and as users posted those of 1.9 to 1.12; their line
numbers differ and are not matched.
"""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_tables.row import rows

_WORK = (
    r"Work(?:NCCL|XCCL|HCCL|GLOO|[A-Z]{3,5})\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, (?:TensorShape=\[(?P<shape>[^\]]*)\]|NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+)))?"
    r", Timeout\(ms\)=(?P<timeout_ms>\d+)\)"
)
_PROGRESS = r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
_PRINT = r"CollectiveFingerPrint\((?:[^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*\)"

ROWS = (
    # "raised the following async exception" carries the same WorkNCCL(…), and is no time-out.
    *rows(
        Kind.COLLATERAL,
        (
            "remote_gone",
            "async_exception",
            rf"(?:{_WORK})?.{{0,60}}async exception.{{0,40}}NCCL error.*(?:remote process exited|network error|remote error)",
        ),
        ("nccl_error", "async_exception", r"async exception(?: when checking for NCCL errors)?: (?P<message>.{0,200})"),
        ignore_case=False,
    ),
    *rows(
        Kind.TIMED_OUT,
        (
            "watchdog",
            "watchdog_caught",
            (
                r"(?:\[Rank (?P<group_rank>\d+)\] )?(?:\[[^\]]*\] )?"
                rf"Watchdog caught collective operation timeout: {_WORK} ran for (?P<ran_ms>\d+) milliseconds"
            ),
        ),
        ("blocking_wait", "timed_out_in", rf"{_WORK} timed out in (?:call to wait|blocking wait)"),
        ("gloo", "timed_out_waiting", r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<op>send|recv) operation to complete"),
        ignore_case=False,
    ),
    *rows(
        Kind.STATUS,
        ("", "last_enqueued", rf"(?:at work|sequence id|NCCL work): (?P<seq>\d+).{{0,30}}?{_PROGRESS}"),
        (
            "told",
            "dump_signal",
            (
                r"dump signal due to a collective timeout from (?:this local rank| ?rank (?P<from>-?\d+)).*"
                r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
            ),
        ),
        ignore_case=False,
    ),
    *rows(
        Kind.WATCHDOG_STUCK,
        ("watchdog", "got_stuck", r"watchdog got stuck for (?P<seconds>\d+) seconds"),
        ("heartbeat", "heartbeat_monitor", r"Heartbeat monitor timed out"),
        ("gil", "acquire_gil", r"Could not acquire GIL within"),
    ),
    *rows(
        Kind.GOING_DOWN,
        ("c10d", "entire_process", r"taking the entire process down"),
        ("c10d", "terminating_the", r"Terminating the process after attempting to dump"),
        ("c10d", "to_avoid_this", r"To avoid this inconsistency"),
        also=True,
    ),
    *rows(
        Kind.SYMPTOM,
        # A CUDA error that the watchdog thread meets is the device's word, not a time-out: the rows of devices.py name it.
        ("watchdog_cuda", "thread_terminated", r"watchdog thread terminated with exception: (?P<message>CUDA error:.{0,160})"),
        also=True,
    ),
    *rows(
        Kind.MISMATCH,
        (
            "collectives",
            "detected_mismatch",
            (
                rf"mismatch between collectives on ranks?\. Rank (?P<one>\d+) is running (?:inconsistent )?collective: (?P<first>{_PRINT})"
                rf"(?:,? but|\.?) Rank (?P<two>\d+) is running collective: (?P<second>{_PRINT})"
            ),
        ),
        (
            "collectives",
            "running_inconsistent inconsistent_collective",
            r"Rank (?P<one>\d+) is running inconsistent collective: (?P<first>.{1,300})",
        ),
        ("shape", "tensors_of_different", r"(?:Detected (?:at least one )?mismatch|tensors? of different (?:shape|size)s? across ranks)"),
        ignore_case=False,
    ),
    *rows(
        Kind.BARRIER_ABSENT,
        ("", "pass_monitoredbarrier", r"Ranks? (?P<ranks>\d[\d, ]*) failed to pass monitoredBarrier in (?P<timeout_ms>\d+) ms"),
        ("", "monitoredbarrier", r"\[Rank (?P<by>\d+)\]: Rank (?P<ranks>\d+) (?:failed|did not)"),
    ),
    *rows(
        Kind.COLLATERAL,
        ("barrier_victim", "reached_monitoredbarrier", r"Rank (?P<by>\d+) successfully reached monitoredBarrier"),
        ("store_gone", "should_dump tcpstore", r"Failed to check the \"should dump\" flag|TCPStore server has shut down too early"),
        ("store_gone", "sendbytes recvvalue recvbytes sendvalue", r"(?:send|recv)(?:Bytes|Value|Vector)? failed on SocketImpl"),
        ("peer_closed", "closed_by_peer", r"Connection closed by peer \[(?P<ip>[^\]]+)\]:(?P<port>\d+)"),
        (
            "peer_closed",
            "read_error write_error",
            r"(?:Read|Write) error \[(?P<ip>[^\]]+)\]:(?P<port>\d+): (?:Connection reset by peer|Broken pipe)",
        ),
        ("peer_closed", "connection_reset broken_pipe", r"Connection reset by peer|Broken pipe"),
        ("remote_gone", "remote_error_detected", r"remote error detected from rank: (?P<from>\d+)"),
        ("remote_gone", "remote_process", r"remote process exited or there was a network error"),
        ("remote_gone", "ncclremoteerror", r"ncclRemoteError"),
        ("aborted", "communicator_was", r"NCCL communicator was aborted(?: on rank (?P<by>\d+))?"),
        also=True,
    ),
    *rows(
        Kind.NAMED_LAGGING,
        ("", "ranks_that_caused", r"ranks that caused the desync are:\s*(?P<ranks>[\d, ]*)"),
        ("", "didn't_join", r"\[(?P<ranks>\d[\d, ]*)\] finished collective #(?P<seq>\d+), but didn't join"),
    ),
    *rows(
        Kind.SYMPTOM,
        ("unique_id", "ncclcommunicator nccl_communicator", r"is setting up NCCL communicators? and retr\w+ ncclUniqueIds? from"),
    ),
)
