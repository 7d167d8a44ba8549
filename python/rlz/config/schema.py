"""`RunConfig`: the problem, placement, evaluation and output of a run. What is learned how is the algorithm's affair.

The command line (`rlz train --help`), the TOML files and the error messages are made from these fields and from those
of the algorithm's `Settings`; `model.py` joins both.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    model_validator,
)

from rlz.algorithms.default import DEFAULT
from rlz.answers import Replay, Rollout
from rlz.config.agreement import check_agreement
from rlz.options import Integer, Number, Panel, literals, option, values
from rlz.references import PICKLE, UNNAMED
from rlz.system.device import has_driver

MAX_SAMPLERS = 1000
"""Worker ids end at 1022; learner, evaluator and controller have theirs, restarts need spare ones."""

MAX_ENVS = 65_536
"""An environment slot is a 16-bit number in the replay buffer."""

LEAST_AUTO_LAUNCH, MOST_AUTO_LAUNCH, AUTO_LAUNCH_ROWS = 8, 32, 4096
"""`--updates-per-launch auto` on a card: so many updates as have this many rows, 16 at batch size 256."""


class RunConfig(BaseModel):
    """What a run is told beside the settings of its algorithm, resolved and checked. Frozen; unknown keys are errors.

    Steps are env steps over all samplers, times are in seconds. Field names are option names with underscores.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, ser_json_inf_nan="constants")

    algo: str = option(DEFAULT, panel=Panel.PROBLEM, help="Algorithm: a name of rlz, or file.py:Class.", min_length=1)
    env: str = option(
        panel=Panel.PROBLEM,
        help="Gymnasium id, such as Ant-v4; my_pkg:MyEnv-v0 imports my_pkg first.",
        metavar="ID",
        expects="the id of a Gymnasium environment, such as Ant-v4",
        min_length=1,
    )
    env_kwargs: Annotated[
        dict[str, Any], BeforeValidator(values.pairs), PlainSerializer(literals.encode, return_type=dict)
    ] = option(
        {},
        panel=Panel.PROBLEM,
        help="Argument of the environment's constructor, the value as in TOML or Python. Repeatable.",
        metavar="K=V",
        expects="key=value, such as healthy_reward=0.5",
        shown="none",
    )
    wrapper: Annotated[tuple[str, ...], AfterValidator(values.wrapper_paths)] = option(
        (),
        panel=Panel.PROBLEM,
        help="Wrapper class around the environment, with arguments after commas (mod:Class,key=value), applied in the "
        "order given. Repeatable.",
        metavar="MOD:CLASS",
        expects="module:Class or module:Class,key=value, such as gymnasium.wrappers:FlattenObservation",
        shown="none",
    )
    max_episode_steps: Integer | None = option(
        None,
        panel=Panel.PROBLEM,
        help="Env steps after which an episode is truncated, in training and in evaluations.",
        metavar="STEPS",
        shown="the environment's own limit",
        ge=1,
        le=2**31,
    )
    obs_dtype: Literal["float32", "native"] = option(
        "float32",
        panel=Panel.PROBLEM,
        help="Storage of float64 observations: float32 halves the replay buffer; networks compute in float32 either "
        "way. Integer types are always kept.",
    )
    seed: Integer = option(
        1, panel=Panel.PROBLEM, help="Seed of every random stream of the run.", metavar="INT", ge=0, le=2**63 - 1
    )
    total_timesteps: Integer = option(
        1_000_000,
        panel=Panel.PROBLEM,
        help="Env steps of the run, warm-up included. Presets of environments may differ.",
        metavar="STEPS",
        flags=("-n",),
        ge=1,
        le=2**62,
        fixed=False,
    )
    normalize_obs: bool = option(
        False,
        panel=Panel.LEARNING,
        help="Subtract the running mean of observations and divide by their deviation; what acts does so too.",
        fixed=True,
    )
    normalize_reward: bool = option(
        False,
        panel=Panel.LEARNING,
        help="Divide rewards by the running deviation of the discounted return.",
        fixed=True,
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="Of the networks' matrix products; all else is float32. auto: fp32 on the CPU, tf32 on CUDA.",
    )
    mode: Literal["async", "serial"] = option(
        "async",
        panel=Panel.PLACEMENT,
        help="Workers as processes side by side, or the same graph in one process: deterministic, for debugging.",
    )
    graph: Annotated[str | None, AfterValidator(values.code_path)] = option(
        None,
        panel=Panel.PLACEMENT,
        help="Function that is given the usual graph and returns that of the run, with workers of your own "
        "(docs/graph.md).",
        metavar="FILE.py:NAME",
        expects="module:function or file.py:function",
        shown="samplers, learner, evaluator",
        min_length=3,
        fixed=True,
    )
    plan: str = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="Where the options below come from that are not given: auto takes the plan that `rlz profile` found for "
        "this machine, environment and network, a plan.toml the plan in it, off the defaults.",
        metavar="auto|FILE|off",
        expects="auto, off, or the path of a plan.toml",
        min_length=1,
    )
    samplers: Integer = option(
        1, panel=Panel.PLACEMENT, help="Sampler processes.", metavar="INT", ge=1, le=MAX_SAMPLERS
    )
    env_groups: Integer = option(
        1,
        panel=Panel.PLACEMENT,
        help="Groups of each sampler's environments: with --inference central one steps while others wait for actions.",
        metavar="INT",
        ge=1,
        le=1024,
    )
    num_envs: Integer = option(
        panel=Panel.PLACEMENT,
        help="Environments over all samplers.",
        metavar="INT",
        shown="one per sampler and group",
        factory=lambda data: data["samplers"] * data["env_groups"],
        ge=1,
        le=MAX_ENVS,
    )
    inference: Literal["auto", "inline", "central", "learner"] = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="Where actions are chosen: inline in each sampler, or for all samplers in batches, central in a server or "
        "in the learner's process. auto: as the plan says, else inline.",
    )
    inference_device: str = option(
        "cpu",
        panel=Panel.PLACEMENT,
        help="Of an inference server whose policy torch runs: cpu, cuda or cuda:N.",
        metavar="DEVICE",
        expects="cpu, cuda or cuda:N",
        pattern=r"^(cpu|cuda(:\d+)?)$",
    )
    device: Annotated[str, BeforeValidator(values.device)] = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="Of the learner; auto measures the CPU against the first card, where there is one.",
        metavar="DEVICE",
        expects="auto, cpu, cuda or cuda:N (torch's names)",
    )
    devices: Annotated[tuple[str, str] | None, BeforeValidator(values.devices)] = option(
        None,
        panel=Panel.PLACEMENT,
        help="Critics on the first device, the actor on the second, updated side by side; instead of --device.",
        metavar="CRITIC,ACTOR",
        expects="two devices separated by a comma, such as cuda:0,cuda:1 or cpu,cpu",
        shown="both on --device",
    )
    exchange_every: Integer = option(
        1,
        panel=Panel.PLACEMENT,
        needs="devices",
        help="Updates from one exchange of parameters to the next.",
        metavar="UPDATES",
        ge=1,
        le=100_000,
    )
    max_staleness: Integer | None = option(
        None,
        panel=Panel.PLACEMENT,
        needs="devices",
        help="Most updates by which the actor that the critics see may be behind. With 0 the devices take turns, and "
        "learning is exactly as on one.",
        metavar="UPDATES",
        shown="the least with which neither waits: 2 x exchange-every - 1; in serial mode exchange-every - 1",
        ge=0,
        le=1_000_000,
    )
    threads: Annotated[int | str, BeforeValidator(values.threads)] = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="CPU threads of the learner; auto measures them beside the running samplers (auto_2 prefers 2).",
        metavar="INT|auto",
        expects="an integer from 1 to 1024, auto, or auto_ before the number to prefer",
    )
    spin_count: Integer = option(
        1000,
        panel=Panel.PLACEMENT,
        help="Turns that an OpenMP thread of the learner waits busily before it sleeps; OMP_WAIT_POLICY and "
        "GOMP_SPINCOUNT win.",
        metavar="TURNS",
        ge=0,
        le=10**9,
    )
    pin: bool = option(
        False, panel=Panel.PLACEMENT, help="Keep samplers and learner to cores of their own, where there are enough."
    )
    compile: bool = option(True, panel=Panel.PLACEMENT, help="Compile the update while training has already begun.")
    updates_per_launch: Annotated[int | str, BeforeValidator(values.auto_or(1024))] = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="Most updates that the replay ratio grants the learner at once; serial mode takes one at a time. auto: 8 "
        "to 32 of rows on a card, more where batches are small, else 1.",
        metavar="UPDATES|auto",
        expects="an integer from 1 to 1024, or auto",
    )
    replay_device: Literal["auto", "host", "device"] = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="Draw batches from a copy of the replay buffer on the learner's device; auto: on CUDA, where it fits.",
    )
    publish_every: Annotated[int | str, BeforeValidator(values.auto_or(2**31))] = option(
        "auto",
        panel=Panel.PLACEMENT,
        help="Updates between publications of the actor; auto: each one, on a card each launch, at most 750 a second.",
        metavar="UPDATES|auto",
        expects="an integer from 1 to 2147483648, or auto",
    )
    eval_every: Integer = option(
        10_000,
        panel=Panel.EVALUATION,
        help="Env steps between evaluations; 0: none. With --replay-ratio free they take a tenth of the time at most.",
        metavar="STEPS",
        ge=0,
        le=2**62,
    )
    eval_episodes: Integer = option(
        10,
        panel=Panel.EVALUATION,
        needs="eval_every",
        help="Episodes of one evaluation.",
        metavar="INT",
        ge=1,
        le=1_000_000,
    )
    runs_dir: str = option(
        "runs", panel=Panel.OUTPUT, help="Folder that holds run folders.", metavar="DIR", min_length=1, fixed=True
    )
    name: Annotated[str | None, AfterValidator(values.folder_name)] = option(
        None,
        panel=Panel.OUTPUT,
        help="Name of the run folder.",
        metavar="NAME",
        expects="a folder name without /",
        shown="from algorithm, environment, seed and time",
    )
    checkpoint_every: Number = option(
        300.0,
        shown="300",
        panel=Panel.OUTPUT,
        help="Seconds between checkpoints; 0 writes one at the end only.",
        metavar="SECONDS",
        ge=0,
    )
    save_replay: bool = option(True, panel=Panel.OUTPUT, help="Keep the replay buffer in checkpoints.")
    log_info: tuple[str, ...] = option(
        (),
        panel=Panel.OUTPUT,
        help="Key of a number in the info of an episode's last step, to be logged as success is. Repeatable.",
        metavar="KEY",
        expects="the key of a number in info",
        shown="is_success alone",
        fixed=True,
    )
    log_every: Number = option(
        5.0, shown="5", panel=Panel.OUTPUT, help="Seconds between lines of metrics.", metavar="SECONDS", gt=0
    )
    track: bool = option(False, panel=Panel.OUTPUT, help="Also log to a tracker (--tracker).")
    tracker: Literal["wandb", "trackio"] = option(
        "wandb",
        panel=Panel.OUTPUT,
        needs="track",
        help="Weights & Biases, or trackio, which keeps runs on this machine.",
    )
    wandb_project_name: str = option(
        "rlz", panel=Panel.OUTPUT, needs="track", help="Project of the tracker.", metavar="NAME", min_length=1
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_agreement(self)
        return self

    def data(self) -> Replay | Rollout:
        """What the algorithm learns from, without the fields of its rows, which the environment gives."""
        raise NotImplementedError("the settings of the algorithm are not in this object")

    def replay(self) -> Replay:
        """`data` of an algorithm that learns from a replay buffer."""
        data = self.data()
        assert isinstance(data, Replay), f"{self.algo} has no replay buffer"
        return data

    def acts(self) -> Literal["inline", "central", "learner"]:
        """Where actions are chosen."""
        return "inline" if self.inference == "auto" else self.inference

    def slack(self) -> float:
        """Most updates by which either side may leave the ratio's line.

        Total environments, the ratio, or the updates of one launch, so that a whole launch can be granted.
        """
        data = self.data()
        if not isinstance(data, Replay):
            return 1.0  # there is no ratio
        if data.slack is not None:
            return data.slack
        ratio = 1.0 if data.ratio is None else data.ratio[0] / data.ratio[1]
        return float(max(self.num_envs, ratio, self.launch()))

    def done(self, env_steps: int) -> float:
        """Part of the run that is over after so many env steps, 0 to 1: what schedules follow."""
        return min(max(env_steps / self.total_timesteps, 0.0), 1.0)

    def learner_devices(self) -> tuple[str, ...]:
        """The devices of the learner: one, or those of critics and actor."""
        return self.devices or (self.device,)

    def launch(self) -> int:
        """Most updates that the learner asks leave for at once: one in serial mode, which works in lock step.

        auto: what keeps a card busy while the host prepares the next ones, within a slack that was given. Rows that
        come from the host are one batch each, so nothing is gained there.
        """
        if self.mode == "serial" or isinstance(self.data(), Rollout):
            return 1
        if isinstance(self.updates_per_launch, int):
            return self.updates_per_launch
        on_card = self.device.startswith("cuda") or (self.device == "auto" and has_driver())
        if not on_card or self.replay_device == "host" or self.replay_refusal() is not None:
            return 1
        data = self.replay()
        wanted = min(MOST_AUTO_LAUNCH, max(LEAST_AUTO_LAUNCH, AUTO_LAUNCH_ROWS // data.batch))
        return wanted if data.slack is None else max(1, min(wanted, int(data.slack)))

    def replay_refusal(self) -> str | None:
        """The option that keeps the replay buffer on the host, if any."""
        if self.mode == "serial":
            return "--mode serial"  # rows would lie in another order after a resume, and draws be others
        if self.replay().priority is not None:
            return "--prioritized"
        return None if self.devices is None else "--devices"

    def staleness(self) -> int:
        """Most updates by which the actor that the critics see may be behind, with two devices.

        In serial mode by default no more than `exchange_every` makes it: nothing is gained by a lag in lock step, and
        without one a run with an exchange in every update goes on after a stop as if there had been none.
        """
        if self.max_staleness is not None:
            return self.max_staleness
        return self.exchange_every - 1 if self.mode == "serial" else 2 * self.exchange_every - 1

    def to_toml(self) -> str:
        """Write every value as TOML that `read_config` and `rlz train --config` read; unset ones are left out."""
        from rlz.config.overrides import to_toml

        return to_toml({name: _named(value) for name, value in self.model_dump().items()})


def _named(value: Any) -> Any:
    """Text that a file may hold: an object that has no name travels to workers only."""
    return UNNAMED if isinstance(value, str) and value.startswith(PICKLE) else value
