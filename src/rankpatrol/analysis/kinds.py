"""The kinds of waiting a rank can be found in."""

from enum import StrEnum


class WaitKind(StrEnum):
    """What a rank's main thread is at. Only COLLECTIVE, POINT_TO_POINT and a blocked BACKWARD wait for other ranks."""

    COLLECTIVE = "collective"
    POINT_TO_POINT = "point_to_point"
    BACKWARD = "backward"
    DATA = "data"
    LOADING = "loading"
    CHECKPOINT = "checkpoint"
    COMPILE = "compile"
    START = "start"
    IO = "io"
    SLEEP = "sleep"
    LOCK = "lock"
    COMPUTE = "compute"
    STOPPED = "stopped"
    TRACED = "traced"
    GONE = "gone"
    UNKNOWN = "unknown"
