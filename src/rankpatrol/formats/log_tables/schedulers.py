"""The scheduler's word: Slurm, Kubernetes, LSF, PBS and clouds. It goes before any exit code."""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_tables.row import rows

ROWS = (
    *rows(
        Kind.SCHEDULER,
        (
            "time_limit",
            "due_to_time time-limit timelimit time_limit timeout term_runlimit walltime deadlineexceeded",
            (
                r"DUE TO TIME LIMIT|\bTERM_RUNLIMIT\b|walltime .{0,30}exceeded|(?:[Jj]ob|[Rr]eason).{0,60}DeadlineExceeded|State=TIMEOUT"
                r"|(?:reached|exceeded|hit) (?:its |the )?(?:job |wall ?)?time ?limit"
            ),
        ),
        (
            "node_fail",
            "node_failure node_fail node_fault",
            r"DUE TO NODE FAIL(?:URE)?|\bNODE_FAIL\b|\bjob.{0,40}node failure|(?:due to|because of) node failure",
        ),
        (
            "node_lost",
            "node_is_not nodenotready nodelost not_responding notready connection_to_node",
            (
                r"NodeNotReady|NodeLost|node is not ready|NodeStatusUnknown|[Nn]ode[ -]?\S*:? (?:is )?(?:not responding"
                r"|unreachable|NotReady)|nodes? \S+ not responding"
            ),
        ),
        (
            "oom",
            "oom out_of_memory oomkilled out-of-memory oom-kill",
            (
                r"(?<![\w.-])(?P<component>[a-z0-9][a-z0-9.-]{0,80})\s+\d+/\d+\s+OOMKilled"
                r"|[Dd]etected \d+ oom[-_ ]kill|DUE TO OUT OF MEMORY|OOMKilled|oom-kill event|Out Of Memory"
                r"|\bOUT_OF_MEMORY\b|task \d+: Out Of Memory"
            ),
        ),
        (
            "preempted",
            "preempt spot interruption evict",
            (
                r"DUE TO PREEMPTION|this job is preempted|after preemption/timeout|\bPREEMPTED\b|[Pp]reempt(?:ed"
                r"|ing) (?:job|pod|by)|[Ww]as preempted"
                r"|[Ss]pot (?:instance|VM).{0,40}(?:interrupt|reclaim|preempt|terminat)|Evicted|has been evicted"
                r"|TerminationByKueue|TaintManagerEviction|instance is being (?:preempted|reclaimed)"
            ),
        ),
        ("requeued", "requeue", r"(?:JobId[= ]|[Jj]ob )\d+.{0,40}[Rr]equeued?|[Rr]equeu(?:ed|ing) (?:SLURM )?job|DUE TO JOB REQUEUE"),
        (
            "cancelled",
            "cancelled",
            (
                r"\*\*\* (?:JOB|REBOOT) \S+ (?:ON \S+ )?CANCELLED AT|State=CANCELLED|CANCELLED by \d+"
                r"|job.{0,30}was cancelled by|\bscancel(?:led)?\b"
            ),
        ),
        ("step_cancelled", "cancelled", r"\*\*\* STEP \S+ (?:ON \S+ )?CANCELLED AT"),
        ("deleted", "deleted killing_container", r"[Dd]eleted pod|pod .{0,60}(?:was )?deleted|Stopping container"),
        (
            "walltime_signal",
            "sigusr1 sigusr2 sigterm sighup",
            (
                r"(?:[Rr]eceived|[Cc]aught|[Gg]ot) (?:signal )?(?:SIGTERM|SIGUSR[12]|SIGHUP)\b(?:: 15$|.{0,80}(?:preempt|requeue"
                r"|checkpoint|saving|graceful|exit|timed?[ -]?out))"
            ),
        ),
        ignore_case=False,
        also=True,
    ),
    *rows(
        Kind.OBSERVED,
        ("squeue_running", "running", r"^\s*(?P<job>\d{1,10}(?:_\d+)?)\s+\S+\s+\S+\s+\S+\s+(?:R|RUNNING)\s+[\d:-]+"),
        ("squeue_running", "jobstate=running state=running state_=_running", r"(?:Job)?State ?= ?RUNNING"),
        ("squeue_running", "squeue sacct scontrol scheduler", r"(?:squeue|sacct|scontrol|scheduler)\b.{0,60}\b(?:RUNNING|R)\b"),
    ),
)
