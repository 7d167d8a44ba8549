"""`rlz profile`: measures, in the order of what the figures decide, until the budget is spent.

Samplers alone, then updates alone, say what each side could do. What they leave open is measured together. All of it
happens in child processes that are killed when their time is over, so the end is kept whatever an environment does;
what did not fit is listed.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from rlz.bench.children import Child
from rlz.errors import RlzError
from rlz.learning.threads import learner_environment
from rlz.planning.budget import Budget, Done, Progress, lines
from rlz.planning.model import DEFAULT_SPIN, Setting, setting_of
from rlz.planning.needs import STEPPER_BYTES
from rlz.planning.planner import open_settings
from rlz.planning.profile_model import Joint, Profile, Workload
from rlz.planning.reasons import ACTING_SHARE, acting_share
from rlz.system.cores import busy_s, ladder
from rlz.system.descendants import ended_afterwards
from rlz.system.detect import Hardware, Roots, detect
from rlz.system.memory import limits

if TYPE_CHECKING:
    from rlz.config import RunConfig

LOOK_S = 0.5
"""Time for which others are looked at before anything is measured."""

SAMPLING_UNTIL: Final = 0.2
STREAMS_UNTIL: Final = 0.25
UPDATES_UNTIL: Final = 0.6
COMPILED_UNTIL: Final = 0.82
JOINT_UNTIL: Final = 0.97
"""Parts of the budget by which each stage ends at the latest; what one leaves over is the next one's."""

ENVS_PER_PROCESS = (1, 4, 16)

WIDTH = 256
"""Of the layer whose matrix products are measured where no networks are named."""

OTHER_SPIN = 10_000
"""Spin count that is measured beside the default, for the best setting, where the cores are more than one."""


