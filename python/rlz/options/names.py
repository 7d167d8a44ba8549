"""Answers to names that rlz does not know: close matches, and rlz's name for what other libraries call differently."""

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

TYPO = 0.8
"""Similarity from which on an unknown option is taken for a typing error. Below, other words are: --per, --wrapper."""


@cache
def elsewhere() -> dict[str, tuple[str, str]]:
    """Name in another tool -> (option of rlz, or "" where the remark is the whole answer; remark): `names.toml`."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: (entry.get("option", ""), entry.get("remark", ""))
        for entry in table["elsewhere"]
        for name in entry["names"].split()
    }


def close(name: str, known: Iterable[str], most: int = 3, least: float = 0.6) -> list[str]:
    """Known names that look like `name`, best first; case does not count. `least`: similarity, from 0 to 1."""
    table = {item.lower(): item for item in known}
    return [table[key] for key in get_close_matches(name.lower(), table, n=most, cutoff=least)]


def either(items: list[str], word: str = "or") -> str:
    """'a', 'a or b', 'a, b or c'."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def flag(name: str) -> str:
    """Option of a field: total_timesteps -> --total-timesteps."""
    return "--" + name.replace("_", "-")


REPEATABLE = ("env_kwargs", "wrapper", "log_info")
"""Options that may be given several times."""


def as_typed(name: str, value: Any) -> str:
    """An option with a value as one types it: --hidden 32,32, --no-compile, --wrapper a:B --wrapper c:D."""
    option = flag(name)
    if value is None:
        return f"no {option}"
    if isinstance(value, bool):
        return option if value else f"--no-{option[2:]}"
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        parts = [str(part) for part in value]
        if name in REPEATABLE:
            return " ".join(f"{option} {part}" for part in parts) or f"no {option}"
        value = ",".join(parts) or "none"
    return f"{option} {value}"


def hint(name: str, known: Iterable[str], *, as_option: bool) -> str:
    """What to say after 'no such option' or 'unknown key'; empty when nothing comes near.

    Parameters
    ----------
    name
        As it was given, with or without leading dashes.
    known
        Names that are allowed, with underscores.
    as_option
        Show names as `--num-envs` (command line) or `num_envs` (TOML).
    """
    known = list(known)
    plain = name.lstrip("-").replace("-", "_").lower()

    def show(item: str) -> str:
        return flag(item) if as_option else item

    if plain in known:
        return f"Write {show(plain)}: {'options have dashes' if as_option else 'keys have underscores'}."
    target, remark = elsewhere().get(plain, ("", ""))
    if target not in known and target.removeprefix("eval_") in known:
        target = target.removeprefix("eval_")  # `rlz eval` calls it --episodes
    if target in known:
        return f"rlz calls it {show(target)}{f' ({remark})' if remark else ''}."
    if remark and not target:
        return f"{remark}."
    if plain.startswith("no_") and plain[3:] in known:
        return f"{show(plain[3:])} takes a value." if as_option else f"Write {plain[3:]} = false."
    matches = close(plain, known, least=TYPO) or [item for item in known if sorted(item) == sorted(plain)]
    return f"Did you mean {either([show(item) for item in matches])}?" if matches else ""
