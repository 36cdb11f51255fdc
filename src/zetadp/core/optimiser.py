"""The optimisers of the server, each number as PyTorch's own would have it.

PyTorch's optimisers import its compiler when one is made, which takes longer than the rounds of a small head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Descent:
    """Plain steps with momentum, as `torch.optim.SGD` with ``dampening`` equal to ``momentum``.

    Attributes
    ----------
    state
        All that the next step depends on, by the names of PyTorch; empty before the first.
    """

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.state: dict[str, Tensor] = {}

    def step(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        """Move the weights."""
        if self.momentum and self.state:
            gradient = self.state["momentum_buffer"].mul_(self.momentum).add_(gradient, alpha=1 - self.momentum)
        elif self.momentum:
            gradient = self.state["momentum_buffer"] = gradient.clone()
        weights.add_(gradient, alpha=-rate)


class NAdam:
    """Adam with Nesterov momentum (Dozat 2016), as `torch.optim.NAdam`.

    Attributes
    ----------
    state
        All that the next step depends on, by the names of PyTorch; empty before the first.
    """

    betas = (0.9, 0.999)
    epsilon = 1e-8
    decay = 4e-3

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def step(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        """Move the weights."""
        if not self.state:
            self.state = {"step": torch.tensor(0.0), "mu_product": torch.tensor(1.0)}
            self.state |= {name: torch.zeros_like(weights) for name in ("exp_avg", "exp_avg_sq")}
        step, product, first, second = (self.state[name] for name in ("step", "mu_product", "exp_avg", "exp_avg_sq"))
        step += 1
        mu, following = (self._momentum(step.item() + ahead) for ahead in (0, 1))
        product *= mu
        first.lerp_(gradient, 1 - self.betas[0])
        second.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        size = second.div(1 - self.betas[1] ** step.item()).sqrt_().add_(self.epsilon)
        weights.addcdiv_(gradient, size, value=-rate * (1 - mu) / (1 - product.item()))
        weights.addcdiv_(first, size, value=-rate * following / (1 - product.item() * following))

    def _momentum(self, step: float) -> float:
        return self.betas[0] * float(1 - 0.5 * 0.96 ** (step * self.decay))
