"""System calls by number, and which of their arguments lead to a file."""

import platform

from rankpatrol.core.records import Record

# In user space, and blocked in no call at all (a page fault, or a stop): proc_pid_syscall(5).
RUNNING = "running"
OUTSIDE = "outside"

# name, number on x86_64, number on aarch64 (- where there is none), then the arguments that lead to a file, counted from 0:
# fd: a descriptor · path: a pointer to a file name · dir: the descriptor such a name starts from · at: a file offset.
# Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of the kernel.
_TABLE = """
read                0   63  fd=0
write               1   64  fd=0
pread64            17   67  fd=0 at=3
pwrite64           18   68  fd=0 at=3
readv              19   65  fd=0
writev             20   66  fd=0
preadv            295   69  fd=0 at=3
pwritev           296   70  fd=0 at=3
preadv2           327  286  fd=0 at=3
pwritev2          328  287  fd=0 at=3
lseek               8   62  fd=0
open                2    -  path=0
creat              85    -  path=0
openat            257   56  dir=0 path=1
openat2           437  437  dir=0 path=1
close               3   57  fd=0
poll                7    -
ppoll             271   73
select             23    -
pselect6          270   72
epoll_wait        232    -  fd=0
epoll_pwait       281   22  fd=0
epoll_pwait2      441  441  fd=0
futex             202   98
futex_waitv       449  449
nanosleep          35  101
clock_nanosleep   230  115
fsync              74   82  fd=0
fdatasync          75   83  fd=0
sync              162   81
syncfs            306  267  fd=0
sync_file_range   277   84  fd=0
msync              26  227
readahead         187  213  fd=0
flock              73   32  fd=0
fcntl              72   25  fd=0
ioctl              16   29  fd=0
recvfrom           45  207  fd=0
recvmsg            47  212  fd=0
recvmmsg          299  243  fd=0
sendto             44  206  fd=0
sendmsg            46  211  fd=0
sendmmsg          307  269  fd=0
accept             43  202  fd=0
accept4           288  242  fd=0
connect            42  203  fd=0
shutdown           48  210  fd=0
wait4              61  260
waitid            247   95
pause              34    -
rt_sigsuspend     130  133
rt_sigtimedwait   128  137
sched_yield        24  124
restart_syscall   219  128
stat                4    -  path=0
lstat               6    -  path=0
fstat               5   80  fd=0
newfstatat        262   79  dir=0 path=1
statx             332  291  dir=0 path=1
statfs            137   43  path=0
fstatfs           138   44  fd=0
access             21    -  path=0
faccessat         269   48  dir=0 path=1
faccessat2        439  439  dir=0 path=1
readlink           89    -  path=0
readlinkat        267   78  dir=0 path=1
getdents           78    -  fd=0
getdents64        217   61  fd=0
chdir              80   49  path=0
mmap                9  222  fd=4 at=5
mprotect           10  226
munmap             11  215
brk                12  214
mremap             25  216
madvise            28  233
unlink             87    -  path=0
unlinkat          263   35  dir=0 path=1
rename             82    -  path=0
renameat          264   38  dir=0 path=1
renameat2         316  276  dir=0 path=1
mkdir              83    -  path=0
mkdirat           258   34  dir=0 path=1
rmdir              84    -  path=0
link               86    -  path=0
linkat            265   37  dir=0 path=1
symlink            88    -  path=1
symlinkat         266   36  dir=1 path=2
truncate           76   45  path=0
ftruncate          77   46  fd=0
fallocate         285   47  fd=0
mount             165   40  path=1
umount2           166   39  path=0
sendfile           40   71  fd=1
copy_file_range   326  285  fd=0
splice            275   76  fd=0
tee               276   77  fd=0
vmsplice          278   75  fd=0
io_getevents      208    4
io_pgetevents     333  292
io_submit         209    2
io_destroy        207    1
io_uring_enter    426  426  fd=0
semop              65  193
semtimedop        220  192
msgsnd             69  189
msgrcv             70  188
mq_timedsend      242  182  fd=0
mq_timedreceive   243  183  fd=0
execve             59  221  path=0
execveat          322  281  dir=0 path=1
clone              56  220
clone3            435  435
fork               57    -
vfork              58    -
exit               60   93
exit_group        231   94
ptrace            101  117
process_vm_readv  310  270
getrandom         318  278
"""


class CallArguments(Record, frozen=True):
    """Where a system call names its file: the places of its arguments, None where it has no such argument."""

    fd: int | None = None
    path: int | None = None
    dir: int | None = None
    at: int | None = None


def _read_table() -> tuple[dict[str, dict[int, str]], dict[str, CallArguments]]:
    numbers: dict[str, dict[int, str]] = {"x86_64": {}, "aarch64": {}}
    arguments = {}
    for row in _TABLE.strip().splitlines():
        name, x86_64, aarch64, *places = row.split()
        for machine, number in (("x86_64", x86_64), ("aarch64", aarch64)):
            if number != "-":
                numbers[machine][int(number)] = name
        arguments[name] = CallArguments(**{key: int(place) for key, place in (word.split("=") for word in places)})
    return numbers, arguments


_NAMES, _ARGUMENTS = _read_table()
_NO_FILE = CallArguments()
_HERE = platform.machine()


def call_name(number: int, machine: str = _HERE) -> str:
    """The call's name on this machine, or `syscall_<number>` where the table does not know it."""
    return _NAMES.get(machine, {}).get(number) or f"syscall_{number}"


def call_arguments(name: str) -> CallArguments:
    """Which arguments of this call lead to a file; none for a call that the table does not know."""
    return _ARGUMENTS.get(name, _NO_FILE)
