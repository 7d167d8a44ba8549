"""What every fake has in common: its end, the errors of its arguments, and that it never waits."""

from typing import Generic, NoReturn, Self, TypeVar

from rlz.errors import ClosedError, TransportError, WaitTimeoutError

T = TypeVar("T")
LAST_WORKER = 1022


class Handle(Generic[T]):
    """Holds what a stream and its ends share, until it is closed.

    Parameters
    ----------
    name : for messages.
    shared : the stream's content.
    """

    def __init__(self, name: str, shared: T) -> None:
        self._name = name
        self._shared: T | None = shared

    def _get(self) -> T:
        if self._shared is None:
            raise ClosedError(f"the {self._name} was closed")
        return self._shared

    def close(self) -> None:
        """Let go."""
        self._shared = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def no_descriptor() -> NoReturn:
    """Refuse what only shared memory has."""
    raise TransportError("a fake has no descriptor and cannot be attached to: use the object itself")


def check_worker(worker: int) -> int:
    """Return a worker id that is one."""
    return check("worker", worker, 1, LAST_WORKER)


def check(what: str, given: int, least: int, most: int) -> int:
    """Return a number that lies in its range; ValueError else."""
    if not least <= given <= most:
        raise ValueError(f"{what}: given {given}, expected {least} to {most}")
    return given


def would_wait(what: str, timeout: float | None) -> WaitTimeoutError:
    """Make the error that takes the place of a wait; ValueError for a timeout that is none."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout: given {timeout}, expected seconds >= 0, or None for no limit")
    return WaitTimeoutError(f"a fake does not wait for {what}: nobody else could end the wait")
