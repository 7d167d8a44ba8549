import json
import os
import subprocess
import sys
from typing import Any

import pytest

from rlz.cli import main
from rlz.cli.app import COMMANDS


def rlz(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlz", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import json, sys, rlz.cli\n"
        "status = rlz.cli.main(['--help'])\n"
        "heavy = ('torch', 'gymnasium', 'numpy', 'pydantic', 'rlz.config', 'rlz.runtime')\n"
        "print(json.dumps([status, [name for name in heavy if name in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
    assert all(name in done.stdout for name in COMMANDS)


def test_no_command_of_the_group_is_a_stub(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"Usage: rlz {name}" in text
        assert text.rstrip().splitlines()[-1].strip().startswith("rlz "), name  # examples are what one sees last
        assert "Examples" in text


def test_printing_the_configuration_imports_nothing_heavy() -> None:
    code = (
        "import json, sys, rlz.cli\n"
        "status = rlz.cli.main(['train', 'sac', '--env', 'Ant-v4', '--print-config'])\n"
        "print(json.dumps([status, [name for name in ('torch', 'gymnasium', 'numpy') if name in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_nothing_given_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "Usage: rlz" in captured.out
    assert captured.err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import rlz

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlz {rlz.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["No such command 'trian'. Did you mean 'train'"]),
        (["--n-envs"], ["No such option --n-envs."]),
        (["eval"], ["Missing argument 'RUN'", "See rlz eval --help"]),
        (["eval", "x", "--n-eval-episodes", "3"], ["rlz calls it --episodes"]),
        (["eval", "x", "--episodes", "0"], ["--episodes 0:", "greater than or equal to 1"]),
        (["bench", "trian"], ["WORKLOAD trian", "'train'"]),
        (["profile", "--budget", "x"], ["'--budget': x: expected a time"]),
    ],
)
def test_usage_errors(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert all(word in captured.err for word in words), captured.err
    assert captured.out == ""


def test_a_bug_is_one_line_unless_the_traceback_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("rlz.records.runs.list_runs", fail)
    assert main(["runs"]) == 1
    text = capsys.readouterr().err
    assert "KeyError: 'oops'" in text
    assert "RLZ_TRACEBACK=1" in text
    assert "Traceback" not in text
    monkeypatch.setenv("RLZ_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(["runs"])


def test_another_platform_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["--help"]) == 1
    assert "rlz runs on Linux" in capsys.readouterr().err


def test_exit_statuses_of_the_process() -> None:
    assert rlz("train", "sac").returncode == 2
    done = rlz("train", "sac", "--env", "Ant-v4", "--config", "no-such-file.toml")
    assert done.returncode == 1
    assert done.stderr == "error: There is no file no-such-file.toml.\n"


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m rlz train sac --env Ant-v4 --print-config | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


def test_import_rlz_is_free_and_lazy() -> None:
    code = (
        "import sys, rlz; before = set(sys.modules); rlz.RunConfig; "
        "print([m for m in ('torch', 'numpy', 'pydantic') if m in before], rlz.RunConfig.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[] rlz.config.schema"
    import rlz

    assert {"load", "RunConfig", "__version__"} <= set(dir(rlz))
    with pytest.raises(AttributeError, match="nothing"):
        _ = rlz.nothing
