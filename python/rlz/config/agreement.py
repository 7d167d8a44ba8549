"""Rules between the options of a run; their messages name options, and are passed on to people as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlz.system.device import has_driver

if TYPE_CHECKING:
    from rlz.config.schema import RunConfig


def check_agreement(config: RunConfig) -> None:
    """Refuse options that contradict each other, with a ValueError."""
    if config.num_envs < config.samplers:
        raise ValueError(
            f"--num-envs {config.num_envs} is less than --samplers {config.samplers}: every sampler needs an "
            f"environment. Use --num-envs {config.samplers} or more, or fewer samplers."
        )
    if config.env_groups > (least := config.num_envs // config.samplers):
        raise ValueError(
            f"--env-groups {config.env_groups} is more than the {least} environments of a sampler. Use --env-groups "
            f"{least} or fewer, or --num-envs {config.env_groups * config.samplers} or more."
        )
    if config.inference == "learner" and config.mode == "serial":
        raise ValueError("--inference learner has no serial form; --inference central has: use that one.")
    if config.inference_device != "cpu" and config.inference not in ("central", "learner"):
        raise ValueError(f"--inference-device {config.inference_device} needs --inference central or learner.")
    if config.devices is not None and config.device != "auto":
        raise ValueError(
            f"--device {config.device} and --devices {','.join(config.devices)}: give one of them. --devices places "
            "critics and actor apart."
        )
    if config.precision == "tf32" and all(
        device == "cpu" or (device == "auto" and not has_driver()) for device in config.learner_devices()
    ):
        raise ValueError("--precision tf32: the CPU has no tf32. Use auto, fp32 or bf16.")
    if config.max_staleness is not None and config.max_staleness < config.exchange_every - 1:
        raise ValueError(
            f"--max-staleness {config.max_staleness} is less than --exchange-every {config.exchange_every} allows: "
            f"just before an exchange the actor is {config.exchange_every - 1} updates behind. Use "
            f"{config.exchange_every - 1} or more."
        )
