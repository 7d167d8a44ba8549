"""What looking costs a run: env steps per second of one run with nobody looking, with a page, with video, with a trace.

    python benches/watch.py --env Ant-v4 --threads 2 --rounds 5 --seconds 6 --output docs/bench/watch.md

One run at replay ratio 1; the ways of looking take turns within it, so that all of them meet the same moments of the
machine. The page is the server and a client that reads its stream, as a browser on another machine would; the video is
the server, the viewer's process and a client. Medians over the rounds, and each round's ratio to nobody in it.
"""

import argparse
import json
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from rlz.runtime.live import Live
from rlz.transport.stats import Stat
from rlz.watch.trace import trace

SETTLE_S = 1.0
Seen = Callable[[], int]
Way = Callable[[Path, str, float], AbstractContextManager[Seen]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="Ant-v4")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        training(Path(folder), given.env, given.threads) as run,
        served(run) as address,
    ):
        rates, frames = measure(run, address, {way: WAYS[way] for way in given.ways}, given.rounds, given.seconds)
    text = report(given, rates, frames)
    print(text)
    if given.output is not None:
        with given.output.open("a") as file:
            file.write(text)


def measure(
    run: Path, address: str, ways: dict[str, Way], rounds: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Env steps a second by who looks, of every round, and frames a second of those who see video."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    frames: dict[str, list[float]] = {}
    for turn in range(rounds):
        first = turn % len(ways)
        for way in (*list(ways)[first:], *list(ways)[:first]):
            with ways[way](run, address, seconds + 2 * SETTLE_S) as seen:
                time.sleep(SETTLE_S)
                before = seen()
                rates[way].append(rate(run, seconds))
                if before:
                    frames.setdefault(way, []).append((seen() - before) / seconds)
        print({way: [round(one) for one in found] for way, found in rates.items()}, flush=True)
    return rates, frames


@contextmanager
def training(folder: Path, env: str, threads: str) -> Iterator[Path]:
    options = ("-n", "10000000", "--learning-starts", "1000", "--eval-every", "0", "--plan", "off", "--name", "run")
    command = [sys.executable, "-m", "rlz", "train", "sac", "--env", env, *options, "--threads", threads]
    with (folder / "out").open("w") as out:
        process = subprocess.Popen([*command, "--no-save-replay"], cwd=folder, stdout=out, stderr=out)
    run = folder / "runs" / "run"
    try:
        wait_for(lambda: (run / ".live.sock").exists())

        def compiled() -> bool:
            assert process.poll() is None, (folder / "out").read_text()
            with Live(run) as live:
                return bool(live.stats.read()[:, Stat.COMPILED].any())

        wait_for(compiled)
        time.sleep(5)
        yield run
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@contextmanager
def served(run: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rlz", "watch", str(run)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    try:
        yield found[0]
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def nobody(run: Path, address: str, seconds: float) -> Iterator[Seen]:
    yield lambda: 0


@contextmanager
def page(run: Path, address: str, seconds: float) -> Iterator[Seen]:
    with reading(address, "/api/stream"):
        yield lambda: 0


@contextmanager
def video(run: Path, address: str, seconds: float) -> Iterator[Seen]:
    with reading(address, "/api/stream"), reading(address, "/api/video") as frames:
        wait_for(lambda: frames() > 0)
        yield frames


@contextmanager
def traced(run: Path, address: str, seconds: float) -> Iterator[Seen]:
    with tempfile.TemporaryDirectory() as folder:
        tracing = threading.Thread(target=trace, args=(run, seconds, Path(folder) / "trace.json"))
        tracing.start()
        yield lambda: 0
        tracing.join()


WAYS: dict[str, Way] = {"nobody": nobody, "page": page, "page and video": video, "trace": traced}


def browser(address: str) -> OpenerDirector:
    """What has opened the printed address, and may look."""
    opener = build_opener(HTTPCookieProcessor(CookieJar()))
    opener.open(address).read()
    return opener


@contextmanager
def reading(address: str, path: str) -> Iterator[Seen]:
    """Read a stream until the end of the block; gives the number of its frames."""
    answer = browser(address).open(address.partition("/?")[0] + path)
    ending, count = threading.Event(), [0]

    def read() -> None:
        while not ending.is_set() and (data := answer.read1(65536)):
            count[0] += data.count(b"Content-Type: image/jpeg")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield lambda: count[0]
    finally:
        ending.set()
        thread.join(5)
        answer.close()


def rate(run: Path, seconds: float) -> float:
    with Live(run) as live:
        steps, begin = live.limiter.env_steps, time.monotonic()
        time.sleep(seconds)
        return (live.limiter.env_steps - steps) / (time.monotonic() - begin)


def wait_for(condition: Callable[[], bool], timeout: float = 150.0) -> None:
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "the run did not get warm"
        time.sleep(0.2)


def report(given: argparse.Namespace, rates: dict[str, list[float]], frames: dict[str, list[float]]) -> str:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    ways = "" if given.ways == list(WAYS) else f" --ways {shlex.join(given.ways)}"
    lines = [
        f"\n## {given.env}, {given.threads} update thread(s), {len(os.sched_getaffinity(0))} cores\n",
        f"`python benches/watch.py --env {given.env} --threads {given.threads} --rounds {given.rounds} "
        f"--seconds {given.seconds:g}{ways}`, {time.strftime('%Y-%m-%d')}, {cpu[1] if cpu else platform.machine()}.\n",
        "| who looks | env steps/s, median (range) | to nobody, median of the rounds |",
        "| --- | --- | --- |",
    ]
    for way, found in rates.items():
        ratios = [one / none for one, none in zip(found, rates["nobody"], strict=True)]
        spread = f"{statistics.median(found):.0f} ({min(found):.0f} to {max(found):.0f})"
        lines.append(f"| {way} | {spread} | {statistics.median(ratios):.3f} |")
    for way, found in frames.items():
        lines += ["", f"{way}: {statistics.median(found):.1f} frames/s ({min(found):.1f} to {max(found):.1f})."]
    lines += ["", *(f"<!-- {way}: {json.dumps([round(x, 1) for x in found])} -->" for way, found in rates.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
