"""Fake parameter store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlz.errors import LeaseLostError, NonFiniteError, TransportError
from rlz.transport.fakes.handle import Handle, check, check_worker, no_descriptor, would_wait
from rlz.transport.fakes.rows import NUMPY, Layout

_Parameter = tuple[str, str, tuple[int, ...]]

MOST_LEASES = 253
MOST_VERSION = (1 << 52) - 1


@dataclass
class _Store:
    layout: Layout
    before: int
    publisher: int = 0
    newest: tuple[int, int, int] | None = None
    content: bytes = b""

    @property
    def version(self) -> int:
        return 0 if self.newest is None else self.newest[0]


class ParameterStore(Handle[_Store]):
    """As `rlz.transport.ParameterStore`."""

    @staticmethod
    def create(manifest: Sequence[_Parameter], *, leases: int, run_id: int, version: int = 0) -> ParameterStore:
        """Make a store for tensors."""
        check("leases", leases, 0, MOST_LEASES)
        check("version", version, 0, MOST_VERSION)
        return ParameterStore("parameter store", _Store(Layout(manifest, align=False), version))

    @staticmethod
    def attach(control_fd: int, payload_fd: int, *, writable: bool = False) -> ParameterStore:
        """Refused."""
        no_descriptor()

    @property
    def control_fd(self) -> int:
        """Refused."""
        no_descriptor()

    @property
    def payload_fd(self) -> int:
        """Refused."""
        no_descriptor()

    @property
    def readonly_payload_fd(self) -> int:
        """Refused."""
        no_descriptor()

    @property
    def manifest(self) -> list[_Parameter]:
        """As given to `create`."""
        return [(name, dtype, shape) for name, dtype, shape, _ in self._get().layout.fields]

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""
        return self._get().layout.nbytes

    def version(self) -> int:
        """Newest version."""
        return self._get().version

    def publisher(self, *, worker: int) -> Publisher:
        """Become the publisher."""
        store = self._get()
        if store.publisher:
            raise TransportError(f"the publisher's place is owned by worker {store.publisher}")
        store.publisher = check_worker(worker)
        return Publisher(store, worker)

    def subscriber(self, *, worker: int | None = None) -> Subscriber:
        """A reading end."""
        if worker is not None:
            check_worker(worker)
        return Subscriber("subscriber", self._get())

    def reap(self, worker: int) -> None:
        """Take back the publisher's place."""
        store = self._get()
        if store.publisher == check_worker(worker):
            store.publisher = 0


class Publisher(Handle[_Store]):
    """As `rlz.transport.Publisher`."""

    def __init__(self, store: _Store, worker: int) -> None:
        super().__init__("publisher", store)
        self._worker = worker

    def publish(self, parameters: NDArray[np.uint8], *, env_steps: int, updates: int) -> int:
        """Publish a version."""
        store = self._get()
        if store.publisher != self._worker:
            raise LeaseLostError(f"worker {self._worker} no longer owns the publisher's place")
        data = _checked("parameters", parameters, store.layout.nbytes).tobytes()
        for name, dtype, shape, offset in store.layout.fields:
            tensor = np.frombuffer(data, NUMPY[dtype], int(np.prod(shape)), offset)
            finite = tensor & 0x7F80 != 0x7F80 if dtype == "bf16" else np.isfinite(tensor)
            if not finite.all():
                raise NonFiniteError(f"{name} has a value that is not finite at flat index {int(finite.argmin())}")
        version = (store.before if store.newest is None else store.version) + 1
        store.newest, store.content = (version, env_steps, updates), data
        return version

    def close(self) -> None:
        """Leave the publisher's place."""
        if self._shared is not None and self._shared.publisher == self._worker:
            self._shared.publisher = 0
        super().close()

    def __del__(self) -> None:
        self.close()


class Subscriber(Handle[_Store]):
    """As `rlz.transport.Subscriber`."""

    def version(self) -> int:
        """Newest version."""
        return self._get().version

    def read(self, into: NDArray[np.uint8]) -> tuple[int, int, int]:
        """Copy the newest version."""
        store = self._get()
        _checked("into", into, store.layout.nbytes)
        if store.newest is None:
            raise TransportError("nothing has been published yet: wait for version 1 first")
        into[:] = np.frombuffer(store.content, np.uint8)
        return store.newest

    def wait_newer(self, version: int, *, timeout: float | None) -> int:
        """Newest version, when it is newer."""
        store = self._get()
        if store.version <= version:
            raise would_wait("newer parameters", timeout)
        return store.version

    def wait_env_steps(self, env_steps: int, *, timeout: float | None) -> int:
        """Newest version, when it was published late enough."""
        store = self._get()
        if store.newest is None or store.newest[1] < env_steps:
            raise would_wait("parameters of a later env step", timeout)
        return store.version


def _checked(name: str, array: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    if not array.flags.c_contiguous or array.shape != (nbytes,):
        raise ValueError(f"{name}: expected a C-contiguous array of {nbytes} bytes, as in the manifest")
    return array
