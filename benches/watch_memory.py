"""Memory of `rlz watch` and of its page over hours of a run, replayed at speed.

    python benches/watch_memory.py RUN --hours 8 --output docs/bench/watch.md

RUN is the folder of a run that has ended: its configuration is run for a moment and then stopped (SIGSTOP), so that the
server has a live run to look at; the lines of RUN's log are written again and again, at later and later env steps, one
for each `--log-every` seconds of the hours, an evaluation to every twelve, an event to every sixty. The server is told
to look without rest: it looks once for each second of the hours. Whoever reads: a client that takes every message, and
a page in headless Chromium that draws. Memory of the server is what it has allocated (RssAnon); of the page, its heap
after a garbage collection.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlz.tracking.process import read_usage
from watch import browser, wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

LOG_S = 5
MARKS = 8
CODE = """
from pathlib import Path
import sys
from rlz.watch import serve, server, source
server.PERIOD_S = source.REFRESH_S = 0.002
serve.watch(Path(sys.argv[1]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    lines = [json.loads(line) for line in (given.run / "metrics.jsonl").read_text().splitlines()]
    rows = (given.run / "evaluations.csv").read_text().splitlines()[1:]
    count, looks = round(3600 * given.hours / LOG_S), round(3600 * given.hours)
    with tempfile.TemporaryDirectory() as folder, stopped_run(Path(folder), given.run) as run, ExitStack() as stack:
        server, address = stack.enter_context(served(run))
        messages = stack.enter_context(counted(address))
        heap = stack.enter_context(page(address, Path(folder)))
        found, begin = [], time.monotonic()
        for index in range(count + 1):
            if index % (count // MARKS) == 0:
                wait_for(lambda at=index * looks // count: messages() >= at, 600)  # type: ignore[misc]
                found.append((index, messages(), memory(server), heap()))
                print(*found[-1], round(time.monotonic() - begin), flush=True)
            append(run, index, lines, rows)
            while messages() < index * looks // count:
                time.sleep(0.001)
        size = (run / "metrics.jsonl").stat().st_size
    text = report(given, lines, found, size)
    print(text)
    if given.output is not None:
        with given.output.open("a") as file:
            file.write(text)


def append(run: Path, index: int, lines: list[dict[str, Any]], rows: list[str]) -> None:
    """Write line `index` of the replayed log, and what belongs to it."""
    turn, at = divmod(index, len(lines))
    line, last = lines[at], lines[-1]
    grown = {tag: value + turn * last[tag] for tag, value in line.items() if tag in ("env_steps", "updates")}
    text = json.dumps({**line, **grown, "wall_s": LOG_S * (index + 1), "time": time.time()})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{text}\n")
    if index % 12 == 0 and rows:
        _, row = rows[index // 12 % len(rows)].split(",", 1)
        with (run / "evaluations.csv").open("a") as file:
            file.write(f"{grown['env_steps']},{row}\n")
    if index % 60 == 0:
        with (run / "logs" / "events.log").open("a") as file:
            file.write(f"2026-01-01 00:00:00 checkpoint step-{index:012d}: 120 MB in 0.3 s\n")


@contextmanager
def stopped_run(folder: Path, like: Path) -> Iterator[Path]:
    """A live run that does nothing: of the same configuration, all of its processes stopped."""
    log = (folder / "out").open("w")
    command = [sys.executable, "-m", "rlz", "train", "--config", str(like / "config.toml"), "--plan", "off"]
    process = subprocess.Popen(
        [*command, "--name", "replayed", "--runs-dir", str(folder), "-n", "1000000000"],
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    run = folder / "replayed"
    try:
        wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes() != b"")
        os.killpg(process.pid, signal.SIGSTOP)
        yield run
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


@contextmanager
def served(run: Path) -> Iterator[tuple[int, str]]:
    """Process and address of a server that looks without rest."""
    process = subprocess.Popen([sys.executable, "-c", CODE, str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    try:
        yield process.pid, found[0]
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def counted(address: str) -> Iterator[Callable[[], int]]:
    """A client that reads every message; gives how many there were."""
    answer, count, ending = browser(address).open(address.partition("/?")[0] + "/api/stream"), [0], threading.Event()

    def read() -> None:
        while not ending.is_set() and (line := answer.readline()):
            count[0] += line.startswith(b"data:")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield lambda: count[0]
    ending.set()
    thread.join(5)


@contextmanager
def page(address: str, folder: Path) -> Iterator[Callable[[], float]]:
    """The page in Chromium; gives MiB of its heap."""
    from support.browser import chromium

    (folder / "chromium").mkdir()
    with chromium(folder / "chromium") as tab:
        opened = tab()
        opened.go(address)
        opened.wait("document.body?.dataset.messages >= 1")
        opened.call("Performance.enable")

        def heap() -> float:
            opened.call("HeapProfiler.collectGarbage")
            metrics = {one["name"]: one["value"] for one in opened.call("Performance.getMetrics")["metrics"]}
            return float(metrics["JSHeapUsedSize"]) / 2**20

        yield heap
        assert not opened.problems, opened.problems


def memory(pid: int) -> float:
    """MiB that a process has allocated."""
    usage = read_usage(pid)
    assert usage is not None
    return usage.anonymous / 2**20


def report(
    given: argparse.Namespace, lines: list[dict[str, Any]], found: list[tuple[int, int, float, float]], size: int
) -> str:
    """Markdown."""
    tags = len(set().union(*lines))
    head = (
        f"\n## Memory over {given.hours:g} hours of a run\n\n"
        f"`python benches/watch_memory.py RUN --hours {given.hours:g}`, {time.strftime('%Y-%m-%d')}: {found[-1][0]:,} "
        f"lines of {tags} tags ({size / 2**20:.0f} MiB of metrics.jsonl), {found[-1][1]:,} looks at a live run.\n\n"
        "| lines | messages | server, MiB | page's heap, MiB |\n| ---: | ---: | ---: | ---: |\n"
    )
    return head + "".join(f"| {a:,} | {b:,} | {c:.1f} | {d:.1f} |\n" for a, b, c, d in found)


if __name__ == "__main__":
    main()
