"""What Python and torch's own parts say of limits, loaders, ports, rendezvous and the like; 1.9 to 2.13."""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_tables.row import rows

ROWS = (
    *rows(
        Kind.LOADER_DIED,
        ("", "dataloader_worker", r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>[\d, ]+)\) is killed by signal: (?P<signal_words>[^.]+)"),
        (
            "",
            "dataloader_worker",
            r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>[\d, ]+)\) exited unexpectedly(?: with exit code (?P<code>-?\d+))?",
        ),
    ),
    *rows(
        Kind.SYMPTOM,
        ("fd_exhaustion", "too_many_open", r"Too many open files|\[Errno 24\]"),
        ("shm_too_small", "shm", r"^\s*(?:shm|tmpfs)\s+\S+\s+\S+\s+\S+\s+(?:100|99)%\s+/dev/shm"),
        ("fd_exhaustion", "ancdata", r"received \d+ items of ancdata"),
        (
            "shm_too_small",
            "shared_memory shm",
            (
                r"insufficient shared memory|out of shared memory|[Uu]nable to (?:write|mmap|open|allocate"
                r"|resize).{0,60}(?:/dev/shm|/torch_|shared memory)|/dev/shm.{0,40}(?:100 ?%|full)"
            ),
        ),
        (
            "port_in_use",
            "address_already eaddrinuse errno:_98 errno_98",
            r"[Aa]ddress already in use|EADDRINUSE|errno: ?98|\[Errno 98\]|port .{0,20}already in use",
        ),
        (
            "rendezvous_failed",
            "rendezvous",
            r"Rendezvous(?:Connection|Timeout|Closed|State|Graceful\w*)?Error|rendezvous.{0,60}(?:timed out|failed|timeout)",
        ),
        ("rendezvous_failed", "client_socket", r"client socket has (?:timed out|failed)"),
        (
            "rendezvous_failed",
            "clients_joined waiting_for_clients",
            r"waiting for clients\. ?(?P<joined>\d+)/(?P<wanted>\d+) clients joined",
        ),
        ("rendezvous_failed", "init_process_group store_based", r"Timed out initializing process group in store based barrier"),
        ("key_wait", "wait_timeout key_to wait_for", r"(?:wait timeout after|Timeout waiting for key|Wait timeout).{0,120}"),
        ("loader_timeout", "dataloader_timed dataloader_timeout", r"DataLoader timed out after (?P<seconds>\d+)"),
        (
            "fork_warning",
            "just_got_forked multi-threaded fork()",
            (
                r"current process just got forked, after parallelism"
                r"|is multi-threaded, use of fork\(\) may lead to deadlocks|os\.fork\(\) was called"
            ),
        ),
        ("wrong_uneven", "uneven join", r"(?:uneven|different number of) (?:inputs?|batches|samples|iterations)"),
        (
            "loss_nan",
            "nan",
            r"\b(?:loss|lm loss|train_loss)\b['\"]?\s*(?:is|=|:|value is|was)?\s*:?\s*['\"]?(?:nan|-?inf)\b",
        ),
        ("grad_nan", "nan inf", r"\bgrad(?:ient)?[ _]?norm['\"]?\s*(?:is|=|:)?\s*:?\s*['\"]?(?:nan|-?inf)\b"),
        ("loss_nan", "nan", r"(?:NaN|nan) (?:loss|detected|or inf|gradient)|(?:detected|found|encountered).{0,30}\b(?:nan|inf)\b"),
        ("bus_error", "bus_error", r"\bBus error\b|SIGBUS"),
        (
            "host_no_memory",
            "cannot_allocate memoryerror std::bad_alloc defaultcpuallocator",
            r"Cannot allocate memory|\bMemoryError\b|std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)",
        ),
        (
            "download_failed",
            "readtimeout huggingface.co connectionpool",
            r"(?:ReadTimeout|ConnectTimeout|Read timed out|Max retries exceeded).{0,160}",
        ),
        (
            "lock_wait",
            "lock acquire attempting_to",
            r"(?:Attempting to acquire|Waiting (?:for|to acquire)|Lock \S+ not acquired|waiting on).{0,10} ?(?:file)?lock\b",
        ),
        ("rank_exits_early", "early_stop stopiteration sys.exit", r"\b[Ee]arly stop(?:ping|ped)? (?:triggered|at|now|on rank)"),
        ("abandoned", "did_not_exit", r"did not exit after SIGKILL"),
        (
            "gpu_skip",
            "skip retry microbatch micro-batch decreased",
            r"(?:[Ss]kipp?ing|[Rr]etry\w*|decreas\w+|reduc\w+).{0,40}(?:batch|microbatch|step)",
        ),
        also=True,
        ignore_case=False,
    ),
    *rows(
        Kind.OBSERVED,
        ("loss_number", "loss", r"\b(?:lm |train_)?loss['\"]?\s*(?:is|=|:)?\s*:?\s*['\"]?-?\d"),
        also=True,
    ),
    *rows(
        Kind.SETTING,
        ("detail_debug", "torch_distributed_debug", r"TORCH_DISTRIBUTED_DEBUG\s*[=:]\s*['\"]?(?P<value>DETAIL)"),
        ("nccl_timeout_env", "nccl_timeout", r"(?<![_A-Z])(?:NCCL_TIMEOUT|DDP_TIMEOUT)\s*[=:]\s*['\"]?(?P<value>\d+)"),
        ("timeout", "timedelta", r"timeout\s*=\s*(?:datetime\.)?timedelta\((?P<unit>seconds|minutes|hours|days)=(?P<value>\d+)"),
        (
            "timeout",
            "ddp_timeout distributed-timeout",
            r"(?:ddp[_-]timeout|distributed[_-]timeout-(?P<unit>minutes))['\"]?\s*[=: ]\s*(?P<value>\d+)",
        ),
        ("open_files", "open_files ulimit nofile", r"(?:[Mm]ax open files|ulimit -n|nofile)\s*[=:]?\s*(?P<value>\d+)"),
        ("shm_size", "shm", r"(?:^|\s)(?:shm|tmpfs)\s+(?P<size>\S+)\s+\S+\s+\S+\s+(?P<used>\d+)%\s+/dev/shm"),
        ("unbuffered", "pythonunbuffered python_-u", r"PYTHONUNBUFFERED\s*[=:]?\s*(?P<value>\S*)"),
        also=True,
    ),
    *rows(
        Kind.WORLD,
        ("size", "world", r"\bworld[ _-]?size['\"]?\s*[=:]?\s*['\"]?(?P<size>\d{1,6})\b"),
        (
            "size",
            "num_processes nproc num_gpus nranks",
            r"\b(?:num[_-]processes|nranks|n_ranks|total[_ ]ranks)['\"]?\s*[=: ]\s*['\"]?(?P<size>\d{1,6})\b",
        ),
        (
            "size",
            "with_backend members_registered",
            (
                r"(?:GLOBAL_RANK|MEMBER): \d+(?:, MEMBER: \d+)?/(?P<size>\d+)"
                r"|All distributed processes registered\. Starting with (?P<size2>\d+) processes"
            ),
        ),
        ("size", "ranks", r"(?:expected ranks|ranks)[ :=]+0(?:-|\.\.|(?:,\d+)*,)(?P<last>\d+)\b"),
        also=True,
    ),
)
