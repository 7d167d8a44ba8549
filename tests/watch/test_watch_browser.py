"""The page in a real browser: headless Chromium, where one is installed (Debian: apt-get install chromium)."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rlz.records.runs import hold_lock
from support.browser import PROGRAM, Page, chromium
from support.watch_runs import NASTY, line_of, make_run, save_policy

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Page]]:
    with chromium(tmp_path_factory.mktemp("chromium")) as open_tab:
        yield open_tab


@contextmanager
def served(run: Path) -> Iterator[tuple[str, str]]:
    """`rlz watch` as a user starts it: its address and the second token."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rlz", "watch", str(run)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
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
        assert process.wait(10) in (0, -15)
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
            log.writelines(json.dumps(line_of(index)) + "\n" for index in range(51, 200))
        page.wait(f"({pixels}) !== {json.dumps(first)}")
        grown = page.eval(pixels)
        page.eval("document.getElementById('axis').click()")
        assert page.eval("document.getElementById('axis').textContent") == "over time"
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
            page.eval("document.getElementById('said').textContent = ''")


def test_a_video_plays_and_a_problem_is_told(tab: Callable[[], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with served(run) as (url, _):
        page = opened(tab, url)
        page.eval("document.getElementById('play').click()")
        page.wait("document.getElementById('video-said').textContent.includes('no checkpoint yet')")
        assert page.eval("document.getElementById('frames').hidden")
        save_policy(run)
        page.eval("document.getElementById('play').click()")
        page.wait("document.getElementById('frames').naturalWidth > 100")
        page.wait("document.getElementById('video-said').textContent.startsWith('episode 1: version 3')")
        script = """(() => {
          const frames = document.getElementById("frames"), canvas = document.createElement("canvas");
          [canvas.width, canvas.height] = [frames.naturalWidth, frames.naturalHeight];
          canvas.getContext("2d").drawImage(frames, 0, 0);
          return canvas.toDataURL();
        })()"""
        pictures = {page.eval(script) for _ in range(40) if not time.sleep(0.05)}
        assert len(pictures) > 3  # it moves
        viewers = [one for one in psutil.process_iter(["cmdline"]) if str(run) in (one.info["cmdline"] or ())]
        assert [one.nice() for one in viewers if "rlz.watch.viewer" in one.cmdline()] == [19]
        page.eval("document.getElementById('play').click()")
        until = time.monotonic() + 10
        while any(one.is_running() and "rlz.watch.viewer" in one.info["cmdline"] for one in viewers):
            assert time.monotonic() < until, "a viewer that nobody watches goes on"
            time.sleep(0.05)
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
