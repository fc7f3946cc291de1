"""The rank's environment: as it would be without us, but for RANKPATROL_RUN_DIR and what the rank is told (RANKPATROL_RESUME_FROM …)."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional

# `rankpatrol run` sets these for torchrun alone; the rank sees the value its user had, or none.
LENT = ("PYTHON_EXEC", "PET_MAX_RESTARTS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
USERS = "RANKPATROL_USER_"
# A shell (python-shim) sets these for itself, and more or fewer of them by its make.
SHELLS_OWN = ("_", "SHLVL", "PWD", "OLDPWD")


def proc_words(pid: int, file: str) -> List[str]:
    """The words of /proc/PID/cmdline or environ, each ended by a zero byte (proc(5)); none where they cannot be read."""
    try:
        with open(f"/proc/{pid}/{file}", encoding="utf-8", errors="surrogateescape") as text:
            return text.read().split("\0")
    except OSError:
        return []


def environment_of(pid: int) -> Optional[Dict[str, str]]:
    """What a process was started with (proc_pid_environ(5)), or None where that cannot be read, or was overwritten (setproctitle)."""
    words = proc_words(pid, "environ")
    return dict(word.split("=", 1) for word in words if "=" in word) or None


def rank_environment(ours: Mapping[str, str], launchers: Optional[Mapping[str, str]], told: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """What was lent is given back, what the shell added is taken out, and the rank is told what is not None."""
    environment = {name: value for name, value in ours.items() if name not in LENT}
    for name in LENT:
        users = environment.pop(USERS + name, None)
        if users is not None:
            environment[name] = users
    if launchers is not None:
        for name in SHELLS_OWN:
            environment.pop(name, None)
            if name in launchers:
                environment[name] = launchers[name]
    environment.update({name: value for name, value in told.items() if value is not None})
    return environment
