"""The controller: plans a run, starts, watches, restarts and stops its workers, owns everything they share.

`rlz.runtime.train.train` and `rlz.runtime.evaluate.evaluate` are the ways in. Imports no torch.
"""
