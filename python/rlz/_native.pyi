"""Typed face of the Rust extension. `rlz.transport` and `rlz.workers` are its only users.

All array arguments are C-contiguous numpy arrays, written or read in place. `timeout` is in seconds: None waits without
limit, 0 polls. Every call that may wait releases the GIL, re-checks signals at least every 100 ms and raises
`rlz.errors.WaitTimeoutError` when time runs out.

Every stream and every end of one is a context manager: leaving its block closes it. `close` may be called again; what
was closed raises `rlz.errors.ClosedError` when it is used. Ends hold the memory themselves, so they go on when their
stream is closed in this process. All refuse use in a forked child (`rlz.errors.TransportError`).

A descriptor (`fd`) belongs to its stream. `attach` duplicates the one that it is given; it raises
`rlz.errors.LayoutMismatchError` or `rlz.errors.TransportError` when that is not such a stream, ValueError for a
negative number.

`create` raises `rlz.errors.SharedMemoryError` when the memory cannot be had, ValueError for sizes that cannot be used.
`worker` is an id from 1 to 1022 (ValueError), `run_id` any number that tells streams of one run from those of another.

Arguments that do not fit raise TypeError (another kind or dtype), ValueError (shape, order, value) or KeyError (names
of fields), which name the argument or field, what was expected and what was given. An array that another thread is
filling, or that is to be filled while another reads it, is refused in the same way.
"""

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final, Self, final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = [
    "CLOSED",
    "FINISHED",
    "FLAG_FIRST",
    "FLAG_TERMINATED",
    "FLAG_TRUNCATED",
    "RUNNING",
    "STOPPING",
    "InferenceClient",
    "InferenceServer",
    "InferenceStream",
    "Limiter",
    "ParameterStore",
    "PhaseClock",
    "Policy",
    "PrioritizedSampler",
    "Publisher",
    "QueueConsumer",
    "QueueProducer",
    "ReadSegment",
    "Replay",
    "ReplaySampler",
    "ReplayTail",
    "ReplayWriter",
    "StatsBoard",
    "Subscriber",
    "TrajectoryQueue",
    "WriteSegment",
    "__version__",
    "bind_to_parent",
    "check_shared_memory",
    "dense_bf16",
    "dense_instructions",
    "dense_kept",
    "dense_peak",
    "dense_threads",
    "memory_limits",
]

__version__: Final[str]

FLAG_TERMINATED: Final[int]
FLAG_TRUNCATED: Final[int]
FLAG_FIRST: Final[int]

_Shape = int | Sequence[int]
_Field = tuple[str, DTypeLike] | tuple[str, DTypeLike, _Shape]
_Fields = Sequence[_Field] | Mapping[str, DTypeLike | tuple[DTypeLike, _Shape]] | np.dtype[np.void]
"""(name, dtype, shape) of each field, or (name, dtype) of a scalar; also {name: (dtype, shape)}, or a structured dtype.

dtype is one of f16 f32 f64 bf16 u8 i8 u16 i16 u32 i32 u64 i64 bool, or what numpy takes for one of these: "float32",
"<f4", np.float32, np.dtype("float32"), float. Little endian.
"""

_Placed = tuple[str, str, tuple[int, ...], int]

_Seed = int | Sequence[int] | np.random.SeedSequence | None
"""A number, a SeedSequence, or four 64-bit words; None: of the system's randomness."""

_Path = str | PathLike[str]

