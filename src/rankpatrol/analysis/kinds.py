"""The kinds of waiting a rank can be found in."""

from enum import StrEnum


class WaitKind(StrEnum):
    """What a rank's main thread is at. Only COLLECTIVE, POINT_TO_POINT, DEVICE and a blocked BACKWARD wait for other ranks.

    DEVICE is a wait for the GPU's stream, in which the kernels of collectives wait for their peers. STORE is a wait at the rendezvous's
    store, TEARDOWN the end of the program, DOWNLOAD a wait for a server outside of the job.
    """

    COLLECTIVE = "collective"
    POINT_TO_POINT = "point_to_point"
    BACKWARD = "backward"
    DATA = "data"
    LOADING = "loading"
    CHECKPOINT = "checkpoint"
    COMPILE = "compile"
    START = "start"
    STORE = "store"
    DEVICE = "device"
    DOWNLOAD = "download"
    TEARDOWN = "teardown"
    IO = "io"
    SLEEP = "sleep"
    LOCK = "lock"
    COMPUTE = "compute"
    STOPPED = "stopped"
    TRACED = "traced"
    GONE = "gone"
    UNKNOWN = "unknown"
