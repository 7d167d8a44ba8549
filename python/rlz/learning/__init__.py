"""How updates run: executors (eager, compiled), the helper that compiles beside training, and the number of threads."""
