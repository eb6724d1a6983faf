"""Losses. A loss returns its value and its gradient, so that a backward pass can start from it."""

from __future__ import annotations

import numpy as np

from pycomm.errors import ArgumentError
from pycomm.nn.arrays import Array, array_module


def cross_entropy(
    logits: Array, labels: Array, divisor: float | None = None
) -> tuple[float, Array]:
    """Softmax cross-entropy: the sum over rows of -log softmax(logits)[label], divided by
    `divisor`.

    A row counts along axis 0; the loss of a row with several labels is their mean. With the
    default it is the mean. Parts of a batch, each called with the whole batch's row
    count as the divisor, have losses and gradients that add up to those of the whole batch.

    Args:
        logits: Scores, (rows, ..., classes), float.
        labels: Class numbers, (rows, ...), integers in [0, classes).
        divisor: What the sum is divided by; None means the number of rows (1 when there are
            none).

    Returns:
        The loss, summed in double precision, and its gradient, of the logits' shape and dtype.

    Raises:
        ArgumentError: shapes or types do not fit, or a label is out of range.
    """
    if labels.ndim == 0 or labels.shape != logits.shape[:-1] or labels.dtype.kind not in "iu":
        raise ArgumentError(
            f"logits of shape {logits.shape} need integer labels of shape {logits.shape[:-1]}, "
            f"not {labels.dtype} of shape {labels.shape}"
        )
    xp, classes = array_module(logits), logits.shape[-1]
    targets = labels.reshape(-1)
    if targets.size and (int(targets.min()) < 0 or int(targets.max()) >= classes):
        row = int(xp.argmax((targets < 0) | (targets >= classes)))
        raise ArgumentError(f"row {row} has label {targets[row]}, outside [0, {classes})")
    scores = logits.reshape(-1, classes)
    rows = xp.arange(scores.shape[0])
    shifted = scores - scores.max(axis=-1, keepdims=True)
    exponentials = xp.exp(shifted)
    total = exponentials.sum(axis=-1, keepdims=True)
    losses = xp.log(total[:, 0]) - shifted[rows, targets]
    if divisor is None:
        divisor = max(labels.shape[0], 1)
    divisor *= max(int(np.prod(labels.shape[1:])), 1)
    grad = exponentials / total
    grad[rows, targets] -= 1
    grad /= grad.dtype.type(divisor)
    return float(losses.sum(dtype=np.float64)) / divisor, grad.reshape(logits.shape)
