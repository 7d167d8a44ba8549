"""Profiles that were measured before."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlz.errors import ConfigError
from rlz.planning import cache
from rlz.planning.profile_model import Profile
from support.machines import config, hardware, profile

MACHINE = hardware(2)


def kept(folder: Path) -> Path:
    return cache.save(profile(MACHINE), folder)


def test_a_profile_is_found_again_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "profiles"
    path = kept(folder)
    assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert cache.load(config(), MACHINE, folder) == (profile(MACHINE), "")
    assert cache.load(config(seed=3, batch_size=1024, samplers=2), MACHINE, folder).profile is not None


def test_a_profile_of_a_busy_machine_is_used_but_said(tmp_path: Path) -> None:
    busy = profile(replace(MACHINE, load=1.7))
    cache.save(busy, tmp_path)
    found = cache.load(config(), MACHINE, tmp_path)
    assert found.profile == busy
    assert "while other processes used 1.7 cores: its rates are too low" in found.note


def test_other_networks_and_environments_have_their_own(tmp_path: Path) -> None:
    kept(tmp_path)
    others = [config(hidden="64,64"), config(env="Ant-v4"), config(n_critics=3), config(env_kwargs={"g": 9.0})]
    assert [cache.load(one, MACHINE, tmp_path) for one in others] == [(None, "")] * 4


@pytest.mark.parametrize("change", [{"cores": 1}, {"versions": {"torch": "3"}}, {"cpu_quota": 1.5}, {"gpus": ()}])
def test_another_machine_has_its_own(tmp_path: Path, change: dict[str, object]) -> None:
    here = hardware(2, gpus=1)
    cache.save(profile(here), tmp_path)
    found = cache.load(config(), replace(here, **change), tmp_path)  # type: ignore[arg-type]
    assert found.profile is None
    assert "another machine or other versions" in found.note


def test_what_changes_by_itself_is_no_other_machine() -> None:
    later = replace(MACHINE, memory_available=1, throttled_s=9.0, load=3.0)
    assert later.fingerprint() == MACHINE.fingerprint()


@pytest.mark.parametrize("damage", ["half", "text", "surplus", "nan", "other"])
def test_a_damaged_file_is_measured_again(tmp_path: Path, damage: str) -> None:
    path = kept(tmp_path)
    values = json.loads(path.read_text())
    values |= {"surplus": {"more": 1}, "text": {"budget_s": "60"}, "nan": {"took_s": float("nan")}}.get(damage, {})
    if damage == "other":
        values["workload"]["env"] = "Ant-v4"
    path.write_text(path.read_text()[:100] if damage == "half" else json.dumps(values))
    found = cache.load(config(), MACHINE, tmp_path)
    assert found.profile is None
    assert str(path) in found.note
    assert "measures again" in found.note


def test_a_profile_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(ConfigError, match=r"profile\.json: No such file"):
        Profile.read(path)
    path.write_text(json.dumps(profile(MACHINE).to_json() | {"format": 1}))
    with pytest.raises(ConfigError, match="no profile of format 4: format: "):
        Profile.read(path)


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "ENTRIES", 2)
    for cores in (1, 2, 4):
        cache.save(profile(hardware(cores)), tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLZ_PROFILES")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_folder() == Path("/somewhere/rlz/profiles")
