"""One thread: tiny networks on a machine that other tests keep busy."""

import torch

torch.set_num_threads(1)
