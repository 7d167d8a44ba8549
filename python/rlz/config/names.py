"""Answers to names that rlz does not know: close matches, and rlz's name for what other libraries call differently."""

from collections.abc import Iterable
from difflib import get_close_matches

# Name elsewhere -> (option of rlz, remark). Sources: Stable-Baselines3 and its zoo, CleanRL, SBX, Sample Factory,
# Tianshou, RLlib, Spinning Up, garage, jaxrl. An empty option means that the remark is the whole answer.
_FOREIGN: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("n_envs", "nb_envs", "num_environments", "number_envs", "n_env", "num_env", "train_num", "vec_envs"),
        ("num_envs", ""),
    ),
    **dict.fromkeys(
        (
            *("n_timesteps", "total_steps", "timesteps", "num_timesteps", "max_steps", "max_timesteps", "steps"),
            *("num_steps", "total_env_steps", "train_for_env_steps", "max_env_steps", "num_env_steps", "frames"),
            *("total_frames", "num_frames", "epochs", "max_epochs", "stop_timesteps"),
        ),
        ("total_timesteps", "it counts env steps, over all environments"),
    ),
    **dict.fromkeys(
        ("algo", "algorithm", "agent", "method", "run", "policy"),
        ("", "The algorithm comes first: rlz train sac --env Ant-v4"),
    ),
    **dict.fromkeys(("env_id", "env_name", "gym_id", "gym_env", "environment", "task", "task_id", "game"), ("env", "")),
    **dict.fromkeys(("env_args", "gym_kwargs", "env_config", "make_kwargs", "env_params"), ("env_kwargs", "key=value")),
    **dict.fromkeys(
        ("env_wrapper", "wrappers", "wrapper_class", "env_wrappers"), ("wrapper", "module:Class, repeatable")
    ),
    **dict.fromkeys(("lr", "step_size", "alpha_lr"), ("learning_rate", "")),
    **dict.fromkeys(
        (
            *("actor_lr", "critic_lr", "policy_lr", "q_lr", "lr_actor", "lr_critic", "qf_lr", "temp_lr", "pi_lr"),
            *("actor_learning_rate", "critic_learning_rate", "qf_learning_rate", "ent_coef_lr"),
        ),
        ("learning_rate", "one rate for actor, critics and temperature"),
    ),
    **dict.fromkeys(("lr_schedule", "anneal_lr"), ("learning_rate", "lin_3e-4 falls linearly to 0")),
    **dict.fromkeys(
        (
            "net_arch",
            "hidden_sizes",
            "hidden_size",
            "hidden_dim",
            "hidden_dims",
            "hidden_layers",
            "hidden_units",
            "hid",
            "policy_kwargs",
            "fcnet_hiddens",
            "network_size",
            "width",
            "n_units",
        ),
        ("hidden", "widths such as 256,256"),
    ),
    **dict.fromkeys(("activation_fn", "nonlinearity", "act", "fcnet_activation"), ("activation", "")),
    **dict.fromkeys(("use_layer_norm", "layernorm", "critic_layer_norm"), ("layer_norm", "")),
    **dict.fromkeys(("num_critics", "n_qs", "num_qs", "critics", "ensemble_size", "num_q_nets"), ("n_critics", "")),
    **dict.fromkeys(("num_min_qs", "num_min", "n_min_critics", "in_target_minimization"), ("target_critics", "")),
    **dict.fromkeys(
        ("gradient_steps", "train_freq", "train_frequency"),
        ("replay_ratio", "updates per env step, SB3's gradient_steps / (train_freq x n_envs)"),
    ),
    **dict.fromkeys(
        (
            "utd",
            "utd_ratio",
            "update_per_step",
            "updates_per_step",
            "update_to_data",
            "num_updates",
            "training_intensity",
            "samples_per_insert",
            "update_every",
            "n_updates",
        ),
        ("replay_ratio", "updates per env step"),
    ),
    **dict.fromkeys(
        ("ent_coef_init", "init_temperature", "initial_temperature", "init_alpha", "initial_alpha", "alpha_init"),
        ("ent_coef", "auto_0.1 learns it from 0.1"),
    ),
    **dict.fromkeys(
        (
            "alpha",
            "temperature",
            "entropy_coef",
            "entropy_coeff",
            "ent_coeff",
            "ent",
            "autotune",
            "auto_alpha",
            "automatic_entropy_tuning",
            "exploration_loss_coeff",
        ),
        ("ent_coef", "auto learns it, a number fixes it"),
    ),
    **dict.fromkeys(("entropy_target", "target_ent"), ("target_entropy", "")),
    **dict.fromkeys(
        (
            *("policy_frequency", "policy_freq", "actor_delay", "delay", "actor_update_interval", "policy_update_freq"),
            *("actor_update_freq", "update_actor_freq", "policy_update_interval", "actor_update_frequency"),
        ),
        ("policy_delay", "updates for each one of the actor"),
    ),
    **dict.fromkeys(
        (
            *("action_noise", "act_noise", "expl_noise", "noise_std", "exploration_sigma", "explore_noise", "noise"),
            *("explore_sigma", "action_noise_std", "noise_sigma", "sigma", "exploration_std", "exploration_noise_std"),
        ),
        ("exploration_noise", "standard deviation, the action range is -1 to 1"),
    ),
    **dict.fromkeys(("noise_type",), ("exploration_noise", "always Gaussian; this is its standard deviation")),
    **dict.fromkeys(
        ("policy_noise", "target_noise", "smoothing_noise", "target_policy_smoothing_noise", "smoothing_sigma"),
        ("target_policy_noise", "standard deviation, the action range is -1 to 1"),
    ),
    **dict.fromkeys(
        ("noise_clip", "policy_noise_clip", "smoothing_clip", "target_policy_noise_clip", "smooth_clip"),
        ("target_noise_clip", ""),
    ),
    **dict.fromkeys(("minibatch_size", "train_batch_size", "batch", "bs", "mini_batch_size"), ("batch_size", "")),
    **dict.fromkeys(
        (
            "replay_size",
            "replay_buffer_size",
            "memory_size",
            "replay_capacity",
            "capacity",
            "buffer_capacity",
            "buffer",
            "replay_buffer_capacity",
            "max_buffer_size",
            "rb_size",
        ),
        ("buffer_size", "rows over all environments"),
    ),
    **dict.fromkeys(
        (
            "start_steps",
            "warmup_steps",
            "random_steps",
            "start_timesteps",
            "num_random_steps",
            "initial_steps",
            "warmup",
            "start_training",
            "init_steps",
            "min_buffer_size",
            "num_steps_sampled_before_learning_starts",
            "initial_random_steps",
        ),
        ("learning_starts", "env steps"),
    ),
    **dict.fromkeys(("discount", "discount_factor", "gamma_discount"), ("gamma", "")),
    **dict.fromkeys(("polyak", "soft_update_tau", "target_tau"), ("tau", "tau is 1 - polyak: 0.005")),
    "target_update_interval": ("tau", "targets move at every update"),
    "target_network_frequency": ("tau", "targets move at every update"),
    **dict.fromkeys(
        (
            "num_workers",
            "n_workers",
            "workers",
            "num_actors",
            "actors",
            "num_samplers",
            "n_samplers",
            "num_rollout_workers",
            "num_env_runners",
            "n_sampler",
            "sampler",
        ),
        ("samplers", "processes that step environments"),
    ),
    **dict.fromkeys(
        ("num_envs_per_worker", "envs_per_worker", "num_envs_per_env_runner"), ("num_envs", "total over all samplers")
    ),
    **dict.fromkeys(("num_threads", "n_threads", "torch_threads", "torch_num_threads", "cpu_threads"), ("threads", "")),
    **dict.fromkeys(
        ("cuda", "gpu", "use_cuda", "use_gpu", "cpu", "num_gpus", "gpu_id", "no_cuda"),
        ("device", "auto, cpu, cuda or cuda:1"),
    ),
    **dict.fromkeys(("torch_compile", "jit", "compile_model"), ("compile", "--compile or --no-compile")),
    **dict.fromkeys(
        ("deterministic", "torch_deterministic", "synchronous", "sync", "debug", "serial", "serial_mode"),
        ("mode", "--mode serial is deterministic"),
    ),
    **dict.fromkeys(("use_wandb", "wandb", "with_wandb", "log_wandb"), ("track", "")),
    **dict.fromkeys(("wandb_project", "project", "project_name"), ("wandb_project_name", "")),
    **dict.fromkeys(
        ("wandb_entity", "wandb_user", "entity", "wandb_group"),
        ("", "W&B reads it from the environment: WANDB_ENTITY, WANDB_RUN_GROUP"),
    ),
    **dict.fromkeys(
        ("eval_freq", "eval_interval", "evaluation_interval", "eval_frequency"), ("eval_every", "env steps")
    ),
    **dict.fromkeys(
        ("n_eval_episodes", "num_eval_episodes", "test_num", "evaluation_num_episodes"), ("eval_episodes", "")
    ),
    **dict.fromkeys(
        (
            "save_freq",
            "save_every",
            "save_frequency",
            "checkpoint_freq",
            "checkpoint_frequency",
            "checkpoint_interval",
            "save_every_sec",
        ),
        ("checkpoint_every", "seconds"),
    ),
    **dict.fromkeys(("save_replay_buffer", "save_buffer"), ("save_replay", "on unless --no-save-replay")),
    **dict.fromkeys(
        (
            "tensorboard_log",
            "log_folder",
            "log_dir",
            "logdir",
            "output_dir",
            "save_dir",
            "train_dir",
            "out_dir",
            "results_dir",
            "run_dir",
            "save_path",
            "outdir",
            "storage_path",
        ),
        ("runs_dir", "a run folder is made in it"),
    ),
    **dict.fromkeys(("exp_name", "run_name", "experiment", "experiment_name", "run_id", "exp"), ("name", "")),
    **dict.fromkeys(("log_interval", "log_freq", "log_frequency", "report_interval"), ("log_every", "seconds")),
    **dict.fromkeys(
        ("capture_video", "record_video", "video", "render"),
        ("", "Videos are made from a run: rlz eval RUN --video FILE"),
    ),
    **dict.fromkeys(("conf_file", "config_file", "cfg", "conf", "yaml_file", "hyperparams"), ("config", "a TOML file")),
    **dict.fromkeys(("n_episodes", "num_episodes", "n_eval"), ("episodes", "")),
}


def close(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Known names that look like `name`, best first; case does not count."""
    table = {item.lower(): item for item in known}
    return [table[key] for key in get_close_matches(name.lower(), table, n=most, cutoff=0.6)]


def either(items: list[str]) -> str:
    """'a', 'a or b', 'a, b or c'."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"


def flag(name: str) -> str:
    """Option of a field: total_timesteps -> --total-timesteps."""
    return "--" + name.replace("_", "-")


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
    target, remark = _FOREIGN.get(plain, ("", ""))
    if target in known:
        return f"rlz calls it {show(target)}{f' ({remark})' if remark else ''}."
    if remark and not target:
        return f"{remark}."
    if plain.startswith("no_") and plain[3:] in known:
        return f"{show(plain[3:])} takes a value." if as_option else f"Write {plain[3:]} = false."
    matches = close(plain, known)
    return f"Did you mean {either([show(item) for item in matches])}?" if matches else ""
