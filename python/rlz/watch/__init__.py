"""Looking at a run: the page of `rlz watch`, `rlz top`, `rlz trace`. All of it only reads; a run does not notice."""
