"""Algorithms: one readable file each, losses as pure functions of flat parameters and a batch.

A further algorithm of rlz is:

1. a file here: its settings, state, losses and `update`, with the paper's equations named. `base.py` is the contract,
   `settings.py` has the options that many share, `sac.py` is an example that reads from top to bottom;
2. a line in `BUILT_IN` of `registry.py`; its options, errors and help follow from its settings;
3. presets in `rlz/configs/NAME.toml`, with the source of their values;
4. tests: those over `BUILT_IN` take it up by themselves; its update equals a reference in float64
   (`tests/algorithms/test_algorithms_oracle.py`), and it learns (`tests/learning/test_learning_gates.py`).

Nothing else names an algorithm (`tests/packaging/test_packaging_rooms.py`). A user's own is a file outside of rlz:
`docs/own_algorithms.md`.
"""