@ended_afterwards()
def profile(config: "RunConfig | None" = None, budget: float = 60.0, *, progress: Progress | None = None) -> Profile:
    """Look at the machine and measure what it can do, for a workload or by itself.

    Parameters
    ----------
    config : of a run: environment, algorithm, networks, batch size, replay ratio. None: only memory, matrix products
        and copies are measured.
    budget : seconds for everything. What does not fit is listed in `skipped`.
    progress : told what comes next.

    Raises
    ------
    EnvError, ConfigError
        The environment cannot be made or used.
    RlzError
        Not even one sampler could be measured.
    """
    clock = Budget(budget, progress)
    hardware = replace(detect(), load=_others())
    found: dict[str, Any] = {"hardware": asdict(hardware), "budget_s": budget}
    found["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found["skipped"] = []
    if config is not None:
        from rlz import envs

        envs.inspect_env(config, on_note=lambda _: None)  # a clear error before anything is measured
        found["workload"] = Workload.of(config).model_dump()
    with tempfile.TemporaryDirectory(prefix="rlz-profile-") as folder, ExitStack() as stack:
        environment = {"TMPDIR": folder}  # a child that is killed leaves nothing elsewhere
        if config is None:
            _machine(hardware, clock, environment, found)
        else:
            # From an empty cache the learner's update is compiled beside the samplers, of which most are measured one
            # at a time: that takes half a minute, which the budget would not have after them.
            learner = None
            if hardware.cores > 1:
                learner = stack.enter_context(_learner(config, hardware, clock, environment))
            _sampling(config, hardware, clock, environment, found)
            if learner is None:
                learner = stack.enter_context(_learner(config, hardware, clock, environment))
            _updates(config, clock, learner, found)
            _joint(config, clock, environment, found)
    return _profile(found, clock)


def _others() -> float:
    """Cores that others use right now."""
    cores, begin, own = os.sched_getaffinity(0), time.monotonic(), time.process_time()
    before = busy_s(Roots().proc, cores)
    time.sleep(LOOK_S)
    own = time.process_time() - own
    return max(0.0, busy_s(Roots().proc, cores) - before - own) / (time.monotonic() - begin)


def _profile(found: dict[str, Any], clock: Budget) -> Profile:
    values = {**found, "took_s": round(clock.spent, 2)}
    return Profile.model_validate_json(json.dumps(values))


# -- samplers, environment, transport ------------------------------------------------------------------------------


def _sampling(
    config: "RunConfig", hardware: Hardware, clock: Budget, environment: dict[str, str], found: dict[str, Any]
) -> None:
    counts = ladder(_most_samplers(hardware.cores))
    each = min(1.0, max(0.2, 0.01 * clock.seconds))
    job = json.dumps(config.model_dump(mode="json"))
    skipped = found["skipped"]
    with ExitStack() as stack:
        clock.say(f"start of {counts[-1]} sampler{'s' * (counts[-1] > 1)}")
        children = [
            stack.enter_context(Child([sys.executable, "-m", "rlz.planning.sampling", job], env=environment))
            for _ in range(counts[-1])
        ]
        first = children[0]
        try:
            if first.line(clock.left()) is None:
                raise RlzError(f"the environment could not be measured: {first.error()}")
            clock.say(f"steps and resets of {config.env}")
            costs = first.ask({"do": "costs", "num_envs": ENVS_PER_PROCESS, "seconds": 2 * each}, clock.left())
            one = first.ask({"do": "sample", "num_envs": 1, "seconds": each}, clock.left())["env_steps_per_s"]
        except TimeoutError as error:
            raise RlzError(
                f"{config.env} could not be measured within {clock.seconds:g} s: it did not start, or made no step. "
                "Give it more time with --budget"
            ) from error
        share = one / costs["bare_env_steps_per_s"]
        rates = [{"processes": 1, "envs_per_process": 1, "env_steps_per_s": one}]
        found["sampling"] = {**costs, "share_of_bare": share, "rates": rates}
        for processes, num_envs in _scaling(counts):
            name = f"{processes} sampler{'s' * (processes > 1)} of {num_envs} environment{'s' * (num_envs > 1)}"
            clock.say(name)
            try:
                rate = _together(children[:processes], num_envs, each, clock)
            except TimeoutError:
                skipped.append(name)
                return  # late answers would be taken for others
            except RlzError as error:
                skipped.append(f"{name}: {error}")
                break
            rates.append({"processes": processes, "envs_per_process": num_envs, "env_steps_per_s": rate})
        try:
            clock.say("replay buffer and parameters")
            found["transport"] = first.ask({"do": "transport", "seconds": 0.1}, clock.left(STREAMS_UNTIL))
            clock.say("memory")
            memory = first.ask({"do": "memory", "threads": counts, "seconds": 0.2}, clock.left(STREAMS_UNTIL))
            found["memory"] = memory["memory"]
        except TimeoutError:
            skipped.append("replay buffer, parameters or memory")
        except RlzError as error:
            skipped.append(f"replay buffer, parameters or memory: {error}")


def _most_samplers(cores: int) -> int:
    """Samplers that can be measured at once: as many as the cores, where they fit into half of what memory is left."""
    free = min((limit.available for limit in limits()), default=0)
    return max(1, min(cores, free // 2 // STEPPER_BYTES))


def _scaling(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Processes and environments in each, the most telling first; (1, 1) has been measured."""
    ends = sorted({counts[0], counts[-1]})
    more = [(processes, envs) for envs in ENVS_PER_PROCESS[1:] for processes in ends]
    return [(processes, 1) for processes in counts[1:]] + more


def _together(children: Sequence[Child], num_envs: int, seconds: float, clock: Budget) -> float:
    """Env steps per second of several samplers at once."""
    jobs = {"do": "sample", "num_envs": num_envs}
    for warm_up in (True, False):
        for child in children:
            child.send({**jobs, "seconds": 0.05 if warm_up else seconds})
        answers = []
        for child in children:
            while (answer := child.line(clock.left(SAMPLING_UNTIL))) == {"ready": True}:
                continue
            if answer is None:
                raise RlzError(child.error())
            answers.append(float(answer["env_steps_per_s"]))
    return sum(answers)


# -- updates -------------------------------------------------------------------------------------------------------


def _learner(config: "RunConfig", hardware: Hardware, clock: Budget, environment: dict[str, str]) -> Child:
    seconds = min(2.0, max(0.3, 0.01 * clock.seconds))
    job = {"config": config.model_dump(mode="json"), "threads": ladder(hardware.cores), "seconds": seconds}
    command = [sys.executable, "-m", "rlz.planning.updates", json.dumps(job)]
    return Child(command, env=environment | learner_environment(DEFAULT_SPIN))


def _updates(config: "RunConfig", clock: Budget, child: Child, found: dict[str, Any]) -> None:
    done = Done("updates", ("update", "product", "copy"), found["skipped"])
    clock.say("start of the learner")
    child.send({"do": "measure"})
    with child:

        def until() -> float:
            # A learner that is slow to start gets the time of what would be in vain without it. From an empty cache its
            # update is compiled now: the run will be compiled, so figures of both together are worth more with it.
            updates = done.figures["update"]
            if not updates:
                return JOINT_UNTIL
            wanted = f"compiled, {updates[0]['precision']}, batch {config.replay().batch},"
            compiled = any(rate["executor"] == "compiled" for rate in updates)
            waits = not compiled and any(wanted in name for name in done.missing)
            return COMPILED_UNTIL if waits else UPDATES_UNTIL

        done.follow(child, clock, until)
    found["updates"], found["products"], found["copies"] = done.figures.values()


# -- without an environment ----------------------------------------------------------------------------------------


def _machine(hardware: Hardware, clock: Budget, environment: dict[str, str], found: dict[str, Any]) -> None:
    job = {"threads": ladder(hardware.cores), "width": WIDTH}
    done = Done("memory, matrix products and copies", ("memory", "product", "copy"), found["skipped"])
    clock.say("start")
    command = [sys.executable, "-m", "rlz.planning.machine", json.dumps(job)]
    with Child(command, env=environment | learner_environment(DEFAULT_SPIN)) as child:
        done.follow(child, clock, lambda: 1.0)
    found["memory"], found["products"], found["copies"] = done.figures.values()


# -- together ------------------------------------------------------------------------------------------------------


def _joint(config: "RunConfig", clock: Budget, environment: dict[str, str], found: dict[str, Any]) -> None:
    """The default first, held and free by turns; then what else may be better; then other ways to wait."""
    found["joint"] = []
    so_far = _profile(found, clock)
    if not so_far.enough:
        found["skipped"].append("samplers and learner together: one side alone has no figures")
        return
    given = config.replay().ratio
    ratio = 1.0 if given is None else given[0] / given[1]
    held, free = config.model_copy(update={"replay_ratio": ratio}), config.model_copy(update={"replay_ratio": "free"})
    lists = [(ratio, open_settings(held, so_far)), (None, open_settings(free, so_far))]
    if given is None:
        lists.reverse()  # what the run needs comes first
    most = max(len(settings) for _, settings in lists)
    turns = [(kind, settings[turn]) for turn in range(most) for kind, settings in lists if turn < len(settings)]
    own, (usual, *_) = lists[0]
    share = acting_share(so_far, usual.envs_per_sampler)
    if config.inference == "auto" and share is not None and share >= ACTING_SHARE:
        turns.append((own, replace(usual, inference="central")))
    _measure(config, clock, environment, found, turns)
    if so_far.hardware.cores > 1:
        best = _best(found, own)
        if best is not None and own is not None:  # beside samplers that never wait there is no core to spin on
            changed = replace(setting_of(best), spin_count=OTHER_SPIN)
            _measure(config, clock, environment, found, [(own, changed)])
            best = _best(found, own)
        if best is not None:
            _measure(config, clock, environment, found, [(own, replace(setting_of(best), pinned=True))])


def _best(found: dict[str, Any], ratio: float | None) -> Joint | None:
    """The best measurement so far at a replay ratio, where waits and cores of the CPU matter; None: there is none."""
    joint = [Joint.model_validate(one) for one in found["joint"] if one["replay_ratio"] == ratio]
    best = max(joint, key=lambda one: one.env_steps_per_s * one.updates_per_s, default=None)
    return best if best is not None and best.device == "cpu" else None


def _measure(
    config: "RunConfig",
    clock: Budget,
    environment: dict[str, str],
    found: dict[str, Any],
    turns: Sequence[tuple[float | None, Setting]],
) -> None:
    """Measure settings that share wait policy and pinning, in one child."""
    if not turns:
        return
    spin = turns[0][1].spin_count
    seconds = min(4.0, max(1.0, 0.03 * clock.seconds))
    settings = []
    for ratio, setting in turns:
        values = asdict(setting)
        del values["threads"]  # the learner measures its own
        compiled = any(one["executor"] == "compiled" for one in found["updates"])
        settings.append({**values, "replay_ratio": ratio, "compile": compiled})
    # One batch size: what it should be is decided by updates alone, and while a run goes on.
    sized = config.model_copy(update={"batch_size": config.replay().batch})
    job = {"config": sized.model_dump(mode="json"), "settings": settings, "seconds": seconds}
    done = 0
    command = [sys.executable, "-m", "rlz.planning.joint", json.dumps(job)]
    clock.say("samplers and learner together")
    with Child(command, env=environment | learner_environment(spin)) as child:
        for line in lines(child, clock, lambda: JOINT_UNTIL, found["skipped"], "samplers and learner together"):
            if "next" in line:
                clock.say(_words(*turns[line["next"]]))
            elif "joint" in line:
                found["joint"].append(line["joint"])
                done += 1
            elif "error" in line:
                found["skipped"].append(f"{_words(*turns[done])}: {line['error']}")
                done += 1
    found["skipped"] += [_words(*turn) for turn in turns[done:]]


def _words(ratio: float | None, setting: Setting) -> str:
    parts = [f"{setting.samplers} sampler{'s' * (setting.samplers > 1)} x {setting.envs_per_sampler} and a learner"]
    parts.append("free" if ratio is None else f"replay ratio {ratio:g}")
    if setting.spin_count != DEFAULT_SPIN:
        parts.append(f"spin {setting.spin_count}")
    if setting.pinned:
        parts.append("pinned")
    if setting.inference != "inline":
        parts.append(f"{setting.inference} inference")
    return ", ".join(parts)
