"""One torch thread: the tests' tensors are small, and pytest-xdist already uses every processor."""

import torch

torch.set_num_threads(1)
