"""Profiles that were measured before, in the user's cache folder: one file per workload and machine.

The machine's fingerprint holds the versions of the packages that rates depend on, so an upgrade asks for a new profile.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlz.errors import ConfigError
from rlz.planning.profile_model import Profile, Workload
from rlz.system.detect import BUSY, Hardware, detect
from rlz.system.files import replace_file
from rlz.system.user_cache import drop_oldest, user_cache

if TYPE_CHECKING:
    from rlz.config import RunConfig

ENTRIES = 256
"""Files kept, some kilobytes each."""


class Found(NamedTuple):
    """What the cache has: a profile or none, and a line for people where there is something to say."""

    profile: Profile | None
    note: str = ""


def cache_folder() -> Path:
    """`$RLZ_PROFILES`, by default `$XDG_CACHE_HOME/rlz/profiles`; may not exist yet."""
    if place := os.environ.get("RLZ_PROFILES"):
        return Path(place)
    return user_cache("profiles")


def load(config: "RunConfig", hardware: Hardware | None = None, folder: Path | None = None) -> Found:
    """Profile of this machine for a run's workload. Takes a millisecond where there is none for the workload.

    A file that cannot be used counts as none; the note says so.
    """
    place = cache_folder() if folder is None else folder
    workload = Workload.of(config)
    with suppress(OSError):
        if not any(place.glob(f"*.{workload.task}.*.json")):
            return Found(None)
    machine = (hardware or detect()).fingerprint()
    path = place / _name(workload, machine)
    if not path.is_file():
        return Found(
            None, "the profile of this workload is of another machine or other versions; `rlz profile` measures again"
        )
    try:
        profile = Profile.read(path)
    except ConfigError as error:
        return Found(None, f"not used: {error}. `rlz profile` measures again")
    if profile.workload != workload or profile.hardware.fingerprint() != machine:
        return Found(None, f"not used: {path} is of another workload or machine. `rlz profile` measures again")
    if profile.hardware.load > BUSY:
        return Found(
            profile,
            f"the profile was measured while other processes used {profile.hardware.load:.1f} cores: its rates are "
            "too low, and the plan may not be the best. `rlz profile --fresh` measures again",
        )
    return Found(profile)


def save(profile: Profile, folder: Path | None = None) -> Path:
    """Keep a profile of a workload; only this user may read it.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    assert profile.workload is not None
    place = cache_folder() if folder is None else folder
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = place / _name(profile.workload, profile.hardware.fingerprint())
    replace_file(path, json.dumps(profile.to_json(), indent=1).encode() + b"\n")
    path.chmod(0o600)
    drop_oldest(place, "*.json", ENTRIES)
    return path


def _name(workload: Workload, machine: str) -> str:
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", workload.env)[:64]
    return f"{workload.algo}-{env}.{workload.task}.{machine}.json"
