"""The configuration of a run as one object: `RunConfig` and the settings of its algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from rlz.algorithms.registry import answers_of, settings_type
from rlz.answers import Answers, Replay, Rollout
from rlz.config.schema import RunConfig
from rlz.errors import ConfigError
from rlz.networks.spec import normalized
from rlz.references import UNNAMED

if TYPE_CHECKING:
    from rlz.envs.spaces import EnvSpec


class _Whole(RunConfig):
    """Rules between the placement of a run and what its algorithm learns from."""

    @model_validator(mode="after")
    def _placement_fits_the_data(self) -> Self:
        data = self.data()
        if not isinstance(data, Replay):
            self._rollout_fits(data)
            return self
        if data.capacity < self.num_envs:
            raise ValueError(
                f"--buffer-size {data.capacity} is less than --num-envs {self.num_envs}: every environment needs "
                "at least one row."
            )
        if self.replay_device == "device" and (refusal := self.replay_refusal()) is not None:
            raise ValueError(f"--replay-device device does not go together with {refusal}. Leave one of them out.")
        pending = self.num_envs * (data.n_step - 1)
        if pending and data.starts <= pending:
            raise ValueError(
                f"--learning-starts {data.starts} is too few for --n-step-return {data.n_step}: the "
                f"first {pending} env steps of {self.num_envs} environment(s) may not have given a row yet. Use "
                f"--learning-starts {pending + 1} or more."
            )
        launch = self.updates_per_launch
        if isinstance(launch, int) and data.ratio is not None and data.slack is not None and launch > data.slack:
            raise ValueError(
                f"--updates-per-launch {launch} is more than --ratio-slack {data.slack:g} ever grants at once. Use "
                f"{data.slack:g} or fewer, or a larger slack."
            )
        if self.normalize_reward and data.n_step > 1:
            raise ValueError(
                f"--normalize-reward needs rows of single steps, and --n-step-return {data.n_step} sums several into "
                "each. Leave one of them out."
            )
        if data.adapts and self.devices is not None:
            raise ValueError(
                "--batch-size auto and --devices do not go together yet. Give a number, such as 256, or one --device."
            )
        if self.mode == "serial" and data.ratio is None:
            raise ValueError(
                "--replay-ratio free needs --mode async: serial mode works in lock step. Give a number, such as 1."
            )
        return self

    def _rollout_fits(self, data: Rollout) -> None:
        rows = self.num_envs * data.length
        if rows % data.batch:
            sizes = {size for one in range(1, isqrt(rows) + 1) if rows % one == 0 for size in (one, rows // one)}
            below = max((size for size in sizes if size < data.batch), default=1)
            above = min((size for size in sizes if size > data.batch), default=rows)
            either = f"{below}" if above == below else f"{below} or {above}"
            raise ValueError(
                f"--batch-size {data.batch} is no part of a rollout: --n-steps {data.length} of --num-envs "
                f"{self.num_envs} are {rows:,} rows. Use --batch-size {either}, or another --n-steps."
            )
        if isinstance(self.publish_every, int):
            raise ValueError(
                f"--publish-every {self.publish_every}: {self.algo} publishes after each rollout. Leave it out."
            )
        if self.devices is not None:
            raise ValueError(f"--devices: the update of {self.algo} has no halves. Use --device.")


@cache
def config_type(algo: str) -> type[RunConfig]:
    """The type of the configurations of an algorithm: its settings are fields beside those of `RunConfig`.

    Raises
    ------
    ConfigError
        There is no such algorithm.
    """
    return type("Config", (settings_type(algo), _Whole), {"__module__": __name__, "__doc__": RunConfig.__doc__})


def run_config(values: Mapping[str, Any] | None = None, /, **more: Any) -> RunConfig:
    """Check the values of a run, settings of its algorithm included. Raises pydantic's ValidationError."""
    given = {**(values or {}), **more}
    algo = given.get("algo", RunConfig.model_fields["algo"].default)
    return config_type(algo).model_validate(given)


def ask(config: RunConfig, env_spec: EnvSpec) -> Answers:
    """What the algorithm of a run answers for an environment, and what acts normalises where the run does."""
    answers = answers_of(config.algo, config.model_dump(), env_spec)
    if not config.normalize_obs:
        return answers
    return replace(answers, policy=normalized(answers.policy, env_spec.obs_dim))


def read_config(source: str | Path) -> RunConfig:
    """Read TOML text, or a file when given a `Path`. ConfigError names the key and what it may hold."""
    from rlz.config.overrides import read_toml, validate

    data = read_toml(source)
    for name in ("algo", "env"):
        if data.get(name) == UNNAMED:
            raise ConfigError(
                f"{source}: {name} was an object of Python without a name of its own (of a notebook, or of a script "
                "without a main guard). Such a run cannot go on from a file: put it into a file or module"
            )
    origin = str(source) if isinstance(source, Path) else "TOML text"
    return validate(data, dict.fromkeys(data, origin))
