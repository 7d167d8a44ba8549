"""Child processes of a measurement: each contender runs in one of its own and prints its numbers as JSON."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlz.errors import RlzError


def run_child(command: Sequence[str | Path], *, timeout: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a program and return the JSON object on its last line of output.

    Parameters
    ----------
    command : program and arguments.
    timeout : seconds after which it is killed.
    env : added to the environment.

    Raises
    ------
    RlzError
        When it fails, takes too long or prints something else; with the end of its error output.
    """
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RlzError(f"{Path(command[0]).name} did not end within {timeout:.0f} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RlzError(f"a measurement ended with status {done.returncode}: {done.stderr.strip()[-1500:]}")
    try:
        value = json.loads(lines[-1])
    except ValueError as error:
        raise RlzError(f"a measurement printed {lines[-1][:200]!r} instead of its result") from error
    if not isinstance(value, dict):
        raise RlzError(f"a measurement printed {lines[-1][:200]!r} instead of its result")
    return value


class Child:
    """A program that prints JSON objects, one on a line, and may take jobs the same way; a context manager.

    It is killed at the end of the context, with everything that it started. Other lines of its output are left out.

    Parameters
    ----------
    command : program and arguments.
    env : added to the environment.
    """

    def __init__(self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self._text = b""
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
            process_group=0,  # not a session: the kernel shares cores out by session first, and only then by priority
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, job: Mapping[str, Any]) -> None:
        """Give it a job. A child that has ended does not take it: `line` tells."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def line(self, timeout: float) -> dict[str, Any] | None:
        """Next object; None when the program has ended. TimeoutError when none came within `timeout` seconds."""
        assert self._process.stdout is not None
        fd, until = self._process.stdout.fileno(), time.monotonic() + timeout
        while True:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                try:
                    value = json.loads(line)
                except ValueError:
                    continue
                if isinstance(value, dict):
                    return value
                continue
            if not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"nothing within {timeout:.1f} s")
            data = os.read(fd, 65536)
            if not data:
                return None
            self._text += data

    def ask(self, job: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Give it a job and wait for the answer.

        Raises
        ------
        RlzError
            It ended instead.
        TimeoutError
            No answer came in time.
        """
        self.send(job)
        answer = self.line(timeout)
        if answer is None:
            raise RlzError(f"a measurement failed: {self.error()}")
        return answer

    def error(self) -> str:
        """Why a program that has ended did not do so well, in one line; "" when it did."""
        status = self._process.wait()
        if status == 0:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return (lines[-1] if lines else "")[:500] or f"status {status}"

    def close(self) -> None:
        """Kill it, whatever it does. Idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass
        self._process.wait()
        self._errors.close()


def say(line: Mapping[str, Any]) -> None:
    """In a child: print an object for the parent, at once."""
    print(json.dumps(line), flush=True)
