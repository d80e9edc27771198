"""Any rule as a `torch.optim.Optimizer`: two changed lines make an ordinary training loop a decentralized one."""

from dnasa.extras import needed_by

with needed_by("dnasa.optim"):
    from dnasa.optim.decentralized import Decentralized, Join
    from dnasa.optim.wrapping import local_gradients

__all__ = ["Decentralized", "Join", "local_gradients"]
