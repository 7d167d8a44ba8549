"""Work of several threads on the streams of cards: what one leaves, the other takes when it is there.

On the CPU nothing is needed: whatever a thread has handed over is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def own_stream(device: torch.device) -> None:
    """Give this thread a stream of its own on a card, so that its work runs beside that of other threads there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def recorded(device: torch.device) -> torch.cuda.Event | None:
    """An event that is reached when the device has done what its current stream was given; None for a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


class Meeting:
    """Where the streams of two threads meet, each with current streams of its own on the same devices.

    Parameters
    ----------
    devices : of both threads.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cards = [device for device in dict.fromkeys(devices) if device.type == "cuda"]

    def leave(self) -> list[torch.cuda.Event]:
        """Called by who gives, after the work; the other thread passes it to `take`."""
        return [event for device in self._cards if (event := recorded(device)) is not None]

    def take(self, left: Sequence[torch.cuda.Event], tensors: Iterable[Tensor] = ()) -> None:
        """Have this thread's streams wait for what was left, and keep tensors until these are done with them."""
        streams = {device: torch.cuda.current_stream(device) for device in self._cards}
        for stream in streams.values():
            for event in left:
                stream.wait_event(event)
        for tensor in tensors:
            if tensor.device in streams:
                tensor.record_stream(streams[tensor.device])