@final
class Replay:
    """Replay buffer: one lane per environment, oldest rows overwritten."""

    @staticmethod
    def create(fields: _Fields, *, buffer_size: int, lanes: int = 1, run_id: int = 0) -> Replay:
        """Make a buffer that keeps the newest `buffer_size` rows of all lanes together."""
    @staticmethod
    def attach(fd: int) -> Replay:
        """Map the buffer behind a descriptor."""
    @property
    def fd(self) -> int:
        """Its descriptor, for `attach` in another process."""
    @property
    def lanes(self) -> int:
        """Number of lanes."""
    @property
    def lane_capacity(self) -> int:
        """Slots of a lane: its equal share of `buffer_size`, and a small margin."""
    @property
    def buffer_size(self) -> int:
        """Rows that can be drawn at most."""
    @property
    def stride(self) -> int:
        """Bytes per row."""
    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
    @property
    def fields(self) -> list[_Placed]:
        """(name, dtype, shape, byte offset in the row)."""
    @property
    def dtype(self) -> np.dtype[np.void]:
        """Structured dtype of a packed row: `rows.view(replay.dtype)["obs"]`."""
    def committed(self) -> list[int]:
        """Rows ever committed, per lane."""
    def owners(self) -> list[int]:
        """Worker id that owns each lane, 0 for none."""
    def writer(self, lanes: Sequence[int], *, worker: int, n_step: int = 1) -> ReplayWriter:
        """Become the owner of lanes that nobody owns; TransportError when one is owned.

        `n_step` above 1 folds the fields `reward` and `discount` (f32 or f64 scalars of one step) over up to n steps of
        an episode: reward = r_0 + d_0 r_1 + ..., discount = d_0 ... d_(k-1), `next_obs` that of the last step.
        """
    def sampler(self, *, seed: _Seed = None) -> ReplaySampler:
        """A reader that draws; any number of them may draw, in any process."""
    def prioritized_sampler(
        self, *, seed: _Seed = None, alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6
    ) -> PrioritizedSampler:
        """Proportional prioritised replay (arXiv 1511.05952): draws with probability ~ (|TD error| + epsilon)^alpha."""
    def tail(self) -> ReplayTail:
        """A reader that follows the lanes from their first row on; any number of them may follow."""
    def reap(self, worker: int) -> int:
        """Release every lane of a worker that is proven dead; returns how many it owned."""
    def read_rows(self, lane: int, first_ticket: int, rows: NDArray[np.uint8], meta: NDArray[np.uint64]) -> int:
        """Copy rows first_ticket, first_ticket + 1, ... (1-based) of a lane into `rows` [n, stride], `meta` [n].

        Returns how many leading rows were copied; rows overwritten meanwhile or lost end the copy.
        """
    def save(self, path: _Path, *, ranges: Sequence[tuple[int, int, int]] | None = None) -> int:
        """Save rows to a `.npy` file, while writers go on; returns how many.

        `ranges` are (lane, first ticket, last ticket); None: all that the buffer holds now. Rows overwritten before
        their turn, or lost to a kill, are left out. The file appears when it is whole and on the disk; an older one is
        replaced. `numpy.load(path, mmap_mode="r")` gives the rows by field, with `rlz.ticket`, `rlz.version`, `rlz.env`
        (lane) and `rlz.flags`. Raises OSError (disk full, ...), and leaves nothing behind then.
        """
    def load(self, path: _Path | Sequence[_Path], *, worker: int, open_episodes: bool = False) -> int:
        """Append the rows of saved files (parts of one buffer, oldest first) to lanes that nobody owns; how many.

        With the same number of lanes as saved each gets its own rows back, otherwise they are dealt to the lanes in
        turn in order of age. The newest row of each saved lane is marked as truncated, unless its episode ends there or
        `open_episodes` is true: the environments go on where they were. Everything is checked before the first row is
        appended: OSError, LayoutMismatchError (both sides shown), TransportError (no such file, cut short, damaged).
        """
    def restore_rows(self, lane: int, rows: NDArray[np.uint8], meta: NDArray[np.uint64], *, worker: int) -> None:
        """Append saved rows [n, stride] with their meta words [n] to a lane without an owner (resume)."""
    def close(self) -> None:
        """Let go of the memory in this process."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class ReplayWriter:
    """Writing end of some lanes, used by one thread at a time."""

    def append(
        self,
        lane: int,
        row: Sequence[Any] | dict[str, Any] | None = None,
        *,
        version: int = 0,
        flags: int = 0,
        **fields: Any,
    ) -> None:
        """Append one row: `append(lane, obs=obs, reward=1.0)`, or a dict, or one value per field in field order.

        Values are arrays of the exact dtype, or scalars. Fields that are called as an argument is are given in a dict.
        `version`: of the parameters that chose the action; the row keeps it modulo 2^32. `flags`: FLAG_TERMINATED,
        FLAG_TRUNCATED.
        Raises TypeError/ValueError naming field, expected and got; LeaseLostError when the lane was reaped.
        """
    def append_packed(self, lane: int, row: NDArray[np.uint8], *, version: int = 0, flags: int = 0) -> None:
        """Append one row [stride] that is packed already; otherwise as `append`."""
    def append_batch(
        self,
        lanes: Sequence[int],
        columns: Sequence[NDArray[Any]] | dict[str, NDArray[Any]] | None = None,
        *,
        version: int = 0,
        flags: Sequence[int] | None = None,
        **fields: NDArray[Any],
    ) -> None:
        """Append one row to each of `lanes`, in order: for a vector of environments in one call.

        One array [len(lanes), *shape] of the exact dtype per field: by name, in a dict, or in field order. `flags` is
        one number per row.
        Raises as `append`; nothing is appended unless all columns fit.
        """
    @property
    def pending(self) -> int:
        """Steps whose rows are not written yet (open n-step windows), over all lanes; a kill loses them."""
    def flush(self, lane: int | None = None) -> None:
        """Write what is pending as if the episode had been truncated after its last step."""
    def open_windows(self, lane: int) -> bytes:
        """State of a lane's open windows, for a checkpoint; empty without any."""
    def restore_open_windows(self, lane: int, state: bytes) -> None:
        """Go on with windows from `open_windows` of a writer with the same rows and n_step."""
    def close(self) -> None:
        """Flush, then give the lanes back (owner 0)."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class ReplaySampler:
    """Draws rows uniformly, from a random stream of its own."""

    @overload
    def sample(
        self,
        rows: int,
        *,
        meta: NDArray[np.uint64] | None = None,
        ids: NDArray[np.uint64] | None = None,
        threads: int = 1,
    ) -> dict[str, NDArray[Any]]: ...
    @overload
    def sample(
        self,
        rows: NDArray[np.uint8],
        *,
        meta: NDArray[np.uint64] | None = None,
        ids: NDArray[np.uint64] | None = None,
        threads: int = 1,
    ) -> None:
        """Draw rows uniformly over the newest `buffer_size` rows of all lanes.

        `sample(batch)` gives new arrays [batch, *shape] by field name: views of one array of packed rows, so not
        contiguous. With an array it draws len(rows) packed rows into `rows` [batch, stride], without an allocation.
        `meta` [batch]: (version mod 2^32) << 32 | env slot << 16 | flags. `ids` [batch, 3]: lane, slot, ticket.
        Raises TransportError when the buffer is empty.
        """
    @property
    def available(self) -> int:
        """Rows that can be drawn now."""
    @property
    def redraws(self) -> int:
        """Draws that were repeated because a writer had got there first, in total."""
    @property
    def state(self) -> bytes:
        """State of the random stream, for a checkpoint; settable."""
    @state.setter
    def state(self, value: bytes) -> None: ...
    def close(self) -> None:
        """Let go of the buffer."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class PrioritizedSampler:
    """Draws rows in proportion to their priorities, which live in this object alone."""

    @overload
    def sample(
        self,
        rows: int,
        *,
        ids: NDArray[np.uint64] | None = None,
        weights: NDArray[np.float32] | None = None,
        meta: NDArray[np.uint64] | None = None,
        threads: int = 1,
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint64], NDArray[np.float32]]: ...
    @overload
    def sample(
        self,
        rows: NDArray[np.uint8],
        *,
        ids: NDArray[np.uint64],
        weights: NDArray[np.float32],
        meta: NDArray[np.uint64] | None = None,
        threads: int = 1,
    ) -> None:
        """Draw rows; `weights` [batch] gets importance weights, the largest of the batch being 1.

        `sample(batch)` gives (fields by name, ids, weights), new arrays where none are given. Keep `ids` [batch, 3]
        (lane, slot, ticket) for `update_priorities`. Otherwise as `ReplaySampler.sample`.
        """
    def update_priorities(self, ids: NDArray[np.uint64], errors: NDArray[np.float32]) -> int:
        """Set priorities from TD errors [batch] (the sign does not matter); returns how many rows were gone already."""
    @property
    def beta(self) -> float:
        """Exponent of the importance weights, 0 to 1; settable."""
    @beta.setter
    def beta(self, value: float) -> None: ...
    @property
    def largest(self) -> float:
        """Largest priority so far, before the exponent; new rows get it (1 at first)."""
    @property
    def stale(self) -> int:
        """Updates that came too late, in total."""
    @property
    def available(self) -> int:
        """Rows that can be drawn now."""
    @property
    def redraws(self) -> int:
        """Draws that were repeated because a writer had got there first, in total."""
    @property
    def state(self) -> bytes:
        """State of the random stream, for a checkpoint; settable."""
    @state.setter
    def state(self, value: bytes) -> None: ...
    def weights(self, lane: int) -> tuple[int, int, NDArray[np.float64]]:
        """First ticket, its position, and priority^alpha of the lane's rows from there on.

        As of the last draw or update. Positions go round, modulo the lane's capacity. Draws depend on them: give them
        back for the same draws.
        """
    def restore_weights(
        self, lane: int, first: int, position: int, weights: NDArray[np.float64], largest: float
    ) -> int:
        """Take back saved weights of rows `first`, `first` + 1, ...; returns how many of them are in the window."""
    def close(self) -> None:
        """Let go of the buffer and the priorities."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class ReplayTail:
    """Follows the rows of every lane in order."""

    def read(self, lane: int, rows: NDArray[np.uint8], meta: NDArray[np.uint64], tickets: NDArray[np.uint64]) -> int:
        """Copy a lane's next rows into `rows` [n, stride], `meta` [n], `tickets` [n] (ascending); returns how many.

        Never waits. A gap in the tickets is a row that was overwritten before it was read, or lost with its writer.
        """
    def seek(self, lane: int, ticket: int) -> None:
        """Go on from a ticket (1 or later)."""
    @property
    def cursors(self) -> list[int]:
        """Next ticket of each lane."""
    @property
    def lapped(self) -> int:
        """Rows skipped because the writers were a whole lane ahead."""
    @property
    def lost(self) -> int:
        """Rows skipped because a writer died while overwriting them."""
    def close(self) -> None:
        """Let go of the buffer."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class InferenceStream:
    """Requests of samplers, answered by a server: a row in each direction for every lane.

    A lane has one live client. A server takes whatever is there, so batches form by themselves.
    """

    @staticmethod
    def create(request: _Fields, answer: _Fields, *, lanes: int, run_id: int = 0) -> InferenceStream:
        """`lanes` from 1 to 65,535. Names differ over both rows."""
    @staticmethod
    def attach(fd: int) -> InferenceStream:
        """Map the stream behind a descriptor."""
    @property
    def fd(self) -> int:
        """Its descriptor, for `attach` in another process."""
    @property
    def lanes(self) -> int:
        """Number of lanes."""
    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
    @property
    def request(self) -> list[_Placed]:
        """(name, dtype, shape, byte offset in the row) of a request."""
    @property
    def answer(self) -> list[_Placed]:
        """(name, dtype, shape, byte offset in the row) of an answer."""
    def client(self, groups: Sequence[Sequence[int]], *, worker: int, timeout: float | None = None) -> InferenceClient:
        """The asking end for groups of lanes, used by one thread.

        Waits for servers that still have requests of a dead client of these lanes. TransportError for a lane that a
        live client has.
        """
    def server(self, *, worker: int) -> InferenceServer:
        """An answering end, used by one thread. TransportError while the id has one."""
    def reap(self, worker: int) -> tuple[int, int]:
        """Take back what a worker, proven dead, held: (its lanes, requests that it had taken and another will answer).

        A lane whose request a live server has is free when that has answered it: the late answer goes to nobody.
        """
    def occupancy(self) -> dict[str, int]:
        """Lanes by state: idle, asked, taken, orphaned (taken, the client is gone), answered (no new request yet)."""
    @property
    def missed_wakeups(self) -> int:
        """Waits that found something only after a slice ran out; 0 unless somebody was killed."""
    def close(self) -> None:
        """Let go of the memory in this process."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class InferenceClient:
    """Asking end of an inference stream. Closing it gives its lanes back."""

    def ask(
        self,
        group: int,
        fields: Mapping[str, NDArray[Any]],
        *,
        notes: NDArray[np.uint64] | None = None,
        which: Sequence[int] | None = None,
    ) -> None:
        """Post requests for a group; never waits.

        Parameters
        ----------
        group : number of the group, which waits for no answer now (ValueError).
        fields : [lanes of the group, *shape] of every field of a request.
        notes : [lanes of the group], a word of the caller's own beside each request.
        which : numbers of lanes in the group, rising; None: all.

        LeaseLostError when this end was reaped.
        """
    def wait(self, *, timeout: float | None = None) -> int:
        """Wait for a group whose every request was answered: the one first that has asked first.

        ValueError when no group has asked, LeaseLostError when this end was reaped.
        """
    def take(self, group: int, into: Mapping[str, NDArray[Any]], *, notes: NDArray[np.uint64] | None = None) -> int:
        """Take the answers of a group that `wait` gave; how many. The group may ask again then.

        `into`: [lanes of the group, *shape] of the fields that are wanted; `notes`: [lanes of the group], the server's
        word beside each answer. Rows of lanes that did not ask stay as they are.
        """
    def close(self) -> None:
        """Give the lanes back; what was asked goes with them."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class InferenceServer:
    """Answering end of an inference stream. Closing it gives back what it has not answered."""

    def take(
        self,
        into: Mapping[str, NDArray[Any]],
        *,
        timeout: float | None = None,
        linger: float = 0.0,
        notes: NDArray[np.uint64] | None = None,
        lanes: NDArray[np.int64] | None = None,
    ) -> int:
        """Take every request that is there; waits for the first alone. How many.

        Parameters
        ----------
        into : [most, *shape] of the fields that are wanted; requests fill them from the front.
        linger : seconds that the batch waits for more after its first request, unless it is full.
        notes, lanes : [most], the clients' words beside the requests, and the lanes that they are for.

        ValueError while a batch is not answered, LeaseLostError when this end was reaped.
        """
    def answer(self, fields: Mapping[str, NDArray[Any]], *, note: int = 0) -> int:
        """Answer the batch that was taken; how many of the answers somebody waits for.

        `fields`: [taken, *shape] of every field of an answer, in the order of the batch. `note`: a word of the
        caller's own beside each. LeaseLostError when this end was reaped.
        """
    def close(self) -> None:
        """Leave what was taken to another server."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class TrajectoryQueue:
    """Bounded queue of fixed-size segments: many producers, many consumers, zero copy."""

    @staticmethod
    def create(
        fields: _Fields,
        *,
        slots: int,
        run_id: int = 0,
        when_full: str = "block",
        redelivery: str = "at_least_once",
        max_deliveries: int = 3,
    ) -> TrajectoryQueue:
        """`when_full`: block, drop_new or drop_oldest. `redelivery`: at_least_once or at_most_once.

        A segment whose consumer was killed is delivered again until it was delivered `max_deliveries` times (1 to 15).
        """
    @staticmethod
    def attach(fd: int) -> TrajectoryQueue:
        """Map the queue behind a descriptor."""
    @property
    def fd(self) -> int:
        """Its descriptor, for `attach` in another process."""
    @property
    def slots(self) -> int:
        """Segments that it holds, those being written and read included."""
    @property
    def when_full(self) -> str:
        """As given to `create`."""
    @property
    def redelivery(self) -> str:
        """As given to `create`."""
    @property
    def max_deliveries(self) -> int:
        """As given to `create`."""
    @property
    def stride(self) -> int:
        """Bytes per segment."""
    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
    @property
    def fields(self) -> list[_Placed]:
        """(name, dtype, shape, byte offset in the segment)."""
    @property
    def dtype(self) -> np.dtype[np.void]:
        """Structured dtype of a packed segment."""
    def producer(self, *, worker: int) -> QueueProducer:
        """A writing end, used by one thread.

        One per worker id: TransportError while the id has another producer (or slots of one), or a consumer in another
        process. Reaping would take the slots of both.
        """
    def consumer(self, *, worker: int) -> QueueConsumer:
        """A reading end, used by one thread. One per worker id, as `producer`."""
    def reap(self, worker: int) -> tuple[int, int, int]:
        """Take back what a worker, proven dead, held: slots (freed, to be delivered again, dropped)."""
    def finish(self) -> None:
        """No more segments: who asks for a slot gets ClosedError from now on, consumers when nothing can come any more.

        A segment that is being written is still committed and delivered, and one whose consumer dies is delivered
        again: consumers wait for it (not those that hold a segment themselves: they would wait for each other).
        """
    @property
    def finished(self) -> bool:
        """Whether `finish` was called, by any process."""
    def occupancy(self) -> dict[str, int]:
        """Slots by state: free, writing, full, reading."""
    def counters(self) -> dict[str, int]:
        """Counts since the creation.

        committed, consumed, dropped_new, dropped_oldest, redelivered, dropped_deliveries, dropped_at_most_once,
        reclaimed, copied (arrays outlived their segment), missed_wakeups.
        """
    @property
    def oldest_age(self) -> float | None:
        """Seconds since the commit of the oldest segment that waits, None when there is none."""
    def close(self) -> None:
        """Let go of the memory in this process. Arrays of segments stay valid, in forked children, too."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class QueueProducer:
    """Writing end of a queue."""

    def acquire(self, *, timeout: float | None = None) -> WriteSegment | None:
        """Take a slot to fill; its content is whatever was there before. None: full, and new segments are dropped.

        ClosedError when the queue is finished, LeaseLostError when this end was reaped.
        """
    def put(
        self, segment: dict[str, Any] | None = None, /, *, timeout: float | None = None, note: int = 0, **fields: Any
    ) -> int | None:
        """Copy a segment in (one array or number per field) and commit it; its ticket, or None when it was dropped.

        Fields are given by name or in a dict: `put({"obs.image": image})`, also for those called `timeout` or `note`.
        KeyError for wrong names, TypeError for a wrong dtype or an array that is not C-contiguous, ValueError for a
        wrong shape or a number that does not fit; ClosedError when the queue is finished. Nothing is committed then.
        """
    def close(self) -> None:
        """Let go of the queue. Segments that were acquired stay valid."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class QueueConsumer:
    """Reading end of a queue."""

    def pop(self, *, timeout: float | None = None) -> ReadSegment:
        """Take the oldest segment. ClosedError when the queue is finished and nothing can come any more."""
    def pop_batch(
        self,
        into: dict[str, NDArray[Any]],
        *,
        timeout: float | None = None,
        tickets: NDArray[np.uint64] | None = None,
        notes: NDArray[np.uint64] | None = None,
    ) -> int:
        """Copy the next segments into `into`, an array [batch, *shape] for every field that is wanted; how many.

        Waits until the batch is full, but returns fewer when time is over, or the queue finished, after the first.
        `tickets`, `notes` [batch] get those of the segments. The arrays may be pinned memory. What a call took that a
        signal's exception ended comes with the next `pop` or `pop_batch`.
        Segments count as consumed when they were copied: `at_least_once` does not cover what is done with them then.
        KeyError for an unknown field, ValueError for an array that does not fit; ClosedError as in `pop`.
        """
    def fileno(self) -> int:
        """A descriptor that is readable while there may be something to pop, for `select` and asyncio.

        Pop with `timeout=0` then; it is readable until a pop has raised WaitTimeoutError, and at the end of the queue.
        The first call starts a thread that waits. The descriptor belongs to the consumer.
        """
    def close(self) -> None:
        """Let go of the queue. Segments that were popped stay valid."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class WriteSegment:
    """A slot being filled. Leaving its `with` block commits it, an exception aborts it.

    An array that outlives the block is legal: its memory becomes private, at the cost of a copy (counted as `copied`).
    """

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        """A field as a writable array; bf16 as the uint16 of its bits. KeyError when there is none of that name."""
    def __setitem__(self, name: str, value: Any, /) -> None:
        """Write a field, as numpy assigns: a number, or an array of the same kind of dtype that can be broadcast."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object, /) -> bool: ...
    def keys(self) -> list[str]:
        """Names of the fields."""
    def values(self) -> list[NDArray[Any]]:
        """The fields as arrays."""
    def items(self) -> list[tuple[str, NDArray[Any]]]:
        """Names and arrays."""
    @property
    def note(self) -> int:
        """A 64-bit word of the producer's own, for instance a parameter version; settable, 0 at first."""
    @note.setter
    def note(self, value: int) -> None: ...
    def commit(self) -> int:
        """Hand it to the consumers; its ticket. Never waits."""
    def abort(self) -> None:
        """Give the slot back unused."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class ReadSegment:
    """A segment being read. Leaving its `with` block gives the slot back.

    An array that outlives the block is legal: its memory becomes private, at the cost of a copy (counted as `copied`).
    """

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        """A field as a read-only array; bf16 as the uint16 of its bits. KeyError when there is none of that name."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object, /) -> bool: ...
    def keys(self) -> list[str]:
        """Names of the fields."""
    def values(self) -> list[NDArray[Any]]:
        """The fields as arrays."""
    def items(self) -> list[tuple[str, NDArray[Any]]]:
        """Names and arrays."""
    @property
    def ticket(self) -> int:
        """Number of its commit, from 1; those of one producer ascend."""
    @property
    def redeliveries(self) -> int:
        """Earlier deliveries, each ended by the death of its consumer."""
    @property
    def note(self) -> int:
        """The producer's word, 0 when it gave none."""
    @property
    def age(self) -> float:
        """Seconds since its commit."""
    def release(self) -> None:
        """Give the slot back."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

RUNNING: Final[int]
STOPPING: Final[int]
FINISHED: Final[int]
CLOSED: Final[int]

@final
class Limiter:
    """Counts env steps and updates, holds their ratio, and hands out the global step index of every env step.

    A step index belongs to a lane, not to a process: a lane whose sampler died hands an index that was taken but not
    completed to its successor, so none is lost and `env_steps == total_timesteps` holds at the end.
    """

    @staticmethod
    def create(
        *,
        lanes: int,
        total_timesteps: int,
        learning_starts: int,
        ratio: tuple[int, int] | None,
        slack: float,
        run_id: int = 0,
        env_steps: int = 0,
        updates: int = 0,
    ) -> Limiter:
        """`ratio` = (numerator, denominator) of updates per env step, None = free. `slack` in updates.

        `env_steps`, `updates`: counts of an earlier run to go on from.
        """
    @staticmethod
    def attach(fd: int) -> Limiter:
        """Map the limiter behind a descriptor. One that was opened read-only gives counts to read, and no more."""
    @property
    def fd(self) -> int:
        """Its descriptor, for `attach` in another process."""
    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
    @property
    def state(self) -> int:
        """RUNNING, STOPPING (no more grants), FINISHED (the learner is done) or CLOSED."""
    @property
    def total_timesteps(self) -> int:
        """Env steps after which the run is over."""
    @property
    def learning_starts(self) -> int:
        """Env steps at which the replay ratio's line begins."""
    @property
    def env_steps(self) -> int:
        """Completed env steps."""
    @property
    def granted(self) -> int:
        """Step indices handed out."""
    @property
    def updates(self) -> int:
        """Completed updates."""
    @property
    def target_updates(self) -> int | None:
        """floor(ratio * max(0, total_timesteps - learning_starts)); None when free."""
    @property
    def missed_wakeups(self) -> int:
        """Waits that a wake should have ended and a time-out of 0.1 s did; 0 unless a process was killed."""
    @property
    def step_limit(self) -> int:
        """First step index that is not granted, whatever the ratio allows; 2**64 - 1 at first."""
    def set_step_limit(self, index: int) -> None:
        """Grant step indices below `index` only; samplers wait for the others, as they do for the ratio."""
    def lane_steps(self) -> list[int]:
        """Completed env steps of each lane since the creation."""
    def acquire_steps(
        self, lanes: Sequence[int], tickets: NDArray[np.int64], *, worker: int, timeout: float | None = None
    ) -> int:
        """Take the next step index for each given lane, as many as the ratio allows now; waits while none can be had.

        tickets[i] = global 0-based step index, or -1 where none was granted. Returns how many were granted, 0 when the
        run has no more steps for the caller (total reached, or not RUNNING). A lane that still holds an uncompleted
        index gets that one again, active or not. Where the ratio allows fewer steps than there are lanes that want one,
        lanes take turns: those of this call, and those of all workers that wait.
        """
    def complete_step(self, lane: int) -> None:
        """The lane's transition is in the replay buffer: count the env step."""
    def acquire_updates(self, most: int, *, worker: int, timeout: float | None = None) -> int:
        """Leave for 1..most updates; waits while the ratio allows none. 0: no more updates (finished or stopping).

        One learner at a time: TransportError while another handle or worker has its place (until closed or reaped).
        """
    def complete_updates(self, count: int) -> None:
        """Count updates that are done: granted ones, or any of a run without a ratio."""
    def stop(self) -> None:
        """RUNNING -> STOPPING; wakes everyone."""
    def finish(self) -> None:
        """-> FINISHED; called by the learner after its last publication."""
    def cancel(self) -> None:
        """-> CLOSED: every present and later wait of any process raises ClosedError."""
    def reap(self, worker: int) -> None:
        """Forget a worker that is proven dead. Its open step indices stay with their lanes."""
    def close(self) -> None:
        """Let go of the memory in this process. Others do not notice; `cancel` is what ends their waits."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

_Parameter = tuple[str, str, tuple[int, ...]]

@final
class ParameterStore:
    """Newest-wins network parameters: one publisher, many subscribers."""

    @staticmethod
    def create(manifest: _Fields, *, leases: int = 1, run_id: int = 0, version: int = 0) -> ParameterStore:
        """Make a store for tensors (name, dtype, shape).

        `leases`: subscribers that cannot starve; each costs the memory of one version. `version`: of an earlier store
        to go on from; the first publication gets the number after it.
        """
    @staticmethod
    def attach(control_fd: int, payload_fd: int, *, writable: bool = False) -> ParameterStore:
        """Map the store behind its two descriptors. `writable`: for a publisher.

        A control descriptor that was opened read-only is enough for subscribers that copy.
        """
    @property
    def control_fd(self) -> int:
        """Descriptor of versions and leases, for `attach` in another process."""
    @property
    def payload_fd(self) -> int:
        """Descriptor of the tensors, for a publisher in another process."""
    @property
    def readonly_payload_fd(self) -> int:
        """Descriptor of the tensors for a subscriber in another process: it can only be read."""
    @property
    def writable(self) -> bool:
        """Whether a publisher can be made here."""
    @property
    def manifest(self) -> list[_Parameter]:
        """As given to `create`."""
    @property
    def nbytes(self) -> int:
        """Bytes of one version (the tensors of the manifest, packed back to back without padding)."""
    def version(self) -> int:
        """Newest version, 0 before the first publication."""
    def publisher(self, *, worker: int) -> Publisher:
        """Become the publisher; TransportError while there is another, or when the store was attached read-only."""
    def subscriber(self, *, worker: int | None = None) -> Subscriber:
        """A reading end; one per worker id, used by one thread.

        None is for a process whose death nobody would report: it leaves no trace in the store, always copies, and its
        waits look every 5 ms instead of being woken. So does any subscriber of a store that was attached read-only.
        """
    def reap(self, worker: int) -> None:
        """Take back the leases, or the publisher's place, of a worker that is proven dead."""
    def close(self) -> None:
        """Let go of the memory in this process."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Publisher:
    """Writing end of a parameter store."""

    def publish(self, parameters: NDArray[np.uint8], *, env_steps: int = 0, updates: int = 0) -> int:
        """Publish `nbytes` bytes, the tensors of the manifest back to back; returns the version. Never waits.

        `env_steps`, `updates`: completed so far, for subscribers. NonFiniteError when a float is not finite (nothing is
        published), LeaseLostError when the publisher was reaped.
        """
    def close(self) -> None:
        """Leave the publisher's place to a successor (also done when the object goes)."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Subscriber:
    """Reading end of a parameter store."""

    def version(self) -> int:
        """Newest version, 0 before the first publication."""
    def read(self, into: NDArray[np.uint8]) -> tuple[int, int, int]:
        """Copy the newest version into `into` [nbytes]; returns (version, env_steps, updates) of its publication.

        Never waits for the publisher. TransportError before the first publication.
        """
    def wait_newer(self, version: int, *, timeout: float | None = None) -> int:
        """Wait for a version above `version`; returns the newest."""
    def wait_env_steps(self, env_steps: int, *, timeout: float | None = None) -> int:
        """Wait for a version published at or after `env_steps`; returns that version number."""
    def close(self) -> None:
        """Give the lease cell back (also done when the object goes)."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class StatsBoard:
    """Fixed numbers per worker slot, and a ring of recent events per slot; read without a message (float64)."""

    @staticmethod
    def create(
        *, slots: int, names: Sequence[str], event_width: int = 1, event_capacity: int = 1, run_id: int = 0
    ) -> StatsBoard:
        """Make a board of zeros: `slots` rows of `names`, and the newest `event_capacity` events of each row."""
    @staticmethod
    def attach(fd: int) -> StatsBoard:
        """Map the board behind a descriptor. One that was opened read-only gives a board that can only be read."""
    @property
    def fd(self) -> int:
        """Its descriptor, for `attach` in another process."""
    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
    @property
    def names(self) -> list[str]:
        """As given to `create`."""
    @property
    def slots(self) -> int:
        """Number of rows."""
    def set(self, slot: int, index: int, value: float) -> None:
        """Set number `index` of a row. Each row has one writer."""
    def add(self, slot: int, index: int, value: float) -> None:
        """Add to number `index` of a row."""
    def read(self) -> NDArray[np.float64]:
        """Copy all numbers: [slots, len(names)]."""
    def push_event(self, slot: int, values: Sequence[float]) -> None:
        """Append an event of exactly `event_width` numbers."""
    def events(self, slot: int, since: int) -> tuple[int, NDArray[np.float64]]:
        """Events number since, since + 1, ... (0-based): (number of the next one, array [n, event_width])."""
    def close(self) -> None:
        """Let go of the memory in this process."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class PhaseClock:
    """Where a worker's time goes. A phase is a number of its row on the stats board: a counter of seconds."""

    def __new__(cls, stats: StatsBoard, slot: int, trace: StatsBoard | None = None) -> PhaseClock:
        """A clock for the worker of a slot; it is in no phase.

        `trace`: a board with the values "phase" (the open one, -1: none) and "since", and events of three numbers:
        phase, begin and end of each that has ended (`time.monotonic()`).
        """
    def enter(self, phase: int) -> None:
        """End the open phase, if any, and begin another."""
    def leave(self) -> None:
        """End the open phase, if any."""

