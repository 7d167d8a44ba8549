"""All that is known of a run before it starts, as one value: what is learned, the graph, and its placement."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from rlz.answers import Answers
from rlz.config.model import ask
from rlz.errors import ConfigError, GraphError, in_one_line
from rlz.graph import Graph
from rlz.placement import Place, Placement, pinned
from rlz.references import load
from rlz.standard import standard
from rlz.system.device import check_device
from rlz.transport.streams import Origin, Streams
from rlz.workers.base import Report, WorkerSpec

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec


@dataclass(frozen=True)
class Job:
    """A run as values.

    Attributes
    ----------
    config, env_spec : of the run.
    answers : of its algorithm.
    graph, placement : made from them; checked.
    """

    config: "RunConfig"
    env_spec: "EnvSpec"
    answers: Answers
    graph: Graph
    placement: Placement

    @classmethod
    def of(
        cls,
        config: "RunConfig",
        env_spec: "EnvSpec",
        answers: Answers | None = None,
        *,
        workers: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
        available: int | None = None,
    ) -> Self:
        """Make graph and placement, check both.

        Parameters
        ----------
        config, env_spec : of the run.
        answers : of its algorithm; None: it is asked.
        workers : other classes for some roles.
        cores : to pin to; default: those of this process.
        available : bytes of memory for the streams; None: not known.

        Raises
        ------
        GraphError
            The graph or its placement cannot work; names the part.
        ConfigError, DeviceError
            The inference server cannot be where it should.
        """
        answers = answers or ask(config, env_spec)
        if config.inference_device != "cpu":
            check_device(config.inference_device, option="--inference-device")
            if answers.policy.runner == "native":
                raise ConfigError(
                    f"--inference-device {config.inference_device}: Rust runs this policy, on the CPU. Use cpu; a "
                    "network of your own (--network) is run by torch, on a card too"
                )
        graph = standard(
            answers=answers,
            total_timesteps=config.total_timesteps,
            envs=config.num_envs,
            evaluates=config.eval_every > 0,
            inference=config.acts(),
            groups=config.env_groups,
        )
        if config.graph is not None:
            graph = _own(config.graph, graph, answers)
        graph = replace(graph.with_workers(workers or {}), log_info=tuple(config.log_info))
        graph.check()
        placement = place(config, graph, cores)
        placement.check(graph, available)
        return cls(config, env_spec, answers, graph, placement)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every worker, in the order of their start."""
        return self.placement.places(self.graph)

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(mode="json"),
            "env_spec": self.env_spec.to_json(),
            "asked": self.answers.to_json(),
            "graph": self.graph.to_json(),
            "placement": self.placement.to_json(),
        }

    def streams(self, origin: Origin) -> Streams:
        """Allocate the streams. Raises SharedMemoryError where the memory cannot be had."""
        return Streams.create(self.graph, self.placement, origin)

    def spec(self, one: Place, *, worker_id: int, run_dir: str, **more: Any) -> WorkerSpec:
        """What a worker is told at its start.

        Parameters
        ----------
        one : its place.
        worker_id, run_dir, more : as in `WorkerSpec`.
        """
        values: dict[str, Any] = {
            "role": one.role,
            "name": one.name,
            "index": one.index,
            "worker_id": worker_id,
            "slot": one.slot,
            "parent_pid": os.getpid(),
            "run_dir": run_dir,
            "lanes": one.lanes,
            "cores": one.cores,
            "sys_path": tuple(sys.path),
        }
        return WorkerSpec(**{**self._values, **values, **more})


def place(config: "RunConfig", graph: Graph, cores: Sequence[int] | None = None) -> Placement:
    """The placement that the options of a run ask for. `cores` to pin to; default: those of this process."""
    source = graph.source
    counts = {} if source is None else {source.role: config.samplers}
    serial = config.mode == "serial"
    pins = {}
    if config.pin and not serial:
        pins = pinned(graph, counts, sorted(os.sched_getaffinity(0) if cores is None else cores))
    return Placement(
        counts=counts,
        lanes=config.num_envs,
        slack=config.slack(),
        groups=(tuple(node.role for node in graph.nodes),) if serial else (),
        cores=pins,
        devices={node.role: config.learner_devices() for node in graph.nodes if node.torch},
    )


def _own(path: str, graph: Graph, answers: Answers) -> Graph:
    """The graph that a function of the user makes of the standard one."""
    try:
        make = load(path)
    except ConfigError as error:
        raise ConfigError(f"--graph {error}") from error.__cause__
    try:
        found = make(graph, answers)
    except GraphError:
        raise
    except Exception as error:
        problem = GraphError(f"--graph {path} raised {in_one_line(error)}")
        problem.__cause__ = error
        trace = Report.of(problem).traceback.rstrip()  # of the user's own lines
        raise GraphError(f"{problem}\n{trace}") from error
    if not isinstance(found, Graph):
        raise GraphError(f"--graph {path} gave a {type(found).__name__}; expected a rlz.graph.Graph")
    return found
