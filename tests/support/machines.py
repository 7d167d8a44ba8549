"""Machines that are not here: hardware as `detect` would describe it, and profiles as `probe` would measure them."""

from collections.abc import Sequence
from typing import Any

from rlz.config import RunConfig, resolve
from rlz.planning.profile_model import Joint, Profile, Workload
from rlz.system.cores import ladder
from rlz.system.detect import Hardware, NumaNode
from rlz.system.gpus import Gpu, GpuLink

GIB = 2**30

CARD = Gpu("Card", 80 * GIB, "9.0", "1.0")


def hardware(cores: int = 2, *, gpus: int = 0, memory: int = 16 * GIB, **facts: Any) -> Hardware:
    """A machine with so many usable cores, all memory free."""
    links = [GpuLink(one, two, "NV18") for one in range(gpus) for two in range(one + 1, gpus)]
    values: dict[str, Any] = {
        **{"cpu": "Testor", "architecture": "x86_64", "simd": ("avx2",), "cores_online": cores},
        **{"cores_allowed": cores, "cpu_quota": None, "cores": cores, "memory": memory, "memory_available": memory},
        **{"memory_limit": None, "shm": None, "gpus": (CARD,) * gpus, "gpu_links": tuple(links), "kernel": "6"},
        **{"container": "", "python": "3.11", "versions": {"torch": "2"}, "cores_physical": cores},
        "numa": (NumaNode(cores, memory),),
    }
    return Hardware(**values | facts)


def config(**options: Any) -> RunConfig:
    """A run of SAC on Pendulum-v1."""
    return resolve("sac", options.pop("env", "Pendulum-v1"), options, None)


def profile(
    machine: Hardware,
    *,
    steps: float = 5000.0,
    updates: float = 80.0,
    card: float = 0.0,
    gain_of_envs: float = 1.1,
    joint: Sequence[Joint] = (),
    publish_us: float = 50.0,
    actor_us: float = 5.0,
    run: RunConfig | None = None,
) -> Profile:
    """What measuring would give: `steps` of one sampler, compiled `updates` of one CPU thread and of one card."""
    cores = machine.cores
    spread = {"mean": 100.0, "median": 90.0, "p95": 150.0, "worst": 900.0}
    rates = [
        {"processes": count, "envs_per_process": envs, "env_steps_per_s": steps * count * gain}
        for count in ladder(cores)
        for envs, gain in ((1, 1.0), (4, gain_of_envs))
    ]

    def update(device: str, executor: str, precision: str, batch: int, threads: int, rate: float) -> dict[str, Any]:
        what = {"device": device, "executor": executor, "precision": precision, "batch_size": batch}
        rates = {"updates_per_s": rate, "frames_per_s": rate * batch, "ready_s": 1.0}
        return {**what, "threads": threads, **rates}

    made = []
    for threads in ladder(cores):
        for executor, gain in (("eager", 0.6), ("compiled", 1.0)):
            made.append(update("cpu", executor, "fp32", 256, threads, updates * gain * threads**0.7))
    made.append(update("cpu", "eager", "fp32", 8192, cores, updates * cores**0.7 * 0.6 / 25))
    if card:
        made += [update("cuda:0", executor, "tf32", 256, 1, card * gain)
                 for executor, gain in (("eager", 0.4), ("compiled", 1.0))]  # fmt: skip
    return Profile.model_validate(
        {
            "date": "2026-01-02T03:04:05Z",
            "hardware": machine,
            "workload": Workload.of(run or config()),
            "budget_s": 60.0,
            "took_s": 50.0,
            "memory": ({"threads": 1, "bytes_per_s": 1e10},),
            "transport": {
                **{"row_bytes": 64, "append_rows_per_s": 1e6, "sample_256_rows_per_s": 2e7},
                **{
                    "sample_8192_rows_per_s": 3e7,
                    "parameter_bytes": 300_000,
                    "publish_us": publish_us,
                    "copy_us": 20.0,
                },
            },
            "sampling": {
                **{
                    "step_us": spread,
                    "reset_us": spread,
                    "episode_length": 200.0,
                    "actor": ({"envs": 1, "us": actor_us},),
                },
                **{"bare_env_steps_per_s": 1.2 * steps, "share_of_bare": 1 / 1.2, "rates": tuple(rates)},
            },
            "products": ({"device": "cpu", "dtype": "fp32", "threads": 1, "flops": 7e10},),
            "updates": tuple(made),
            "joint": tuple(joint),
        }
    )


def together(env_steps: float, updates: float, ratio: float | None = 1.0, **setting: Any) -> Joint:
    """A joint measurement; by default of one sampler with one environment, two threads, and the usual spin count."""
    values: dict[str, Any] = {
        **{"samplers": 1, "envs_per_sampler": 1, "spin_count": 1000, "pinned": False, "device": "cpu"},
        **{"batch_size": 256, "replay_ratio": ratio, "precision": "fp32", "executor": "compiled", "threads": 2},
        **{"sampler_cpu": 0.1, "learner_cpu": 1.5, "sampler_waits": 0.9, "learner_waits": 0.0, "batch_waits": 0.0},
        **{"publish_share": 0.01, "seconds": 2.0, "frames_per_s": updates * 256},
    }
    return Joint(**values | setting, env_steps_per_s=env_steps, updates_per_s=updates)
