"""Parameters, buffers and the module base: an explicit forward and an explicit backward.

`forward(x)` returns the output and a *context*, everything its backward will need;
`backward(context, grad)` takes that context back. Modules keep nothing of a pass in themselves,
so any number of microbatches can be in flight, and their backwards may run in any order, which is
what a pipeline needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pycomm.errors import ArgumentError
from pycomm.nn.arrays import Array, array_module


class Parameter:
    """A trained array and its gradient.

    Attributes:
        data: The values. Optimizers change them in place.
        grad: The gradient accumulated since `zero_grad`, of the same shape and dtype, or None for
            zero.
        trainable: False freezes it: gradients are dropped, optimizers and all-reduces pass it by.
    """

    __slots__ = ("data", "grad", "trainable")

    def __init__(self, data: Array, trainable: bool = True) -> None:
        self.data = data
        self.grad: Array | None = None
        self.trainable = trainable

    def accumulate(self, grad: Array) -> None:
        """Add `grad` to the gradient. The array is kept when it is the first one: pass a fresh one.

        Raises:
            ArgumentError: the shape differs from the parameter's.
        """
        if not self.trainable:
            return
        if grad.shape != self.data.shape:
            raise ArgumentError(
                f"a gradient of shape {grad.shape} came for a parameter of shape {self.data.shape}"
            )
        if self.grad is None:
            self.grad = grad.astype(self.data.dtype, copy=False)
        else:
            self.grad += grad

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad = None

    def __repr__(self) -> str:
        return f"Parameter(shape={self.data.shape}, dtype={self.data.dtype})"


class Buffer:
    """An array that belongs to a module's state but is not trained, such as a running mean."""

    __slots__ = ("data",)

    def __init__(self, data: Array) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"Buffer(shape={self.data.shape}, dtype={self.data.dtype})"


class Module:
    """Base of all layers and models.

    A subclass stores its `Parameter`s, `Buffer`s and child modules as attributes (or in lists,
    tuples and dicts of them) and defines `forward` and `backward`. Names follow the attributes,
    as in `body.0.weight`.
    """

    training: bool = True

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Compute the output.

        Args:
            x: An array whose axis 0 counts rows, or a tuple of such arrays.

        Returns:
            The output, and the context that `backward` needs. The context belongs to the caller.
        """
        raise NotImplementedError

    def backward(self, context: Any, grad: Any) -> Any:
        """Accumulate the parameters' gradients and compute the input's.

        Args:
            context: What `forward` returned beside the output. It is used once.
            grad: The gradient with respect to the output, of its shape; for a tuple output a
                tuple, with None for entries that have no gradient.

        Returns:
            The gradient with respect to the input, None where the input has none (integers).
        """
        raise NotImplementedError

    def __call__(self, x: Any) -> Any:
        """Return the output alone, for inference."""
        return self.forward(x)[0]

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the direct child modules with their names, in order of definition."""
        for name, value in vars(self).items():
            yield from _members(name, value, Module)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all below it, each once, parents first."""
        seen: set[int] = set()

        def walk(name: str, module: Module) -> Iterator[tuple[str, Module]]:
            if id(module) in seen:
                return
            seen.add(id(module))
            yield name, module
            for child_name, child in module.named_children():
                yield from walk(_join(name, child_name), child)

        yield from walk(prefix, self)

    def own_members(self, kind: type[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the `Parameter`s or `Buffer`s held by this module itself, not by its children."""
        for name, value in vars(self).items():
            yield from _members(name, value, kind)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield every parameter once, under the first name it has, in order of definition."""
        yield from self._named(Parameter, prefix)

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Buffer]]:
        """Yield every buffer once, under the first name it has, in order of definition."""
        yield from self._named(Buffer, prefix)

    def parameters(self) -> list[Parameter]:
        """Return every parameter once, in order of definition."""
        return [parameter for _, parameter in self.named_parameters()]

    def zero_grad(self) -> None:
        """Forget the gradients of every parameter."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def train(self, mode: bool = True) -> None:
        """Set `training` on this module and all below it."""
        for _, module in self.named_modules():
            module.training = mode

    def eval(self) -> None:
        """The same as `train(False)`."""
        self.train(False)

    def state_dict(self, prefix: str = "") -> dict[str, Array]:
        """Return copies of all parameters and buffers by name."""
        return {name: holder.data.copy() for name, holder in self._state(prefix)}

    def load_state_dict(self, state: Mapping[str, Array], prefix: str = "") -> None:
        """Copy `state` into the parameters and buffers; nothing changes when it does not fit.

        Raises:
            ArgumentError: a name is missing or unknown, or a shape or dtype differs.
        """
        holders = dict(self._state(prefix))
        missing, unknown = (
            sorted(holders.keys() - state.keys()),
            sorted(state.keys() - holders.keys()),
        )
        if missing or unknown:
            raise ArgumentError(f"the state does not fit: missing {missing}, unknown {unknown}")
        for name, holder in holders.items():
            if (state[name].shape, state[name].dtype) != (holder.data.shape, holder.data.dtype):
                raise ArgumentError(
                    f"{name} is {holder.data.dtype}{list(holder.data.shape)}, the state holds "
                    f"{state[name].dtype}{list(state[name].shape)}"
                )
        for name, holder in holders.items():
            holder.data[...] = array_module(holder.data).asarray(state[name])

    def _named(self, kind: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for module_name, module in self.named_modules(prefix):
            for name, member in module.own_members(kind):
                if id(member) not in seen:
                    seen.add(id(member))
                    yield _join(module_name, name), member

    def _state(self, prefix: str) -> Iterator[tuple[str, Parameter | Buffer]]:
        yield from self.named_parameters(prefix)
        yield from self.named_buffers(prefix)


class Sequential(Module):
    """Layers in a row; the output of one is the input of the next. Names are their positions.

    Args:
        layers: The modules. One may occur several times and then shares its parameters.
        first_index: The name of the first layer. A pipeline stage keeps the numbers of the whole
            model.
    """

    def __init__(self, *layers: Module, first_index: int = 0) -> None:
        for layer in layers:
            if not isinstance(layer, Module):
                raise ArgumentError(f"Sequential takes modules, not {type(layer).__name__}")
        self.layers = list(layers)
        self.first_index = first_index

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the layers with their positions as names."""
        for index, layer in enumerate(self.layers, start=self.first_index):
            yield str(index), layer

    def forward(self, x: Any) -> tuple[Any, list[Any]]:
        """Run the layers in order; the context is the list of theirs."""
        contexts = []
        for layer in self.layers:
            x, context = layer.forward(x)
            contexts.append(context)
        return x, contexts

    def backward(self, context: list[Any], grad: Any) -> Any:
        """Run the layers in reverse, taking the contexts off the list."""
        for layer in reversed(self.layers):
            grad = layer.backward(context.pop(), grad)
            if no_gradient(grad):
                return None
        return grad

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Module:
        return self.layers[index]


def no_gradient(grad: Any) -> bool:
    """Whether `grad` is None, or a tuple of nothing but None."""
    return grad is None or (isinstance(grad, tuple) and all(g is None for g in grad))


def _members(name: str, value: Any, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield `value`, or what a list, tuple or dict holds, where it is of the wanted kind."""
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _members(f"{name}.{index}", item, kind)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _members(f"{name}.{key}", item, kind)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
