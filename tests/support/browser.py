"""Headless Chromium, driven by its DevTools protocol: what a test needs of it and no more."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Page:
    """A tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.problems: list[str] = []
        """Errors of scripts, and requests that the page's own rules have refused."""
        self.asked: list[str] = []
        """Addresses that it has asked for."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=30))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def go(self, url: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=url)

    def eval(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        got = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def wait(self, script: str, timeout: float = 30.0) -> Any:
        """Wait until an expression is true."""
        until = time.monotonic() + timeout
        while not (value := self.eval(script)):
            assert time.monotonic() < until, f"not true within {timeout} s: {script}; {self.problems}"
            time.sleep(0.05)
        return value

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Set the size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def picture(self, path: Path, **options: Any) -> None:
        """Write a screenshot."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        if message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        if message["method"] == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])


def _started(output: Path) -> str:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for line in output.read_text(errors="replace").splitlines():
            if line.startswith("DevTools listening on "):
                return line.removeprefix("DevTools listening on ")
        time.sleep(0.05)
    raise AssertionError(f"Chromium did not start: {output.read_text(errors='replace')}")


@contextmanager
def chromium(folder: Path) -> Iterator[Callable[[], Page]]:
    """A browser, with a function that opens a tab; its profile is in `folder`."""
    assert PROGRAM is not None
    output = folder / "chromium.log"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    options += ("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--mute-audio")
    with output.open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, *options, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    with ExitStack() as open_until_the_end:

        def tab() -> Page:
            address = _started(output)
            with connect(address, max_size=None, ping_interval=None) as browser:
                browser.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
                while (message := json.loads(browser.recv(timeout=30))).get("id") != 1:
                    pass
            base = address.partition("/devtools/")[0]
            made = connect(f"{base}/devtools/page/{message['result']['targetId']}", max_size=None, ping_interval=None)
            return Page(open_until_the_end.enter_context(made))

        open_until_the_end.callback(_end, process)
        yield tab


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
