"""Learning curves of runs, of rlz and of others, and of groups of seeds: read, summarised, drawn (`rlz plot`)."""
