"""Program for the tests: a run with the fake learner. Arguments: the configuration as JSON, a run folder to resume.

With the variable RLZ_FAKE_TRACKER=stuck the end of the run takes ten minutes, as an upload may.
"""

import json
import os
import sys
import time
from pathlib import Path

from rlz.config import run_config
from rlz.errors import RlzError
from rlz.runtime.resume import resume
from rlz.runtime.train import train
from rlz.tracking import Tracker

if __name__ == "__main__":
    if os.environ.get("RLZ_FAKE_TRACKER") == "stuck":
        Tracker.finish = lambda *_: time.sleep(600)  # type: ignore[assignment, method-assign, return-value]
    values = json.loads(sys.argv[1])
    workers = {"learner": "support.fake_learner:Learner"}
    try:
        if len(sys.argv) > 2:
            status = resume(Path(sys.argv[2]), values, workers=workers)
        else:
            status = train(run_config(values), workers=workers)
    except RlzError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)
