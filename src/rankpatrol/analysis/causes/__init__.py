"""The registry of causes: one small file a family. The first that recognises an awaited rank speaks for it."""

from collections.abc import Callable

from rankpatrol.analysis.causes import below, blocked, children, loader, spin, stopped, storage, working
from rankpatrol.analysis.scene import Cause, Scene

Explain = Callable[[Scene, int], Cause | None]
Registry = tuple[Explain, ...]

# In order: what the kernel proves goes before what stacks suggest, work goes before blame, "blocked" takes what is left.
REGISTRY: Registry = (
    stopped.explain,
    working.explain,
    children.explain,
    loader.explain,
    storage.explain,
    below.explain,
    spin.explain,
    blocked.explain,
)
