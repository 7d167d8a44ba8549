"""Where numbers go: files, TensorBoard, Weights & Biases. Each sink takes the same three kinds of record."""

import contextlib
import csv
import io
import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from rlz.tracking.growing_file import GrowingFile, NotWrittenError
from rlz.transport.stats import EVENT_WIDTH, at_end_names


@dataclass(frozen=True)
class Evaluation:
    """One finished evaluation: the version it scored, when that version was published, and what it got.

    Attributes
    ----------
    published_s : seconds that the run had trained when the version was there; None in files of an older rlz.
    evaluation_s : seconds that the evaluation took.
    """

    env_steps: int
    updates: int
    version: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    length_std: float
    episodes: int
    published_s: float | None
    evaluation_s: float
    best: bool
    at_end: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_event(cls, event: Any, log_info: Sequence[str] = ()) -> "Evaluation":
        """From an evaluator's event: the fields of `_EVENT`, then means of the last infos, of those that are logged."""
        version, env_steps, updates, mean, std, low, high, length, length_std, episodes, took, best, published = map(
            float, event[:EVENT_WIDTH]
        )
        at_end = zip(at_end_names(log_info), map(float, event[EVENT_WIDTH:]), strict=False)
        return cls(
            env_steps=int(env_steps),
            updates=int(updates),
            version=int(version),
            return_mean=mean,
            return_std=std,
            return_min=low,
            return_max=high,
            length_mean=length,
            length_std=length_std,
            episodes=int(episodes),
            published_s=None if math.isnan(published) else published,
            evaluation_s=took,
            best=best > 0,
            at_end={name: value for name, value in at_end if not math.isnan(value)},
        )

    def event(self, log_info: Sequence[str] = ()) -> tuple[float, ...]:
        """Give the event that it came from."""
        at_end = (self.at_end.get(name, math.nan) for name in at_end_names(log_info))
        values = (getattr(self, name) for name in _EVENT)
        return *(math.nan if value is None else float(value) for value in values), *at_end

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> "Evaluation":
        """From a line of evaluations.csv by column; raises ValueError or KeyError for one that is broken."""
        row = {_OLD_NAMES.get(name, name): value for name, value in row.items()}
        at_end = {name: float(value) for name, value in row.items() if name not in _EVENT and value}
        known = {"published_s": "nan"} | {name: value for name, value in row.items() if value}
        return replace(cls.from_event([known[name] for name in _EVENT]), at_end=at_end)

    def row(self) -> dict[str, Any]:
        """Its line of evaluations.csv by column."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "at_end"}
        return {**values, "best": int(self.best), **self.at_end}

    def scalars(self) -> dict[str, float]:
        """Its numbers by tag (docs/metrics.md)."""
        return {
            "eval/return_mean": self.return_mean,
            "eval/return_std": self.return_std,
            "eval/length_mean": self.length_mean,
            "eval/version": self.version,
            **{f"eval/{name}": value for name, value in self.at_end.items()},
        }


_EVENT = (
    *("version", "env_steps", "updates", "return_mean", "return_std", "return_min", "return_max"),
    *("length_mean", "length_std", "episodes", "evaluation_s", "best", "published_s"),
)
"""Fields of an evaluation in the order of its event."""

_OLD_NAMES = {"wall_s": "evaluation_s"}
"""Columns as an older rlz called them."""


class Sink(Protocol):
    """Receives records of a run. `step` is the number of env steps.

    May raise: NotWrittenError, while records are held that will be written before the next one (every call tries that
    again); after any other error the tracker drops the sink.
    """

    def log(self, step: int, wall_s: float, updates: int, scalars: Mapping[str, float]) -> None:
        """One line of the log, every `log_every` seconds."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """One evaluation."""

    def note(self, text: str) -> None:
        """One event of the run in words."""

    def close(self) -> None:
        """Write out what is held back. Called once."""


class FileSink:
    """A file that grows. With a record of another kind it tries again to write what the disk has refused."""

    _file: GrowingFile

    def log(self, step: int, wall_s: float, updates: int, scalars: Mapping[str, float]) -> None:
        """See `Sink`."""
        self._file.flush()

    def evaluation(self, evaluation: Evaluation) -> None:
        """See `Sink`."""
        self._file.flush()

    def note(self, text: str) -> None:
        """See `Sink`."""
        self._file.flush()

    def close(self) -> None:
        """See `Sink`."""
        self._file.close()


class MetricsFile(FileSink):
    """metrics.jsonl: one flat object per log line, so that pandas reads tags as columns. Lines are whole or absent."""

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path, lines=True)

    def log(self, step: int, wall_s: float, updates: int, scalars: Mapping[str, float]) -> None:
        """Append one line and hand it to the kernel."""
        head = {"time": round(time.time(), 3), "wall_s": round(wall_s, 3), "env_steps": step, "updates": updates}
        line = json.dumps(head | {tag: _number(value) for tag, value in scalars.items()}) + "\n"
        self._file.write(line.encode())


class EvaluationsFile(FileSink):
    """evaluations.csv: one line per evaluation; a resumed run goes on below the old lines."""

    def __init__(self, path: Path, log_info: Sequence[str] = ()) -> None:
        columns = [item.name for item in fields(Evaluation) if item.name != "at_end"]
        self._columns = [*columns, *at_end_names(log_info)]
        with contextlib.suppress(OSError, StopIteration), path.open(encoding="utf-8", newline="") as file:
            self._columns = next(csv.reader(file))  # of a run that goes on
        self._file = GrowingFile(path, lines=True, header=_csv_line(self._columns))

    def evaluation(self, evaluation: Evaluation) -> None:
        """Append one line."""
        row = evaluation.row()
        self._file.write(_csv_line([row.get(_OLD_NAMES.get(name, name), "") for name in self._columns]))


class EventsFile(FileSink):
    """logs/events.log: what happened in words, with local time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = GrowingFile(path, lines=True)

    def note(self, text: str) -> None:
        """Append one line."""
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())


