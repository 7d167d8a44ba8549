"""The loops of a run: each worker is a process with one role (in serial mode: an object in the one process).

`python -m rlz.workers.<role> --spec-fd N` starts one. Only the learner imports torch.
"""
