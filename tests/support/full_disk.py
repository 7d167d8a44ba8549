"""A full disk without one."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Let the kernel refuse to write more than so many bytes into any file: what a full disk does, byte by byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
