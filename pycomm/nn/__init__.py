"""Small layers on NumPy arrays: enough to train a real model across ranks without a framework.

Every module has `forward(x) -> (output, context)` and `backward(context, grad) -> input
gradient`; see `pycomm.nn.module` for why the context is explicit.
"""

from pycomm.nn.activation import GELU, ReLU, erf
from pycomm.nn.arrays import Array, array_module
from pycomm.nn.conv import Conv2d
from pycomm.nn.linear import Embedding, Flatten, Linear
from pycomm.nn.loss import cross_entropy
from pycomm.nn.module import Buffer, Module, Parameter, Sequential
from pycomm.nn.norm import LayerNorm
from pycomm.nn.optim import SGD, Adam, Optimizer

__all__ = [
    "GELU",
    "SGD",
    "Adam",
    "Array",
    "Buffer",
    "Conv2d",
    "Embedding",
    "Flatten",
    "LayerNorm",
    "Linear",
    "Module",
    "Optimizer",
    "Parameter",
    "ReLU",
    "Sequential",
    "array_module",
    "cross_entropy",
    "erf",
]
