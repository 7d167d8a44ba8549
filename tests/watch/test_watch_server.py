"""What the page asks for, who may ask, and what a request cannot reach."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from rlz.records.runs import hold_lock
from rlz.watch import server as module
from rlz.watch import source as sources
from rlz.watch.access import CONTROL_HEADER, HERE, Tokens
from rlz.watch.server import PAGE, Server
from rlz.watch.source import Cursor, Source
from support.watch_runs import NASTY, line_of, make_run

BASE = "http://127.0.0.1:8000"


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    return make_run(tmp_path / "runs")


@pytest.fixture
def server(run: Path, tokens: Tokens) -> Iterator[Server]:
    made = Server(run, tokens)
    yield made
    made.close()


@pytest.fixture
def stranger(server: Server) -> TestClient:
    """Somebody who can reach the port and knows no token."""
    return TestClient(server.app(), base_url=BASE, raise_server_exceptions=True)


@pytest.fixture
def client(stranger: TestClient, tokens: Tokens) -> TestClient:
    """Somebody who has opened the printed address."""
    assert stranger.get("/", params={"token": tokens.look}).status_code == 200
    return stranger


def first_message(client: TestClient, **parameters: str) -> dict[str, Any]:
    told: dict[str, Any] = client.get("/api/history", params=parameters).json()
    return told


def test_a_run_that_has_ended_is_told_whole(client: TestClient) -> None:
    told = first_message(client)
    assert told["reset"]
    assert told["history"]["train/its_own_name"] == [float(index) for index in range(1, 51)]
    assert told["history"]["replay/policy_lag"][:2] == [None, 0.5]
    assert [one["env_steps"] for one in told["evaluations"]] == [1000, 2000, 3000, 4000, 5000]
    assert told["events"][1].endswith(NASTY)
    view = told["view"]
    assert (view["status"], view["best"], view["evaluation"]["return_std"]) == ("completed", -150.5, 5.0)
    assert view["snapshot"]["env_steps"] == 5000
    assert view["time"] == {
        "learner": {"update": 0.75, "waits for env steps": 0.2},
        "sampler-0": {"act": 0.1, "environment": 0.3, "waits for updates": 0.6},
    }


def test_settings_know_where_they_come_from(client: TestClient, run: Path) -> None:
    plan = 'basis = "profile"\ngiven = ["seed"]\n[choices]\nthreads = 1\n[reasons]\nthreads = "two are slower"\n'
    (run / "plan.toml").write_text(plan)
    about = client.get("/api/run").json()
    found = {one["name"]: (one["origin"], one["reason"]) for one in about["settings"]}
    assert found["threads"] == ("plan", "two are slower")
    assert found["seed"] == ("given", "")
    assert found["total_timesteps"] == ("given", "")
    assert found["gamma"][0] == "default" or found["gamma"][0].startswith("preset")
    assert found["samplers"] == ("default", "")
    assert found["algo"] == found["env"] == ("given", "")
    assert about["plan"]["basis"] == "profile"


def test_nothing_is_told_without_the_token(stranger: TestClient, tokens: Tokens) -> None:
    paths = ("/", "/api/runs", "/api/run", "/api/history", "/api/stream", "/api/evaluation.mp4", "/assets/app.js")
    for path in paths:
        assert stranger.get(path).status_code == 401
        assert stranger.get(path, params={"token": "wrong"}).status_code == 401
        assert stranger.get(path, headers={"Cookie": f"rlz-watch-8000={tokens.control}"}).status_code == 401


def test_the_token_leaves_the_address_and_becomes_a_cookie(stranger: TestClient, tokens: Tokens) -> None:
    answer = stranger.get("/", params={"token": tokens.look}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"rlz-watch-8000={tokens.look};")
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::1", "0x7f.1"])
def test_another_name_for_this_machine_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", HERE)
def test_names_of_this_machine_are_taken(client: TestClient, tokens: Tokens, host: str) -> None:
    named = f"[{host}]" if ":" in host else host
    headers = {"Host": f"{named}:8000", "Cookie": f"rlz-watch-8000={tokens.look}"}
    assert client.get("/api/runs", headers=headers).status_code == 200


ASK = """
import os, socket, sys
os.setuid(int(sys.argv[4]))
family, host = (socket.AF_INET6, "::ffff:127.0.0.1") if sys.argv[3] == "6" else (socket.AF_INET, "127.0.0.1")
with socket.socket(family) as asking:
    asking.connect((host, int(sys.argv[1])))
    asking.sendall(f"GET /?token={sys.argv[2]} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n".encode())
    print(asking.recv(4096).decode())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can ask as another user")
