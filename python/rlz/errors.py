"""Every error that rlz raises on purpose. Importing this module costs nothing.

Messages say what was given, what was expected and how to fix it. The native extension raises these classes too.
"""


class RlzError(Exception):
    """Base of all rlz errors. The command line prints its message without a traceback and exits with status 1."""


class ConfigError(RlzError):
    """An option, TOML key or value that cannot be used."""


class GraphError(ConfigError):
    """A graph of workers and streams, or its placement, that cannot work; names the part."""


class UsageError(ConfigError):
    """A command line that cannot be used; `rlz` exits with status 2."""


class PlatformError(RlzError, ImportError):
    """rlz cannot run here: another operating system, or its native module is missing or cannot be loaded."""


class EnvError(RlzError):
    """An environment that cannot be made, has an unsupported space, or misbehaves."""


class PolicyError(RlzError):
    """A network or acting rule of a user's own that raises, or gives something else than actions."""


class DeviceError(RlzError):
    """A torch device that does not exist or cannot be used."""


class CheckpointError(RlzError):
    """A checkpoint or run folder that is missing, incomplete or of another problem."""


class RunFailedError(RlzError):
    """A run that was started from Python has failed; the message carries the worker's name and traceback."""


class NonFiniteError(RlzError):
    """A loss, parameter, observation or reward that is not a finite number."""


class TransportError(RlzError):
    """Base of the errors of the shared-memory transport."""


class LayoutMismatchError(TransportError):
    """Both ends of a stream do not agree on fields, shapes, capacity or ABI."""


class LeaseLostError(TransportError):
    """The caller no longer owns the lane or slot that it writes (it was declared dead and reaped)."""


class ClosedError(TransportError):
    """The stream was closed while, or before, the caller waited on it."""


class WaitTimeoutError(TransportError, TimeoutError):
    """A wait on a stream ran out of time."""


class NotServedError(TransportError, ConnectionError):
    """Nobody serves the socket that the caller wants to attach to: it is missing, or its process is dead."""


class NoAnswerError(TransportError, TimeoutError):
    """The process that serves a socket does not answer.

    Attributes
    ----------
    pid : its process id, 0 when unknown.
    timeout : seconds that the caller waited.
    """

    def __init__(self, path: object, pid: int, timeout: float) -> None:
        super().__init__(f"{path}: process {pid or 'unknown'}, which serves it, does not answer within {timeout:g} s")
        self.pid = pid
        self.timeout = timeout


class SharedMemoryError(TransportError, MemoryError):
    """The shared memory that a stream needs cannot be had."""


def check_platform() -> None:
    """Raise PlatformError, with the way out, where rlz cannot run. Loads the native module; cheap afterwards."""
    import sys
    from importlib import import_module

    if sys.platform != "linux":
        raise PlatformError(
            f"rlz runs on Linux (5.14 or newer; tried on x86-64), not on {sys.platform}. On Windows, use WSL2"
        )
    try:
        import_module("rlz._native")
    except ImportError as error:
        raise PlatformError(
            f"rlz's native module cannot be loaded: {error}. In a checkout, build it with `make setup`; elsewhere, "
            "install the wheel again, one that was made for this machine and this Python (3.11 or newer)"
        ) from error


def in_one_line(error: Exception, most: int = 300) -> str:
    """Type and message of any exception in one line of at most `most` characters of message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"
