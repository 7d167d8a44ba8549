"""Child process of `rlz profile`: what can be measured without an environment: memory, matrix products, copies."""

import json
import sys
from functools import partial

from rlz.planning.bandwidth import memory_copies
from rlz.planning.products import Products
from rlz.planning.tasks import Task, run, threads_in_words

SECONDS = 0.2
"""For the copies of each number of threads."""


def main(width: int, threads: list[int]) -> None:
    """Measure. `width`: of a layer whose products are measured."""
    memory = [Task(f"memory, {threads_in_words(count)}", partial(_memory, count)) for count in threads]
    products = Products(width, threads)
    run([*memory, *products.tasks(), *products.copies()])


def _memory(threads: int) -> dict[str, object]:
    return {"memory": memory_copies(threads, SECONDS)}


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
