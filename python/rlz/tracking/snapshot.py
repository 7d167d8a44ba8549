"""What a run looks like at one instant, and between two instants."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerInfo:
    """What the controller knows of one worker.

    Attributes
    ----------
    name : "learner", "evaluator", "sampler-0", ...
    role : "learner", "evaluator" or "sampler".
    slot : row of the worker in the stats board.
    pid : process id of the present incarnation; 0 while there is none. In serial mode all share the controller's.
    restarts : how often this run has restarted it.
    """

    name: str
    role: str
    slot: int
    pid: int
    restarts: int = 0
