"""Optimizers: they change parameters in place from the gradients accumulated in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pycomm.errors import ArgumentError
from pycomm.nn.arrays import Array, array_module
from pycomm.nn.module import Module, Parameter


class Optimizer:
    """Base: holds the parameters, the learning rate and one set of state arrays per parameter.

    Args:
        parameters: A module, or its parameters. May be empty: a stage need not have any.
        lr: The learning rate; assign to `lr` to change it between steps.
        weight_decay: Added to the gradient as weight_decay * parameter.

    A parameter without gradient is passed by, and so is a frozen one.
    """

    state_names: tuple[str, ...] = ()

    def __init__(
        self, parameters: Module | Iterable[Parameter], lr: float, weight_decay: float = 0.0
    ) -> None:
        listed = parameters.parameters() if isinstance(parameters, Module) else list(parameters)
        if len({id(p) for p in listed}) != len(listed):
            raise ArgumentError("a parameter was given twice")
        if not lr >= 0 or not weight_decay >= 0:
            raise ArgumentError(f"lr and weight_decay must be >= 0, not {lr} and {weight_decay}")
        self.parameters = listed
        self.lr = lr
        self.weight_decay = weight_decay
        self.steps = 0
        self.state: list[dict[str, Array]] = [
            {name: array_module(p.data).zeros_like(p.data) for name in self.state_names}
            for p in listed
        ]

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        self.steps += 1
        for parameter, state in zip(self.parameters, self.state, strict=True):
            if parameter.grad is None or not parameter.trainable:
                continue
            grad = parameter.grad
            if self.weight_decay:
                grad = grad + self.weight_decay * parameter.data
            self.update(parameter.data, grad, state)

    def update(self, data: Array, grad: Array, state: dict[str, Array]) -> None:
        """Change one parameter's `data` and its `state` in place; `grad` must stay as it is."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Forget the gradients of every parameter."""
        for parameter in self.parameters:
            parameter.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and copies of the state arrays, in the parameters' order."""
        state = [{name: array.copy() for name, array in s.items()} for s in self.state]
        return {"steps": self.steps, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned.

        Raises:
            ArgumentError: the number of parameters, a name or a shape differs.
        """
        shapes = [{name: array.shape for name, array in s.items()} for s in state["state"]]
        if shapes != [{name: array.shape for name, array in s.items()} for s in self.state]:
            raise ArgumentError("the optimizer state belongs to other parameters")
        self.steps = int(state["steps"])
        for mine, loaded in zip(self.state, state["state"], strict=True):
            for name, array in mine.items():
                array[...] = loaded[name]


class SGD(Optimizer):
    """Gradient descent with momentum: v = momentum * v + grad; parameter -= lr * v.

    Args:
        parameters: A module, or its parameters.
        lr: The learning rate.
        momentum: How much of the last direction stays, in [0, 1).
        nesterov: Step along grad + momentum * v instead of v.
        weight_decay: Added to the gradient as weight_decay * parameter.
    """

    state_names = ("velocity",)

    def __init__(
        self,
        parameters: Module | Iterable[Parameter],
        lr: float,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ArgumentError(f"momentum must be in [0, 1), not {momentum}")
        super().__init__(parameters, lr, weight_decay)
        self.momentum = momentum
        self.nesterov = nesterov

    def update(self, data: Array, grad: Array, state: dict[str, Array]) -> None:
        """One step of momentum descent."""
        velocity = state["velocity"]
        velocity *= self.momentum
        velocity += grad
        direction = grad + self.momentum * velocity if self.nesterov else velocity
        data -= self.lr * direction


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with the bias-corrected moments of the paper's algorithm 1.

    Args:
        parameters: A module, or its parameters.
        lr: The learning rate.
        betas: How much of the first and the second moment stays, each in [0, 1).
        eps: Added to the root of the second moment.
        weight_decay: Added to the gradient as weight_decay * parameter.
    """

    state_names = ("first", "second")

    def __init__(
        self,
        parameters: Module | Iterable[Parameter],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ArgumentError(f"betas must be in [0, 1), not {betas}")
        super().__init__(parameters, lr, weight_decay)
        self.betas = betas
        self.eps = eps

    def update(self, data: Array, grad: Array, state: dict[str, Array]) -> None:
        """One step of Adam; the moments are corrected by the number of steps taken."""
        xp, (beta1, beta2) = array_module(data), self.betas
        first, second = state["first"], state["second"]
        first *= beta1
        first += (1 - beta1) * grad
        second *= beta2
        second += (1 - beta2) * (grad * grad)
        root = xp.sqrt(second / (1 - beta2**self.steps)) + self.eps
        data -= (self.lr / (1 - beta1**self.steps)) * first / root