@final
class Policy:
    """The networks a sampler runs; agree with torch to 1e-5."""

    def __new__(
        cls,
        *,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        activation: str,
        layer_norm: bool,
        head: str,
        seed: int | Sequence[int] | np.random.SeedSequence,
        exploration_noise: float = 0.0,
        choices: Sequence[int] = ...,
        epsilon: Mapping[str, float] | None = None,
        value: str = "none",
        obs_clip: float | None = None,
    ) -> Policy:
        """`activation`: relu, tanh, silu, elu.

        `head`: squashed_gaussian (mean and log_std, log_std in [-20, 2]); deterministic (tanh; exploration adds
        Gaussian noise of standard deviation `exploration_noise` and clips to [-1, 1]); gaussian (means; log_std is a
        parameter; not bounded); categorical (logits of the `choices` of each component, side by side);
        epsilon_greedy (values of them; `epsilon`: start, end, over, spread as in `rlz.EpsilonGreedy`).
        `value`: none; shared (the last output of the actor); separate (a network of its own, `critic`).
        `obs_clip`: observations x become (x - obs.mean) * obs.scale, clipped to so many; None: they stay.
        """
    @property
    def manifest(self) -> list[_Parameter]:
        """All f32, weights [in, out]: (actor.log_std,) actor.0.weight, actor.0.bias, (actor.0.norm.weight,
        actor.0.norm.bias), ..., actor.head.weight [in, outputs], actor.head.bias, and the same of critic where values
        are separate. Outputs of squashed_gaussian: action_dim means, then as many log_std; of deterministic and
        gaussian: action_dim; else the sum of choices. One more where values are shared. With `obs_clip` obs.mean and
        obs.scale [obs_dim] at the end.
        """
    @property
    def nbytes(self) -> int:
        """Bytes of its parameters."""
    def load(self, parameters: NDArray[np.uint8]) -> None:
        """Take parameters [nbytes], the tensors of the manifest back to back."""
    def refresh(self, subscriber: Subscriber) -> int:
        """Read the newest version when it moved; returns the version in use (0: none yet)."""
    @property
    def version(self) -> int:
        """Version in use, 0 before the first `refresh`."""
    def act(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        *,
        progress: float = 1.0,
        deterministic: bool = False,
        ranks: NDArray[np.float32] | None = None,
        extras: dict[str, NDArray[Any]] | None = None,
    ) -> None:
        """Map obs [m, obs_dim] of any real dtype to actions [m, action_dim]: float32, or int64 for choices.

        `extras`: "log_prob" and "value", float32 [m], are filled; ValueError for what this policy has not. `progress`
        and `ranks` (float32 [m], 0 to 1) are for epsilon_greedy. NonFiniteError where outputs make no choice.
        """
    def uniform(self, actions: NDArray[Any]) -> None:
        """Warm-up: uniform actions [m, action_dim] in [-1, 1], or choices, from the policy's own random stream."""
    @property
    def state(self) -> bytes:
        """State of the random stream, for a checkpoint; settable."""
    @state.setter
    def state(self, value: bytes) -> None: ...

