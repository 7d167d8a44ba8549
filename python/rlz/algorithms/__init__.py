"""Algorithms: one readable file each, losses as pure functions of flat parameters and a batch."""
