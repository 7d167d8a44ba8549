"""Whose a connection on this machine's own network is: the kernel lists the user of each socket (proc_pid_net(5))."""

import socket
import struct
from contextlib import suppress
from pathlib import Path

ESTABLISHED = "01"
PROC_NET = Path("/proc/net")


def user_of(peer: tuple[str, int], here: tuple[str, int], proc_net: Path = PROC_NET) -> int | None:
    """User who owns the other end of an IPv4 connection; None where the kernel does not know (another machine's).

    Parameters
    ----------
    peer, here : address and port of the other end, and of this one.
    """
    for table, shown in (("tcp", _address), ("tcp6", _mapped)):
        wanted = [shown(*peer), shown(*here), ESTABLISHED]
        with suppress(OSError), (proc_net / table).open() as file:
            for line in file:
                fields = line.split()
                if fields[1:4] == wanted:
                    return int(fields[7])
    return None


def _address(host: str, port: int) -> str:
    (word,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{word:08X}:{port:04X}"


def _mapped(host: str, port: int) -> str:
    """As `::ffff:127.0.0.1`, which reaches the same sockets."""
    (marker,) = struct.unpack("=I", b"\x00\x00\xff\xff")
    return f"{'0' * 16}{marker:08X}{_address(host, port)}"
