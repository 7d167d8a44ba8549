"""Many runs of one question: seeds, settings, environments, searched or in a grid (`rlz study`)."""