def bind_to_parent(parent_pid: int) -> None:
    """Kill this process group when the parent dies, or at once when it is already gone.

    The caller leads its own process group. A native watcher (pidfd of the parent) and PR_SET_PDEATHSIG both act, so
    it works while Python is busy in C code.
    """

def check_shared_memory(nbytes: int) -> None:
    """SharedMemoryError when a memfd of that size cannot be populated."""

def memory_limits(root: _Path) -> list[tuple[int, str]]:
    """Bytes that may still be taken under every memory limit of this process, and its name; the tightest first.

    Parameters
    ----------
    root : where /proc and the cgroup mounts are looked for.
    """

def dense_threads(threads: int) -> None:
    """Threads of the dense layers from now on (1 to 1024); 1 at first."""

def dense_kept(shape: list[int]) -> int:
    """Numbers that a stack of networks keeps for its gradient, for each row; `shape` as in `rlz.networks.dense`."""

def dense_instructions() -> str:
    """Instruction set that the dense layers use: AVX-512 (BF16), AVX-512, AVX2 or portable."""

def dense_bf16() -> bool:
    """The processor has products of bf16, which stacks of networks in bf16 need."""

def dense_peak(bf16: bool = False) -> float:
    """Multiplications and additions a second of one core that does nothing else with these instructions.

    `bf16`: of factors in bf16; ValueError where there are no such instructions.
    """
