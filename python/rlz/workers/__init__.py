"""The loops of a run: each worker is a process with one role (in serial mode: an object in the one process).

`python -m rlz.workers rlz.workers.<role> ...` starts one (`__main__.py`). Only the learner imports torch.
"""
