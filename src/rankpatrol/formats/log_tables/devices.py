"""What a GPU, its driver, the kernel or a file system says: CUDA errors, Xid, ECC, clocks, the OOM killer, hung tasks, full disks."""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.kernel_log import KILLED
from rankpatrol.formats.log_tables.row import rows

ROWS = (
    *rows(
        Kind.KILLED_BY_KERNEL,
        ("oom", "killed_process kill_process", KILLED),
        ("oom", "oom-kill:", r"oom-kill:.*?task=(?P<process>[^,]+),pid=(?P<pid>\d+)"),
        ("oom", "invoked_oom-killer", r"(?<!\S)(?P<process>\S{1,64}) invoked oom-killer"),
        (
            "cgroup_oom",
            "oom_kill oom_group_kill",
            r"memory\.events.*\boom_kill[ :=]+(?P<count>[1-9]\d*)|\boom_kill[ :=]+(?P<count2>[1-9]\d*)",
        ),
        ignore_case=False,
    ),
    *rows(
        Kind.SYMPTOM,
        ("xid", "xid", r"Xid \(PCI:(?P<pci>[0-9A-Fa-f:.]+)\): ?(?P<xid>\d+)(?:, pid=['\"]?(?P<pid>\d+))?"),
        ("xid", "xid", r"\bXid[ :=#]+(?P<xid>\d+)\b"),
        ("gpu_lost", "fallen_off", r"GPU has fallen off the bus"),
        ("gpu_lost", "device_handle", r"Unable to determine the device handle for [Gg][Pp][Uu] ?(?P<pci>[0-9A-Fa-f:.]+)"),
        (
            "gpu_lost",
            "gpu_is_lost gpu_lost rm_has_detected gpu_access_blocked",
            r"GPU is lost|GPU[_ ]LOST|GPU access blocked|rm_init_adapter failed|RmInitAdapter failed",
        ),
        ("gpu_lost", "no_devices devices_were", r"No devices were found"),
        (
            "no_device",
            "no_cuda-capable cuda_gpus cudagetdevicecount device_unavailable devices_unavailable",
            r"no CUDA-capable device is detected|No CUDA GPUs are available|CUDA-capable device\(s\) is/are busy or unavailable",
        ),
        ("system_not_ready", "system_not system_has", r"system not yet initialized|fabric ?manager.{0,40}(?:not running|failed|error)"),
        (
            "gpu_ecc",
            "ecc uncorrectable",
            (
                r"(?<!\bno )(?<!\bNo )(?<!without )(?<!\b0 )[Uu]ncorrectable(?: NVLink)? ECC error"
                r"|(?:double[- ]bit|DBE).{0,30}(?:ECC|error)"
                r"|ECC.{0,60}[Uu]ncorrect\w* *: *[1-9]|[Uu]ncontained ECC"
            ),
        ),
        (
            "gpu_ecc",
            "row_remap remapped_rows remapping",
            r"(?:[Rr]ow [Rr]emap\w*|Remapped Rows?).{0,30}(?:[Ff]ail|Pending ?: ?Yes|[Pp]ending)",
        ),
        ("nvlink", "nvlink", r"(?:uncorrectable NVLink error|NVLink.{0,40}(?:fatal|down|inactive|error was detected))"),
        (
            "illegal_access",
            "illegal_memory illegal_address illegal_instruction misaligned_address",
            r"illegal memory access was encountered|an illegal instruction was encountered|misaligned address",
        ),
        ("device_assert", "device-side_assert assertion_`", r"device-side assert triggered|Assertion `.{1,120}` failed"),
        (
            "launch_failure",
            "unspecified_launch launch_failure launch_timed",
            r"unspecified launch failure|launch timed out and was terminated",
        ),
        (
            "cuda_unknown",
            "cuda_error: unknown_error",
            r"CUDA error: (?:unknown error|driver shutting down|hardware error|device not ready)",
        ),
        (
            "cuda_oom",
            "out_of_memory outofmemoryerror cudaerrormemoryallocation cublas_status_alloc cuda_error_out",
            (
                r"(?:CUDA|HIP|XPU)(?: error:)? out of memory|Cuda failure (?:\d+ )?'out of memory'"
                r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
                r"|torch\.(?:cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
            ),
        ),
        ("aer", "aer: pcie_bus", r"AER: |PCIe Bus Error: severity=(?P<severity>\w+)"),
        ("iommu", "dmar amd-vi io_page_fault iommu", r"DMAR: .{0,80}fault|AMD-Vi: .{0,60}IO_PAGE_FAULT|IO_PAGE_FAULT"),
        ("acs", "acsctl acs_", r"ACSCtl:.*SrcValid\+|ACS.{0,20}(?:enabled|on|is active)"),
        (
            "p2p_bad",
            "p2p simplep2p p2pbandwidth peer-to-peer",
            r"(?:simpleP2P|p2pBandwidth\w*|P2P).{0,80}(?:FAILED|[Vv]erification error|hangs?|wrong|corrupt|mismatch)",
        ),
        (
            "p2p_switch",
            "nccl_p2p_disable",
            (
                r"NCCL_P2P_DISABLE=1.{0,80}(?:work|finish|pass|ok|runs|fine|helps|solve|no hang|completes)|(?:work"
                r"|finish|pass|run)\w*.{0,40}NCCL_P2P_DISABLE=1"
            ),
        ),
        (
            "clock_low",
            "slowdown throttl clocks_throttle thermal_violation",
            (
                r"(?:\brank[ =](?P<rank>\d+)\b.{0,80})?(?:HW|SW)?[ _]?(?:Thermal"
                r"|Power Brake)?[ _]?[Ss]lowdown\s*[:=]?\s*(?:Active|ACTIVE|active"
                r"|1\b(?!\.))|^\s*\d+\s*,.*\b[hs]w_(?:thermal_|power_brake_)?slowdown\s*$"
                r"|(?:[Tt]hermal|[Pp]ower)[ -][Tt]hrottl(?:ing|ed)|throttle[d_]?\w*[ =:]+(?!none|None|0x0+\b|0\b"
                r"|Not)\S+"
            ),
        ),
        (
            "nic",
            "mlx5_ nic ib_",
            r"mlx5_\w+.{0,60}(?:Link down|link is down|health (?:compromised|poll)|firmware (?:error|assert)|Port: 1 Link DOWN)",
        ),
        (
            "link_down",
            "link_down link_is_down nic_link carrier port_error port_1_link",
            (
                r"(?P<device>\b(?:mlx5|ib|eth|ens|enp|bond|rdma|hsn)\w*)\b.{0,40}(?:Link down|[Ll]ink [Ii]s [Dd]own"
                r"|NIC Link is Down|lost carrier|port state.{0,20}DOWN)"
            ),
        ),
        ("link_up", "link_up link_is_up link_becomes", r"(?:[Ll]ink [Ii]s [Uu]p|Link up|link becomes ready)"),
        (
            "link_errors",
            "symbol_error linkdowned link_downed perfquery ibqueryerrors",
            r"(?:LinkDowned|link_downed|SymbolError\w*|symbol_error\w*|LinkErrorRecovery\w*)[ .:=]+(?!0\b)(?P<count>\d+)",
        ),
        ("hung_task", "blocked_for_more", r"task (?P<process>[^:]+):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds"),
        ("soft_lockup", "soft_lockup hard_lockup rcu_sched", r"(?:soft|hard) lockup|rcu_\w+ (?:self-)?detected stall"),
        (
            "fs_stall",
            "nfs lustre gpfs ceph beegfs stale_file not_responding",
            (
                r"nfs:? .{0,60}not responding|[Ss]tale (?:NFS )?file handle"
                r"|Lustre.{0,200}(?:[Cc]onnection to .{0,60}lost|evicted|timed out)|LustreError.{0,120}"
                r"|mmfs.{0,80}(?:unmounted|lost|expel)|ceph.{0,60}(?:lost|hung|timed out)|beegfs.{0,60}(?:timed out"
                r"|unreachable|lost)"
            ),
        ),
        ("fs_back", "nfs", r"nfs:? .{0,60}server .{0,40} OK\b"),
        (
            "io_error",
            "input/output_error i/o_error",
            r"Input/output error|\bI/O error\b|\[Errno 5\]|Transport endpoint is not connected|Remote I/O error|\[Errno 121\]",
        ),
        (
            "df_full",
            "100%",
            r"^\s*\S+\s+\S+\s+\S+\s+(?:0|\d{1,3}[KM]?)\s+100%\s+/(?!dev/shm|snap|proc|sys|boot)\S*",
        ),
        (
            "write_failed",
            "inline_container pytorchstreamwriter file_write",
            r"PytorchStreamWriter failed writing|inline_container\.cc.{0,40}unexpected pos|file write failed",
        ),
        (
            "disk_full",
            "no_space_left quota_exceeded disk_quota",
            r"No space left on device|[Dd]isk quota exceeded|\[Errno 28\]|\[Errno 122\]",
        ),
        ignore_case=False,
        also=True,
    ),
)
