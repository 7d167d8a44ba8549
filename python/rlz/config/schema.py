"""`RunConfig`: every option of a run, once: name, type, default, allowed range, help text and help panel.

The command line (`rlz train --help`), the TOML files and the error messages are all made from these fields.
"""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from rlz.config import literals, values
from rlz.config.large_batch import DEFAULT_CAP, REFERENCE_BATCH, learning_rate_factor
from rlz.config.option import Integer, Number, Panel, metadata, option
from rlz.system.device import has_driver

MAX_SAMPLERS = 1000
"""Worker ids end at 1022; learner, evaluator and controller have theirs, restarts need spare ones."""

MAX_ENVS = 65_536
"""An environment slot is a 16-bit number in the replay buffer."""

LEAST_AUTO_LAUNCH, MOST_AUTO_LAUNCH, AUTO_LAUNCH_ROWS = 8, 32, 4096
"""`--updates-per-launch auto` on a card: so many updates as have this many rows, 16 at batch size 256."""

MAX_LAYER_BYTES = 2**30
"""A field of the parameter store takes no more."""


class RunConfig(BaseModel):
    """Everything that defines a run, resolved and checked. Frozen; unknown keys are errors.

    Steps are env steps over all samplers, times are in seconds. Field names are option names with underscores.
    An option that the algorithm does not have cannot be given, is not in a dump, and holds a default without meaning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, ser_json_inf_nan="constants")

    algo: Literal["sac", "td3", "ddpg"] = option("sac", panel=Panel.PROBLEM, help="Algorithm.")
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
        help="Wrapper class around the environment, applied in the order given. Repeatable.",
        metavar="MOD:CLASS",
        expects="module:Class, such as gymnasium.wrappers:FlattenObservation",
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
    )

    batch_size: Annotated[int | str, BeforeValidator(values.batch_size)] = option(
        256,
        panel=Panel.LEARNING,
        help="Rows of one update; auto, with --replay-ratio free: the smallest at the knee of frames/s, learning rate "
        "scaled to it (auto_1024 starts there).",
        metavar="INT|auto",
        expects="an integer from 1 to 1048576, auto, or auto_ before the size to start with",
    )
    buffer_size: Integer = option(
        1_000_000,
        panel=Panel.LEARNING,
        help="Rows of the replay buffer, over all environments.",
        metavar="INT",
        ge=1,
        le=2**40,
    )
    learning_starts: Integer = option(
        100,
        panel=Panel.LEARNING,
        help="Env steps with uniform random actions before the first update. Presets may differ.",
        metavar="STEPS",
        ge=0,
        le=2**62,
    )
    learning_rate: Annotated[float | str, BeforeValidator(values.learning_rate)] = option(
        3e-4,
        shown="3e-4",
        panel=Panel.LEARNING,
        help="Of actor, critics and temperature; lin_3e-4 falls linearly to 0 over the run.",
        metavar="R|lin_R",
        expects="a number above 0 and at most 1, or lin_ before such a number (linear to 0 over the run)",
    )
    scale_learning_rate: Number | None = option(
        None,
        panel=Panel.LEARNING,
        help="Multiply the learning rate by sqrt(batch size / 256), by CAP at most: for large batches.",
        metavar="CAP",
        shown=f"not scaled; {DEFAULT_CAP:g} with --batch-size auto",
        ge=1,
        le=1024,
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = option(
        "auto",
        panel=Panel.LEARNING,
        help="Of the networks' matrix products; all else is float32. auto: fp32 on the CPU, tf32 on CUDA.",
    )
    gamma: Number = option(0.99, panel=Panel.LEARNING, help="Discount per step.", metavar="G", ge=0, le=1)
    tau: Number = option(
        0.005, panel=Panel.LEARNING, help="Step of the target networks towards the critics.", metavar="T", gt=0, le=1
    )
    replay_ratio: Annotated[float | str, BeforeValidator(values.replay_ratio)] = option(
        1.0,
        shown="1",
        panel=Panel.LEARNING,
        help="Updates per env step, held exactly; free lets both sides run as fast as they can.",
        metavar="R|free",
        expects="a number above 0 and at most 1024 (updates per env step), or free",
    )
    ratio_slack: Number | None = option(
        None,
        panel=Panel.LEARNING,
        help="Most updates by which either side may be away from the replay ratio's line.",
        metavar="UPDATES",
        expects="a number of at least 1 and at least the replay ratio",
        shown="the largest of environments, ratio and --updates-per-launch",
        ge=1,
    )
    n_step_return: Integer = option(
        1,
        panel=Panel.LEARNING,
        help="Steps whose rewards a row sums before it bootstraps; shorter where an episode ends. SAC then adds the "
        "entropy bonus for the last step only.",
        metavar="N",
        ge=1,
        le=1000,
    )
    prioritized: bool = option(
        False, panel=Panel.LEARNING, help="Draw rows in proportion to their TD error, with importance weights."
    )
    priority_alpha: Number = option(
        0.6,
        panel=Panel.LEARNING,
        help="With --prioritized: 0 draws uniformly, 1 in proportion.",
        metavar="A",
        ge=0,
        le=1,
    )
    priority_beta: Number = option(
        0.4,
        panel=Panel.LEARNING,
        help="With --prioritized: exponent of the importance weights at first; it rises linearly to 1 over the run.",
        metavar="B",
        ge=0,
        le=1,
    )
    priority_epsilon: Number = option(
        1e-6,
        shown="1e-6",
        panel=Panel.LEARNING,
        help="With --prioritized: added to every |TD error|.",
        metavar="EPS",
        gt=0,
        le=1e6,
    )
    ent_coef: Annotated[float | str, BeforeValidator(values.ent_coef)] = option(
        "auto",
        panel=Panel.LEARNING,
        help="Temperature: learned (auto; auto_0.1 starts at 0.1) or fixed.",
        metavar="auto|X",
        only=("sac",),
        expects="auto, auto_0.1 (start value above 0), or a number of at least 0",
    )
    target_entropy: Annotated[float | str, BeforeValidator(values.target_entropy)] = option(
        "auto",
        panel=Panel.LEARNING,
        help="Entropy that the learned temperature aims at; auto is minus the number of action dimensions.",
        metavar="auto|X",
        only=("sac",),
        expects="auto or a finite number",
    )
    exploration_noise: Number = option(
        0.1,
        panel=Panel.LEARNING,
        help="Standard deviation of the Gaussian noise on the samplers' actions; the action range is -1 to 1.",
        metavar="STD",
        only=("td3", "ddpg"),
        ge=0,
        le=100,
    )
    policy_delay: Integer = option(
        2,
        panel=Panel.LEARNING,
        help="Updates of the critics for each one of actor and target networks.",
        metavar="UPDATES",
        only=("td3",),
        ge=1,
        le=1000,
    )
    target_policy_noise: Number = option(
        0.2,
        panel=Panel.LEARNING,
        help="Standard deviation of the Gaussian noise on the actions in the critics' target.",
        metavar="STD",
        only=("td3",),
        ge=0,
        le=100,
    )
    target_noise_clip: Number = option(
        0.5,
        panel=Panel.LEARNING,
        help="Largest size of that noise.",
        metavar="SIZE",
        only=("td3",),
        ge=0,
        le=100,
    )

    hidden: Annotated[tuple[int, ...], BeforeValidator(values.widths), AfterValidator(values.check_widths)] = option(
        (256, 256),
        panel=Panel.NETWORK,
        help="Widths of the hidden layers of actor and critics.",
        metavar="W,W",
        expects="widths from 1 to 65536 separated by commas, such as 256,256",
        shown="256,256",
    )
    activation: Literal["relu", "tanh", "silu", "elu"] = option(
        "relu", panel=Panel.NETWORK, help="After each hidden layer."
    )
    layer_norm: bool = option(False, panel=Panel.NETWORK, help="Layer normalisation before each activation.")
    n_critics: Integer = option(
        2,
        panel=Panel.NETWORK,
        help="Critics; the target is the minimum of all, or of --target-critics.",
        metavar="INT",
        ge=1,
        le=64,
    )
    target_critics: Integer | None = option(
        None,
        panel=Panel.NETWORK,
        help="Critics that are drawn anew for the target of each update, which is their minimum; SAC's actor then "
        "follows the mean of all (REDQ: 2 of 10 critics, at a high replay ratio).",
        metavar="INT",
        shown="all",
        ge=1,
        le=64,
    )

    mode: Literal["async", "serial"] = option(
        "async",
        panel=Panel.PLACEMENT,
        help="Workers as processes side by side, or the same graph in one process: deterministic, for debugging.",
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
    num_envs: Integer = option(
        panel=Panel.PLACEMENT,
        help="Environments over all samplers.",
        metavar="INT",
        shown="one per sampler",
        factory=lambda data: data["samplers"],
        ge=1,
        le=MAX_ENVS,
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
        help="With --devices: updates from one exchange of parameters to the next.",
        metavar="UPDATES",
        ge=1,
        le=100_000,
    )
    max_staleness: Integer | None = option(
        None,
        panel=Panel.PLACEMENT,
        help="With --devices: most updates by which the actor that the critics see may be behind. With 0 the devices "
        "take turns, and learning is exactly as on one.",
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
        help="Env steps between evaluations; 0 turns them off. Replay ratio free: in a tenth of the time at most.",
        metavar="STEPS",
        ge=0,
        le=2**62,
    )
    eval_episodes: Integer = option(
        10, panel=Panel.EVALUATION, help="Episodes of one evaluation.", metavar="INT", ge=1, le=1_000_000
    )

    runs_dir: str = option(
        "runs", panel=Panel.OUTPUT, help="Folder that holds run folders.", metavar="DIR", min_length=1
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
    log_every: Number = option(
        5.0, shown="5", panel=Panel.OUTPUT, help="Seconds between lines of metrics.", metavar="SECONDS", gt=0
    )
    track: bool = option(False, panel=Panel.OUTPUT, help="Also log to Weights & Biases.")
    wandb_project_name: str = option(
        "rlz", panel=Panel.OUTPUT, help="Project for --track.", metavar="NAME", min_length=1
    )

    @model_validator(mode="after")
    def _of_the_algorithm(self) -> Self:
        """No option of another algorithm was given."""
        for name in sorted(self.model_fields_set):
            only = metadata(type(self).model_fields[name])["only"]
            if only and self.algo not in only:
                raise ValueError(
                    f"--{name.replace('_', '-')} is an option of {' and '.join(only)}, not of {self.algo}. "
                    "Leave it out."
                )
        return self

    @model_serializer(mode="wrap")
    def _options_of_the_algorithm(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields that the algorithm has."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in dump(self).items()
            if self.algo in (metadata(fields[name])["only"] or [self.algo])
        }

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Rules between fields; the messages name options, `overrides` passes them on as they are."""
        if self.num_envs < self.samplers:
            raise ValueError(
                f"--num-envs {self.num_envs} is less than --samplers {self.samplers}: every sampler needs an "
                f"environment. Use --num-envs {self.samplers} or more, or fewer samplers."
            )
        if self.buffer_size < self.num_envs:
            raise ValueError(
                f"--buffer-size {self.buffer_size} is less than --num-envs {self.num_envs}: every environment needs "
                "at least one row."
            )
        for before, after in pairwise(self.hidden):
            if 4 * before * after > MAX_LAYER_BYTES:
                raise ValueError(
                    f"--hidden {','.join(map(str, self.hidden))}: {before} x {after} weights are "
                    f"{4 * before * after / 2**30:.0f} GiB; a layer may have at most 1 GiB."
                )
        ratio = self.ratio()
        if self.ratio_slack is not None and ratio is not None and self.ratio_slack * ratio[1] < ratio[0]:
            raise ValueError(
                f"--ratio-slack {self.ratio_slack:g} is less than --replay-ratio {self.replay_ratio}: one env step "
                f"alone would leave the slack. Use {self.replay_ratio} or more."
            )
        if self.devices is not None and self.device != "auto":
            raise ValueError(
                f"--device {self.device} and --devices {','.join(self.devices)}: give one of them. --devices places "
                "critics and actor apart."
            )
        if self.replay_device == "device" and (refusal := self.replay_refusal()) is not None:
            raise ValueError(f"--replay-device device does not go together with {refusal}. Leave one of them out.")
        if self.max_staleness is not None and self.max_staleness < self.exchange_every - 1:
            raise ValueError(
                f"--max-staleness {self.max_staleness} is less than --exchange-every {self.exchange_every} allows: "
                f"just before an exchange the actor is {self.exchange_every - 1} updates behind. Use "
                f"{self.exchange_every - 1} or more."
            )
        if self.target_critics is not None and self.target_critics > self.n_critics:
            raise ValueError(
                f"--target-critics {self.target_critics} of --n-critics {self.n_critics}: there are not so many. Use "
                f"{self.n_critics} or fewer, or more critics."
            )
        pending = self.num_envs * (self.n_step_return - 1)
        if pending and self.learning_starts <= pending:
            raise ValueError(
                f"--learning-starts {self.learning_starts} is too few for --n-step-return {self.n_step_return}: the "
                f"first {pending} env steps of {self.num_envs} environment(s) may not have given a row yet. Use "
                f"--learning-starts {pending + 1} or more."
            )
        if self.adapts():
            if self.replay_ratio != "free":
                raise ValueError(
                    f"--batch-size {self.batch_size} needs --replay-ratio free: with a ratio held, the batch size is "
                    "part of what is learned. Give a number, such as 256, or --replay-ratio free."
                )
            if self.devices is not None:
                raise ValueError(
                    f"--batch-size {self.batch_size} and --devices do not go together yet. Give a number, such as 256, "
                    "or one --device."
                )
        if self.mode == "serial" and self.replay_ratio == "free":
            raise ValueError(
                "--replay-ratio free needs --mode async: serial mode works in lock step. Give a number, such as 1."
            )
        return self

    def ratio(self) -> tuple[int, int] | None:
        """Updates per env step as an exact fraction (0.1 is 1/10); None when free-running."""
        if isinstance(self.replay_ratio, str):
            return None
        fraction = Fraction(str(self.replay_ratio))
        return fraction.numerator, fraction.denominator

    def adapts(self) -> bool:
        """The run chooses its batch size and how many environments step, and goes on choosing (`--batch-size auto`)."""
        return isinstance(self.batch_size, str)

    def first_batch_size(self) -> int:
        """Rows of the first update, and of all where the batch size is given."""
        if isinstance(self.batch_size, str):
            return REFERENCE_BATCH if self.batch_size == "auto" else int(self.batch_size.removeprefix("auto_"))
        return self.batch_size

    def slack(self) -> float:
        """Most updates by which either side may leave the ratio's line.

        Total environments, the ratio, or the updates of one launch, so that a whole launch can be granted.
        """
        if self.ratio_slack is not None:
            return self.ratio_slack
        ratio = 1.0 if isinstance(self.replay_ratio, str) else self.replay_ratio
        return float(max(self.num_envs, ratio, self.launch()))

    def learner_devices(self) -> tuple[str, ...]:
        """The devices of the learner: one, or those of critics and actor."""
        return self.devices or (self.device,)

    def launch(self) -> int:
        """Most updates that the learner asks leave for at once: one in serial mode, which works in lock step.

        auto: what keeps a card busy while the host prepares the next ones, within a slack that was given. Rows that
        come from the host are one batch each, so nothing is gained there.
        """
        if self.mode == "serial":
            return 1
        if isinstance(self.updates_per_launch, int):
            return self.updates_per_launch
        on_card = self.device.startswith("cuda") or (self.device == "auto" and has_driver())
        if not on_card or self.replay_device == "host" or self.replay_refusal() is not None:
            return 1
        wanted = min(MOST_AUTO_LAUNCH, max(LEAST_AUTO_LAUNCH, AUTO_LAUNCH_ROWS // self.first_batch_size()))
        return wanted if self.ratio_slack is None else max(1, min(wanted, int(self.ratio_slack)))

    def replay_refusal(self) -> str | None:
        """The option that keeps the replay buffer on the host, if any."""
        if self.mode == "serial":
            return "--mode serial"  # rows would lie in another order after a resume, and draws be others
        if self.prioritized:
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

    def learning_rate_at(self, env_steps: int, batch_size: int | None = None) -> float:
        """Learning rate after so many env steps: constant, or linear from its start value to 0 at `total_timesteps`.

        Scaled for the batch size (default: the first) where that was asked for, or where rlz chooses it.
        """
        cap = DEFAULT_CAP if self.scale_learning_rate is None and self.adapts() else self.scale_learning_rate
        size = self.first_batch_size() if batch_size is None else batch_size
        factor = 1.0 if cap is None else learning_rate_factor(size, cap)
        if not isinstance(self.learning_rate, str):
            return factor * self.learning_rate
        left = 1.0 - min(max(env_steps / self.total_timesteps, 0.0), 1.0)
        return factor * float(self.learning_rate.removeprefix("lin_")) * left

    def priority_beta_at(self, env_steps: int) -> float:
        """Exponent of the importance weights: linear from `priority_beta` to 1 at `total_timesteps`."""
        done = min(max(env_steps / self.total_timesteps, 0.0), 1.0)
        return self.priority_beta + (1.0 - self.priority_beta) * done

    def initial_ent_coef(self) -> float:
        """Fixed temperature, or the one that learning starts from (1 for plain auto, as in SB3)."""
        if isinstance(self.ent_coef, str):
            return float(self.ent_coef.removeprefix("auto_")) if self.ent_coef != "auto" else 1.0
        return self.ent_coef

    def to_toml(self) -> str:
        """Write every value as TOML that `from_toml` and `rlz train --config` read; unset ones are left out."""
        from rlz.config.overrides import to_toml

        return to_toml(self.model_dump())

    @classmethod
    def from_toml(cls, source: str | Path) -> Self:
        """Read TOML text, or a file when given a `Path`. ConfigError names the key and what it may hold."""
        from rlz.config.overrides import read_toml, validate

        data = read_toml(source)
        origin = str(source) if isinstance(source, Path) else "TOML text"
        return validate(cls, data, dict.fromkeys(data, origin))