class TensorBoardFile(FileSink):
    """TensorBoard events, written record by record with the tensorboard package's own protobufs. Notes are none of it.

    Its `EventFileWriter` is left alone: that starts a thread, and imports TensorFlow where one is installed.
    """

    def __init__(self, run_dir: Path, config_text: str = "", cut: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._tensor = event_pb2.Event, summary_pb2, tensor_pb2
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = GrowingFile(run_dir / name, lines=False)
        self._records = RecordWriter(self._file)
        with contextlib.suppress(NotWrittenError):  # they are held, and the next record says so again
            self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if cut is not None:  # TensorBoard then forgets every value of later env steps in older files
            session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            with contextlib.suppress(NotWrittenError):
                self._write(self._event(wall_time=time.time(), step=cut + 1, session_log=session))
        if config_text:
            indented = "".join(f"    {line}\n" for line in config_text.splitlines())
            with contextlib.suppress(NotWrittenError):
                self._text("config", indented, step=0)

    def log(self, step: int, wall_s: float, updates: int, scalars: Mapping[str, float]) -> None:
        """One event with all scalars of a log line at x = env steps."""
        values = [
            self._summary.Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in {**scalars, "time/wall_s": wall_s, "train/updates": updates}.items()
        ]
        self._write(
            self._event(wall_time=time.time(), step=step, summary=self._summary.Summary(value=values)),
        )

    def evaluation(self, evaluation: Evaluation) -> None:
        """One event at the env steps at which the scored version was published."""
        values = [self._summary.Summary.Value(tag=t, simple_value=v) for t, v in evaluation.scalars().items()]
        self._write(
            self._event(wall_time=time.time(), step=evaluation.env_steps, summary=self._summary.Summary(value=values))
        )

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _text(self, tag: str, text: str, step: int) -> None:
        plugin = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        value = self._summary.Summary.Value(
            tag=f"{tag}/text_summary",
            metadata=self._summary.SummaryMetadata(plugin_data=plugin),
            tensor=self._tensor.TensorProto(dtype="DT_STRING", string_val=[text.encode()]),
        )
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary.Summary(value=[value])))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


def _csv_line(values: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


def _number(value: float) -> float | int | None:
    """JSON knows no infinity and no NaN; six significant digits keep lines short."""
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
