"""What launchers say of the ranks: torchelastic, torch.multiprocessing, srun, mpirun, DeepSpeed, accelerate, Ray, shells."""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_tables.row import rows

ROWS = (
    *rows(
        Kind.STOPPED_BY_LAUNCHER,
        ("closing", "closing_signal", r"Sending process (?P<pid>\d+) closing signal (?P<signal>SIG\w+)"),
        ("closing", "closing_process", r"Closing process (?P<pid>\d+) via signal (?P<signal>SIG\w+)"),
        ("forced", "forcefully_exiting", r"Unable to shutdown process (?P<pid>\d+) via"),
        ("cleanup", "killing_subprocess", r"Killing subprocess (?P<pid>\d+)"),
        (
            "cleanup",
            "terminating_stepid terminating_job kill-on-bad-exit",
            r"srun: (?:error: )?(?:Terminating (?:StepId|job step)|Force Terminated)",
        ),
        ("cleanup", "mpi_abort aborting_the", r"MPI_ABORT was invoked on rank (?P<from>\d+)"),
        (
            "killed_by_term",
            "signal_15 sigterm terminated",
            r"exit ?code ?:? ?-15\b|Signal 15 \(SIGTERM\) received|task \d[\d,-]*: Terminated|srun: .*tasks? [\d,-]+: Killed.*Terminating",
        ),
        ignore_case=False,
    ),
    *rows(
        Kind.EXITED,
        ("elastic", "local_rank", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\) of"),
        ("row_rank", "local_rank", r"^\s*rank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)"),
        ("row_host", "host", r"^\s*host\s+: (?P<host>\S+)$"),
        ("row_code", "exitcode", r"^\s*exitcode\s+: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"),
        ("row_signal", "received_by", r"traceback : Signal (?P<signal_number>\d+) \((?P<signal>SIG\w+)\) received by PID (?P<pid>\d+)"),
        ("row_first", "root_cause", r"^Root Cause \(first observed failure\)"),
        ("row_rest", "failures:", r"^(?:Other )?[Ff]ailures:"),
        ("spawn", "terminated_with", r"process (?P<rank>\d+) terminated with exit code (?P<code>-?\d+)"),
        ("spawn_signal", "terminated_with", r"process (?P<rank>\d+) terminated with signal (?P<signal>SIG\w+)"),
        ("srun", "exited_with", r"srun: error: \S+: tasks? (?P<ranks>\d[\d,-]*): Exited with exit code (?P<code>\d+)"),
        (
            "srun",
            "srun",
            (
                r"srun: error: (?P<host>\S+): tasks? (?P<ranks>\d[\d,-]*): (?P<signal_words>Segmentation fault|Aborted"
                r"|Bus error|Floating point exception|Illegal instruction|Killed|Out Of Memory)"
            ),
        ),
        (
            "observer",
            "exited_with exit_code",
            (
                r"rank[ =:]?(?P<rank>\d+)\b.{0,40}?(?:exited|ended|left|finished|exit)(?: with)?(?: exit)?[ -]?(?:code"
                r"|status)?[ =:]*(?P<code>-?\d+)"
            ),
        ),
        (
            "signal_line",
            "signal",
            r"rank[ =:]?(?P<rank>\d+) \(pid:? ?(?P<pid>\d+)\):? [Ss]ignal (?P<signal_number>\d+) ?\((?P<signal>SIG\w+)\)",
        ),
        (
            "mpirun",
            "exited_on_signal",
            r"noticed that process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<signal_number>\d+)",
        ),
        ("first_child", "child_process", r"Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)"),
        ("mpirun", "primary_job", r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]"),
        ("mpirun_code", "exit_code:", r"^\s*Exit code:\s+(?P<code>\d+)"),
        ("deepspeed", "exits_with", r"exits with return code = (?P<code>-?\d+)"),
        ("called", "returned_non-zero", r"returned non-zero exit status (?P<code>-?\d+)"),
        ("called", "died_with", r"died with <Signals\.(?P<signal>SIG\w+): (?P<signal_number>\d+)>"),
        ("container", "exit_code", r"(?:container|pod|worker)\b.{0,80}\bexit code:? (?P<code>\d+)"),
        also=True,
    ),
    *rows(
        Kind.PLACED,
        ("process", "world_rank rank=", r"\((?:node_id=\w+, )?ip=(?P<host>[\w.:-]+), pid=(?P<pid>\d+)\) (?:world_)?rank=(?P<rank>\d+)"),
        ("process", "pid", r"^pid[ =:]{1,2}(?P<pid>\d+)(?: (?:on|host[=:]?) (?P<host2>[A-Za-z][\w.-]*))?"),
        (
            "process",
            "pid",
            (
                r"\b(?:global[ _])?[Rr]ank[ =:]{1,2}(?P<rank>\d{1,6})\b[,: (=>-]{1,4}(?:on "
                r"|host[ =:])?(?:(?P<host>[A-Za-z][\w.-]{0,60})[,: ]{1,3})??"
                r"pid[ =:]{1,2}(?P<pid>\d+)(?: (?:on|host[=:]?) (?P<host2>[A-Za-z][\w.-]*))?"
            ),
        ),
        ("node", "ranks", r"(?<![\w.-])(?P<host>[A-Za-z][\w.-]{0,60}(?:\d|-[a-z]))[:=]? (?:has |holds |is )?ranks? (?P<ranks>\d+-\d+)"),
        ("node", "ranks", r"\branks? (?P<ranks>\d+-\d+) (?:\(|on |= ?|: ?)(?P<host>[A-Za-z][\w.-]{0,60}(?:\d|-[a-z]))(?![\w.-])"),
        also=True,
    ),
    *rows(
        Kind.MEMBERS,
        (
            "",
            "ranks",
            r"\bgroup\b.{0,40}?\b(?:guid |name |id )?(?P<group>\w+)\b[^\d]{0,60}(?:global )?ranks?[ :=]+\[?(?P<ranks>\d+(?:, ?\d+)+)",
        ),
        also=True,
    ),
    *rows(
        Kind.DIED,
        (
            "ray",
            "a_worker_died",
            r"A worker died or was killed while executing(?:.*?Worker IP address: (?P<host>[\w.:-]+))?.*?Worker PID: (?P<pid>\d+)",
        ),
        (
            "ray",
            "actor_died actordied workercrashed",
            r"(?:The actor died|ActorDiedError|WorkerCrashedError|RayActorError)(?:.{0,300}?pid[=:] ?(?P<pid>\d+))?",
        ),
        (
            "ray_oom",
            "killed_due running_low memory_pressure",
            r"(?:workers?|tasks?) .{0,60}killed due to (?:the node running low on )?memory|was killed due to the node running low",
        ),
        ("ray_node", "node_died marked_dead", r"[Nn]ode.{0,80}(?:has been marked dead|died|marked as dead)"),
        (
            "observed",
            "rank",
            (
                r"^\s*(?:--|##?)\s.{0,60}?\brank[ =](?P<rank>\d+)\b(?: \(?pid[ =]?(?P<pid>\d+)\)?)?.{0,30}?"
                r"(?:is gone|no longer (?:there|runs|exists)|not in ps|[Nn]o such process|defunct|disappeared|vanished|is dead|zombie)"
            ),
        ),
        ("lost_agent", "agent_lost keep-alive keep_alive", r"(?:The node|[Nn]ode) '?(?P<host>[\w.-]+)'? has failed to (?:send|renew)"),
        (
            "lost_agent",
            "lost_connection remote_daemon",
            r"ORTE has lost communication with a remote daemon|lost connection to (?:node|host) (?P<host>[\w.-]+)",
        ),
        (
            "launcher_died",
            "launcher torchrun agent",
            r"(?:torchrun|launcher|elastic agent|agent)\b.{0,40}(?:was killed|is gone|died|no longer (?:runs|there)|exited|not running)",
        ),
        also=True,
    ),
    *rows(
        Kind.SIGNALLED,
        ("launcher_signalled", "death_signal", r"Received (?:Signals\.)?(?P<signal>SIG\w+|\d+) death signal, shutting down"),
        ("launcher_signalled", "signalexception", r"SignalException: Process (?P<pid>\d+) got signal: (?P<signal_number>\d+)"),
        ("timer_reaped", "reaping_worker", r"Reaping worker_(?:pid|id)=\[(?P<pid>\d+)\]\. Expired timers"),
        (
            "fatal",
            "fatal_python",
            (
                r"Fatal Python error: (?P<signal_words>Segmentation fault|Aborted|Bus error|Floating point exception"
                r"|Illegal instruction)(?: ?\(rank (?P<rank>\d+)\))?"
            ),
        ),
        ("caught", "caught_signal", r"Caught signal (?P<signal_number>\d+) \((?P<signal_words>[^:)]+)"),
        ("handler", "process_received", r"\*\*\* Process received signal \*\*\*"),
        ("handler", "signal_code signal:", r"Signal: (?P<signal_words>[\w ]+?) \((?P<signal_number>\d+)\)"),
        (
            "shell",
            "segmentation aborted bus_error core_dumped",
            (
                r"(?P<signal_words>Segmentation fault|Aborted|Bus error"
                r"|Floating point exception|Illegal instruction)(?:\s+\(core dumped\)|\s*$)"
            ),
        ),
        # bash: `run.sh: line 12: 88123 Killed   python train.py`
        (
            "shell",
            "line",
            r": line \d+:\s+(?P<pid>\d+) (?P<signal_words>Killed|Segmentation fault|Aborted|Bus error|Illegal instruction)\b",
        ),
        ("segfault_kernel", "segfault_at", r"(?<!\w)\w{1,40}\[(?P<pid>\d{1,10})\]: segfault at"),
        ("terminate", "terminate_called", r"terminate called after throwing"),
    ),
)
