"""Program for the tests: a run with the fake learner. Argument: the configuration as JSON."""

import json
import sys

from rlz.config import RunConfig
from rlz.errors import RlzError
from rlz.runtime.graph import MODULES
from rlz.runtime.train import train

if __name__ == "__main__":
    config = RunConfig.model_validate(json.loads(sys.argv[1]))
    try:
        status = train(config, modules={**MODULES, "learner": "fake_learner"})
    except RlzError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)
