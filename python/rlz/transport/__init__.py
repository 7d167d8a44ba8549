"""The streams of a run: shared memory that joins its workers.

`Streams` makes them (controller) or attaches to them (workers). Each stream is a handle of `rlz._native`, which does
the work; its methods are documented in `_native.pyi`. A process may be killed at any instruction without harm to the
others; ARCHITECTURE.md says how.
"""

from rlz.errors import check_platform

check_platform()  # before anything else asks for the native module

from rlz.transport.streams import Streams  # noqa: E402

__all__ = ["Streams"]
