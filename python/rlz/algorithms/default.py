"""The algorithm of a run that is asked for without one, and of examples of commands. Imports nothing: help is fast."""

DEFAULT = "sac"
