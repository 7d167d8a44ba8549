"""The page in a real browser: headless Chromium, where one is installed (Debian: apt-get install chromium)."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from rlz.records.runs import hold_lock
from rlz.system.priority import NICE
from support.browser import PROGRAM, Page, chromium
from support.watch_runs import NASTY, line_of, make_run, save_policy

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Page]]:
    with chromium(tmp_path_factory.mktemp("chromium")) as open_tab:
        yield open_tab


@contextmanager
def served(run: Path, *, ends: int = 0) -> Iterator[tuple[str, str]]:
    """`rlz watch` as a user starts it: its address and the second token."""
    temporary = run.parent / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlz", "watch", str(run)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", lines[0])
        assert address is not None, lines
        assert "ssh -N -L " in lines[1]
        yield address[0], lines[2].split()[-1]
    finally:
        process.terminate()
        assert process.wait(10) == ends
        assert ends or not list(temporary.glob("rlz-watch-*"))
        process.stdout.close()


def opened(tab: Callable[[], Page], url: str) -> Page:
    page = tab()
    page.go(url)
    page.wait("document.body?.dataset.messages >= 1 && document.querySelector('#metric-charts canvas') !== null")
    return page


def test_a_page_of_a_run_that_has_ended(tab: Callable[[], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with served(run) as (url, _):
        page = opened(tab, url)
        assert page.eval("location.search") == ""  # the token is out of the address
        assert page.eval("document.getElementById('title').textContent") == "sac on Pendulum-v1"
        titles = page.eval("[...document.querySelectorAll('#metric-charts h3')].map((one) => one.textContent)")
        assert {"train/critic_loss", "train/its_own_name"} <= set(titles)
        assert page.eval("document.querySelector('#bars .bar:first-child .track').textContent").startswith(
            "update 75 %"
        )
        # What a run has written is text, whatever it looks like.
        assert NASTY in page.eval("document.getElementById('events').textContent")
        assert page.eval("document.querySelectorAll('#events img').length") == 0
        page.wait("document.querySelectorAll('#setting-table tbody tr').length > 20")
        assert page.eval("document.getElementById('stop').disabled")
        base = url.partition("/?")[0]
        assert all(one.startswith((base, "data:")) for one in page.asked)
        assert not page.problems


def test_a_link_in_another_page_opens_it(tab: Callable[[], Page], tmp_path: Path) -> None:
    """As where the terminal that shows the address is a page itself."""
    with served(make_run(tmp_path)) as (url, _):
        page = tab()
        page.go(url.replace("127.0.0.1", "localhost").partition("?")[0])  # another site to a browser
        page.wait("location.hostname === 'localhost' && document.readyState === 'complete'")
        page.eval(f"document.body.innerHTML = '<a href=\"{url}\">run</a>'; document.querySelector('a').click()")
        page.wait("document.body?.dataset.messages >= 1")
        assert page.eval("location.href") == url.partition("?")[0]


def test_curves_move_over_both_axes(tab: Callable[[], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with served(run) as (url, _):
        page = opened(tab, url)
        pixels = (
            "(() => { const c = document.querySelector('#return-chart canvas');"
            " return c.toDataURL().length + ':' + c.toDataURL().slice(-4000, -3000); })()"
        )
        first = page.eval(pixels)
        with (run / "metrics.jsonl").open("a") as log:
            log.writelines(json.dumps(line_of(index) | {"train/a_late_one": 1.0}) + "\n" for index in range(51, 200))
        page.wait(f"({pixels}) !== {json.dumps(first)}")
        grown = page.eval(pixels)
        page.eval("document.getElementById('axis').click()")
        assert page.eval("document.getElementById('axis').textContent") == "over time"
        titles = page.eval("[...document.querySelectorAll('#metric-charts h3')].map((one) => one.textContent)")
        assert titles == sorted(titles, key=lambda tag: (not tag.startswith("train/"), tag))
        assert titles[0] == "train/a_late_one"
        page.wait(f"({pixels}) !== {json.dumps(grown)}")
        assert not page.problems


def test_it_is_readable_on_a_phone_and_in_the_dark(tab: Callable[[], Page], tmp_path: Path) -> None:
    with served(make_run(tmp_path)) as (url, _):
        page = tab()
        page.size(390, 800, phone=True)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.go(url)
        page.wait("document.querySelector('#metric-charts canvas') !== null")
        assert page.eval("document.documentElement.scrollWidth") <= 390
        height, legend = (
            f"document.querySelector('#return-chart .{part}').offsetHeight" for part in ("u-wrap", "u-legend")
        )
        assert page.eval(
            f"{height} > 150 && {height} + {legend} <= document.getElementById('return-chart').clientHeight"
        )
        back = "getComputedStyle(document.body).backgroundColor"
        assert page.eval(back) == "rgb(15, 19, 24)"
        page.eval("document.getElementById('theme').click()")
        assert page.eval(back) == "rgb(246, 247, 249)"
        assert not page.problems


def test_other_runs_are_laid_over_and_their_settings_compared(tab: Callable[[], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path, seed=1)
    make_run(tmp_path, "other", seed=7, gamma=0.5)
    with served(run) as (url, _):
        page = opened(tab, url)
        page.wait("document.querySelector('#others input') !== null")
        page.eval("document.querySelector('#others input').click()")
        page.wait("document.querySelectorAll('#differences tbody tr').length > 0")
        rows = page.eval("[...document.querySelectorAll('#differences tbody tr')].map((one) => one.innerText)")
        assert {row.split()[0] for row in rows} == {"seed", "gamma"}
        legend = page.eval("document.querySelector('#return-chart .u-legend').textContent")
        assert "other evaluation" in legend
        assert not page.problems


def test_buttons_obey_the_token(tab: Callable[[], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "summary.json").unlink()
    with hold_lock(run), served(run) as (url, control):  # as if it lived
        page = opened(tab, url)
        page.wait("!document.getElementById('stop').disabled")
        for token, said in (("wrong", "second token"), (control, "does not live")):
            page.eval(f"window.prompt = () => {json.dumps(token)}; document.getElementById('stop').click()")
            page.wait(f"document.getElementById('said').textContent.includes({json.dumps(said)})")
            messages = page.eval("Number(document.body.dataset.messages)")
            page.wait(f"document.body.dataset.messages > {messages + 1}")
            assert said in page.eval("document.getElementById('said').textContent")  # there is time to read it
            page.eval("document.getElementById('said').textContent = ''")


PICTURE = """(() => {
  const frames = document.getElementById("frames"), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [frames.naturalWidth, frames.naturalHeight];
  canvas.getContext("2d").drawImage(frames, 0, 0);
  return canvas.toDataURL();
})()"""


def viewers(run: Path) -> list[psutil.Process]:
    """The viewer processes of a run."""
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if {str(run), "rlz.watch.viewer"} <= set(one.info["cmdline"] or ())]


def idle(process: psutil.Process) -> bool:
    """Whether a process takes no time, for a second."""
    before = sum(process.cpu_times()[:2])
    time.sleep(1.0)
    return sum(process.cpu_times()[:2]) == before


def wait_for(condition: Callable[[], bool], what: str, timeout: float = 15.0) -> None:
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def test_a_video_plays_while_it_is_seen_and_a_problem_is_told(tab: Callable[[], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with served(run, ends=-signal.SIGKILL) as (url, _):
        page = opened(tab, url)
        page.eval("document.getElementById('video').scrollIntoView()")
        page.eval("document.getElementById('play').click()")
        page.wait("document.getElementById('video-said').textContent.includes('no checkpoint yet')")
        assert page.eval("document.getElementById('frames').hidden")
        save_policy(run)
        page.eval("document.getElementById('play').click()")
        page.wait("document.getElementById('frames').naturalWidth > 100", 100)  # at low priority, on a busy machine
        page.wait("document.getElementById('video-said').textContent.startsWith('episode 1: version 3')")
        assert len({page.eval(PICTURE) for _ in range(40) if not time.sleep(0.05)}) > 3  # it moves
        (viewer,) = viewers(run)
        assert viewer.nice() >= NICE
        assert f" nice {NICE}" in Path(f"/proc/{viewer.pid}/autogroup").read_text()
        # It waits while the picture is out of sight, and goes on where it was.
        page.eval("window.scrollTo(0, 0)")
        wait_for(lambda: idle(viewer), "a viewer that nobody sees goes on")
        page.eval("document.getElementById('video').scrollIntoView()")
        wait_for(lambda: not idle(viewer), "a viewer that is seen again does not go on")
        assert len({page.eval(PICTURE) for _ in range(40) if not time.sleep(0.05)}) > 3
        assert not page.problems
        page.eval("window.scrollTo(0, 0)")
        wait_for(lambda: idle(viewer), "a viewer that nobody sees goes on")
        psutil.Process(viewer.ppid()).kill()
    wait_for(lambda: not viewers(run), "a viewer outlives its server")


def test_the_last_evaluation_becomes_a_file(tab: Callable[[], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path)
    save_policy(run)
    (run / "checkpoints" / "latest").rename(run / "checkpoints" / "evaluated")
    with served(run) as (url, _):
        page = opened(tab, url)
        page.eval("document.getElementById('record').click()")
        said = "document.getElementById('record-said').textContent"
        if find_spec("imageio_ffmpeg") is None:
            page.wait(f"{said}.includes('imageio with ffmpeg')")
            assert page.eval("document.getElementById('recorded').hidden")
            return
        page.wait(f"{said}.startsWith('version 3, after 300 env steps: return -')", 100)
        page.wait("!document.getElementById('recorded').hidden")
        fetched = "fetch(document.getElementById('recorded').href).then((one) => one.arrayBuffer())"
        size = page.eval(f"{fetched}.then((one) => one.byteLength)")
        box = page.eval(f"{fetched}.then((one) => String.fromCharCode(...new Uint8Array(one).slice(4, 8)))")
        assert (size > 10_000, box) == (True, "ftyp")
        assert not [path for path in run.rglob("*") if "mp4" in path.name]  # it only reads
        assert not page.problems


@pytest.mark.skipif("RLZ_MEASURE" not in os.environ, reason="a measurement: set RLZ_MEASURE=1")
def test_a_million_points(tab: Callable[[], Page], tmp_path: Path) -> None:
    with served(make_run(tmp_path)) as (url, _):
        page = opened(tab, url)
        times = page.eval(
            """(async () => {
              const { Chart } = await import("/assets/charts.js");
              const box = document.createElement("div");
              box.className = "chart tall";
              document.querySelector("main").prepend(box);
              const count = 1e6, x = new Float64Array(count), y = new Float64Array(count);
              for (let i = 0; i < count; i++) { x[i] = i; y[i] = Math.sin(i / 5e4) + Math.random(); }
              const times = [];
              for (let round = 0; round < 7; round++) {
                const chart = new Chart(box);
                const begin = performance.now();
                chart.draw(x, [{ label: "y", colour: "red", values: y }]);
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                times.push(performance.now() - begin);
                chart.forget();
              }
              return times;
            })()"""
        )
        print("milliseconds for 1,000,000 points:", [round(one) for one in times])
        assert sorted(times)[len(times) // 2] < 200