def test_another_user_is_refused_even_with_the_token(server: Server, tokens: Tokens) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = uvicorn.Server(uvicorn.Config(server.app(), log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            for user, family, said in (
                ("0", "4", "303"),
                ("0", "6", "303"),
                ("65534", "4", "403"),
                ("65534", "6", "403"),
            ):
                arguments = (str(listening.getsockname()[1]), tokens.look, family, user)
                told = subprocess.run(
                    [sys.executable, "-c", ASK, *arguments], capture_output=True, text=True, timeout=30
                )
                assert told.stdout.startswith(f"HTTP/1.1 {said} "), told
        finally:
            running.should_exit = True
            thread.join()


def test_another_page_is_refused(client: TestClient, tokens: Tokens) -> None:
    for origin in ("http://127.0.0.1:9000", "https://evil.example", "null"):
        assert client.get("/api/runs", headers={"Origin": origin}).status_code == 403
        headers = {"Origin": origin, CONTROL_HEADER: tokens.control}
        assert client.post("/api/stop", headers=headers).status_code == 403
    assert client.get("/api/runs", headers={"Origin": BASE}).status_code == 200
    assert client.post("/api/stop", headers={CONTROL_HEADER: tokens.control}).status_code == 403  # without an origin


@pytest.mark.parametrize("path", ["/api/runs", "/api/video", "/api/recording?begin=1", "/assets/app.js"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_picture_in_another_page_is_refused(client: TestClient, path: str, site: str) -> None:
    assert client.get(path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    assert client.get(path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}).status_code == 403
    assert client.get("/api/runs", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_the_page_may_be_opened_from_another_one(client: TestClient, tokens: Tokens) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200
    client.cookies.clear()
    assert client.get("/", headers=headers).status_code == 401
    assert client.get("/", headers=headers, params={"token": tokens.look}).status_code == 200
    control = {**headers, CONTROL_HEADER: tokens.control}
    assert client.post("/", headers=control).status_code == 403


def test_every_answer_has_the_headers(client: TestClient, stranger: TestClient) -> None:
    for path in ("/", "/api/runs", "/assets/app.js", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    client.cookies.clear()
    assert stranger.get("/").headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py",
        "/assets/..%2fserver.py",
        "/assets/%2e%2e/server.py",
        "/assets//etc/passwd",
        "/assets/..\\server.py",
        "/assets/%00",
        "/../runs/old/config.toml",
    ],
)
def test_assets_are_those_of_the_page_alone(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (400, 404)
    assert "import" not in answer.text


@pytest.mark.parametrize("name", ["..", "../runs/old", "/etc", "old/../old", ".", "old\0", "none", "%2e%2e"])
@pytest.mark.parametrize(
    "path", ["/api/run", "/api/history", "/api/stream", "/api/video", "/api/recording", "/api/evaluation.mp4"]
)
def test_a_run_is_named_by_what_there_is(client: TestClient, name: str, path: str) -> None:
    assert client.get(path, params={"run": name}).status_code == 404


def test_a_video_is_a_file_that_the_server_has_made(client: TestClient, run: Path) -> None:
    (run / "secret.mp4").symlink_to(run.parent.parent / "secret.txt")
    (run / "own.mp4").write_bytes(b"frames")
    assert client.get("/api/evaluation.mp4").status_code == 404
    assert client.get("/api/recording").json() == {"said": "", "problem": "", "ready": False}


def test_a_run_that_cannot_be_read_is_named(client: TestClient, run: Path) -> None:
    broken = run.parent / "broken"
    broken.mkdir()
    (broken / "config.toml").write_text("not toml")
    assert client.get("/api/run", params={"run": "broken"}).status_code == 422
    assert {one["name"] for one in client.get("/api/runs").json()["runs"]} == {"old", "broken"}


def test_other_runs_of_the_folder_can_be_looked_at(client: TestClient, run: Path) -> None:
    for index in range(12):  # more than are kept open
        make_run(run.parent, f"other-{index}", lines=10 + index)
    for index in range(12):
        assert first_message(client, run=f"other-{index}")["history"]["env_steps"][-1] == 1000 + 100 * index


@pytest.mark.parametrize(("action", "number"), [("stop", signal.SIGINT), ("checkpoint", signal.SIGUSR2)])
def test_what_changes_a_run_takes_the_second_token(
    client: TestClient, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, action: str, number: int
) -> None:
    controller = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(module, "Live", lambda _: nullcontext(SimpleNamespace(pid=controller.pid)))
    path = f"/api/{action}"
    try:
        for token in (None, "", "wrong", tokens.look):
            headers = {"Origin": BASE} | ({} if token is None else {CONTROL_HEADER: token})
            assert client.post(path, headers=headers).status_code == 403
        headers = {"Origin": BASE, CONTROL_HEADER: tokens.control}
        assert client.get(path, headers=headers).status_code == 405
        assert controller.poll() is None
        assert client.post(path, headers=headers).status_code == 200
        assert controller.wait(10) == -number
        assert client.post(path, headers=headers).status_code == 409  # it is gone
    finally:
        controller.kill()
        controller.wait()


def test_a_run_that_has_ended_cannot_be_stopped(client: TestClient, tokens: Tokens) -> None:
    headers = {"Origin": BASE, CONTROL_HEADER: tokens.control}
    answer = client.post("/api/stop", headers=headers)
    assert answer.status_code == 409
    assert "does not live" in answer.text


def test_a_run_that_is_starting_is_shown_by_its_files(client: TestClient, run: Path) -> None:
    (run / "summary.json").unlink()
    with hold_lock(run):
        assert first_message(client)["view"]["status"] == "running"


def test_what_is_told_grows_with_the_files(server: Server, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "REFRESH_S", 0.0)
    source = Source(run)
    source.look()
    cursor, _ = source.news(Cursor())
    assert source.news(cursor)[1] == {"reset": False, "history": {}, "evaluations": [], "events": []}
    with (run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(line_of(51)) + "\n" + json.dumps(line_of(52))[:30])  # half a line
    source.look()
    cursor, told = source.news(cursor)
    assert (told["reset"], told["history"]["env_steps"]) == (False, [5100.0])
    # A resumed run cuts its log.
    text = (run / "metrics.jsonl").read_text().splitlines()[:20]
    (run / "new").write_text("\n".join(text) + "\n")
    (run / "new").replace(run / "metrics.jsonl")
    source.look()
    _, told = source.news(cursor)
    assert (told["reset"], len(told["history"]["env_steps"]), len(told["evaluations"])) == (True, 20, 5)
    source.close()


def test_every_asset_is_here_and_names_no_other_place() -> None:
    names = {path.name for path in PAGE.iterdir()}
    assert {"index.html", "style.css", "app.js", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"} <= names
    for path in PAGE.iterdir():
        if not path.name.startswith("uPlot"):
            assert "//" not in path.read_text().replace("// ", "").replace("http://www.w3.org", "")
            assert len(path.read_text().splitlines()) <= 400
