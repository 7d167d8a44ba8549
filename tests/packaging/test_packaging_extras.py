"""Extras of environments pin a MuJoCo that works with them, and docs/environments.md says what was tried."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = ("dm-control", "robotics", "metaworld")


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_keeps_mujoco_below_what_breaks_it_and_apart_from_development(extra: str) -> None:
    (mujoco,) = [item for item in PROJECT["project"]["optional-dependencies"][extra] if item.startswith("mujoco")]
    assert mujoco.startswith("mujoco<")
    assert float(mujoco.removeprefix("mujoco<")) <= 4
    assert [{"extra": extra}, {"group": "dev"}] in PROJECT["tool"]["uv"]["conflicts"]
    assert not [item for item in PROJECT["tool"]["uv"]["constraint-dependencies"] if item.startswith("mujoco==")]
    assert f"--extra {extra}" in (ROOT / "docs" / "environments.md").read_text()
