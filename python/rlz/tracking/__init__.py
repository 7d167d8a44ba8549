"""Metrics of a run: what the controller writes, shows and sums up while the workers train.

The controller builds one `Tracker`, calls `tick` in its supervision loop and `finish` at the end. Nothing here imports
torch or TensorFlow, waits for a worker, or ends a run: an error in one sink turns that sink off with a line.
"""

from rlz.tracking.reading import WorkerInfo
from rlz.tracking.tracker import Tracker

__all__ = ["Tracker", "WorkerInfo"]
