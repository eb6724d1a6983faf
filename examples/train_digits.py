"""Trains a small convolutional network on scanned handwritten digits, over any number of ranks.

    python examples/train_digits.py                          one process
    mpirun -n 4 python examples/train_digits.py --dp 4       four copies, each a share of the rows
    mpirun -n 4 python examples/train_digits.py --pp 4       one copy, its layers on four ranks
    python -m pycomm.run -n 4 examples/train_digits.py --dp 2 --pp 2        both, without MPI

Whatever the layout, a step sees the same batch and the same parameters, so the losses are the
same up to rounding. The data (1797 images of 8 x 8 pixels) come with scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

# One BLAS thread per rank: the matrices are small, and there may be more ranks than cores.
# It must be said before NumPy is loaded.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import pycomm  # noqa: E402
from pycomm import nn  # noqa: E402
from pycomm.parallel import SCHEDULES, Mesh, Pipeline  # noqa: E402

TEST_SHARE = 0.2


def main() -> int:
    options = parse_arguments()
    comm = pycomm.init(timeout=options.timeout)
    try:
        mesh = Mesh(comm, dp=options.dp, pp=options.pp)
        model = make_model(np.random.default_rng(options.seed), options.dtype)
        pipe = mesh.pipeline(
            model,
            schedule=options.schedule,
            microbatches=options.microbatches,
            costs=multiply_adds(model),
        )
    except pycomm.ArgumentError as error:  # the same on every rank
        if comm.rank == 0:
            print(f"train_digits: {error}", file=sys.stderr)
        return 2
    images, labels, test_images, test_labels = load_data(options.seed, options.dtype)
    report: dict[str, Any] = {
        key: getattr(options, key)
        for key in ("seed", "dtype", "schedule", "microbatches", "epochs", "batch", "lr")
    }
    report |= {"dp": mesh.dp, "pp": mesh.pp, "ranks": comm.size}
    report |= print_layout(mesh, pipe)
    report |= train(mesh, pipe, images, labels, options)
    report["test_accuracy"] = accuracy(mesh, pipe, test_images, test_labels)
    if comm.rank == 0:
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
        if options.plot:
            plot(report["loss"], options.plot)
        print(f"test accuracy {report['test_accuracy']:.4f}", flush=True)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small network on handwritten digits, over dp x pp ranks."
    )
    parser.add_argument("--dp", type=int, help="copies of the model (default: ranks / pp)")
    parser.add_argument("--pp", type=int, help="stages of a copy (default: ranks / dp, or 1)")
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--microbatches", type=int, default=4, help="parts of a copy's batch")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="rows of a step over all copies")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate at the start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a peer may take")
    parser.add_argument("--json", type=Path, metavar="F", help="write losses and figures to F")
    parser.add_argument("--plot", type=Path, metavar="F.png", help="draw the losses into F.png")
    parser.add_argument("--print-schedule", action="store_true")
    options = parser.parse_args()
    for name in ("epochs", "batch", "microbatches"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.seed < 0:
        parser.error("--seed must be 0 or more")
    for file in (options.json, options.plot):
        if file is not None and not os.access(file.parent, os.W_OK):
            parser.error(f"{file} cannot be written: there is no writable folder {file.parent}")
    return options


def make_model(rng: np.random.Generator, dtype: str) -> nn.Sequential:
    """Build the whole model from one stream, on every rank; a pipeline keeps its own part."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, rng=rng, dtype=dtype),
        nn.GELU("tanh"),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, rng=rng, dtype=dtype),
        nn.GELU("tanh"),
        nn.Conv2d(32, 32, 3, padding=1, rng=rng, dtype=dtype),
        nn.GELU("tanh"),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64, rng=rng, dtype=dtype),
        nn.LayerNorm(64, dtype=dtype),
        nn.GELU("tanh"),
        nn.Linear(64, 10, rng=rng, dtype=dtype),
    )


def multiply_adds(model: nn.Sequential) -> list[float]:
    """Estimate each layer's cost per image: multiplications by weights, and a few per output."""
    costs = []
    x = np.zeros((1, 1, 8, 8), model.parameters()[0].data.dtype)
    for layer in model.layers:
        x = layer(x)
        weights = sum(p.data.size for p in layer.parameters())
        positions = x.size / x.shape[1]
        costs.append(weights * positions + 40.0 * x.size)
    return costs


def load_data(seed: int, dtype: str) -> tuple[nn.Array, nn.Array, nn.Array, nn.Array]:
    """Return images (rows, 1, 8, 8) and labels to train and to test with, split by the seed."""
    digits = load_digits()
    images = (digits.images[:, None] / 8 - 1).astype(dtype)
    order = np.random.default_rng([seed, 1]).permutation(len(images))
    test, training = np.split(order, [round(TEST_SHARE * len(images))])
    labels = digits.target
    return images[training], labels[training], images[test], labels[test]


def shifted(images: nn.Array, rng: np.random.Generator) -> nn.Array:
    """Return the images, each moved by up to a pixel in both directions, so that they vary."""
    rows, _, height, width = images.shape
    padded = np.pad(images[:, 0], ((0, 0), (1, 1), (1, 1)), constant_values=-1)
    down, right = rng.integers(0, 3, (2, rows, 1, 1))
    taken: nn.Array = padded[
        np.arange(rows)[:, None, None],
        down + np.arange(height)[:, None],
        right + np.arange(width),
    ]
    return taken[:, None]


def print_layout(mesh: Mesh, pipe: Pipeline) -> dict[str, Any]:
    """Print what each stage holds, and return it."""
    sizes = mesh.comm.all_gather_object(pipe.parameter_bytes())
    stages = [sizes[mesh.rank_of(0, stage)] for stage in range(mesh.pp)]
    if mesh.comm.rank == 0:
        print(f"{mesh.comm.size} ranks: dp {mesh.dp} x pp {mesh.pp}")
        for stage, size in enumerate(stages):
            part = pipe.partition[stage]
            print(f"stage {stage}: layers {part.start} to {part.stop - 1}, {size} parameter bytes")
        sys.stdout.flush()
    return {"parameter_bytes": stages}


def train(
    mesh: Mesh, pipe: Pipeline, images: nn.Array, labels: nn.Array, options: argparse.Namespace
) -> dict[str, Any]:
    """Train for all epochs, with progress, and return the losses and the time they took."""
    if options.print_schedule and mesh.replica == 0:
        pipe.print_schedule()
    optimizer = nn.SGD(pipe.parameters(), options.lr, momentum=0.9, weight_decay=5e-4)
    shuffle = np.random.default_rng([options.seed, 2])
    steps = math.ceil(len(images) / options.batch)
    losses: list[float] = []
    started, communicated = time.perf_counter(), pipe.comm_seconds
    for epoch in range(options.epochs):
        began, total = time.perf_counter(), 0.0
        order = shuffle.permutation(len(images))
        moved = shifted(images, shuffle)
        for step in range(steps):
            batch = order[step * options.batch : (step + 1) * options.batch]
            mine = batch[mesh.rows(len(batch))]
            progress = (epoch * steps + step) / (options.epochs * steps)
            optimizer.lr = options.lr * 0.5 * (1 + math.cos(math.pi * progress))
            optimizer.zero_grad()
            total += pipe.train_step(moved[mine], labels[mine]) * len(batch)
            optimizer.step()
        losses.append(total / len(images))
        if mesh.comm.rank == 0:
            speed = len(images) / (time.perf_counter() - began)
            print(
                f"epoch {epoch + 1:>3}/{options.epochs}  loss {losses[-1]:.6f}  {speed:,.0f} "
                "images/s",
                flush=True,
            )
    seconds = time.perf_counter() - started
    shares = mesh.comm.all_gather_object((pipe.comm_seconds - communicated) / seconds)
    if mesh.comm.rank == 0:
        print(
            f"{options.epochs} epochs in {seconds:.1f} s; share of time communicating, waiting "
            f"included: {np.mean(shares):.0%} (ranks: {', '.join(f'{s:.0%}' for s in shares)})"
        )
    return {
        "loss": losses,
        "seconds": seconds,
        "images_per_second": options.epochs * len(images) / seconds,
        "communication_share": shares,
    }


def accuracy(mesh: Mesh, pipe: Pipeline, images: nn.Array, labels: nn.Array) -> float:
    """Return the share of images classified right; each replica takes a part of them."""
    rows = mesh.rows(len(images))
    scores = pipe.infer(images[rows])
    right = 0 if scores is None else int((scores.argmax(axis=1) == labels[rows]).sum())
    counts = np.array([right])
    mesh.comm.all_reduce(counts, op="sum")
    return int(counts[0]) / len(images)


def plot(losses: list[float], file: Path) -> None:
    """Draw the loss per epoch on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.plot(range(1, len(losses) + 1), losses)
    pyplot.yscale("log")
    pyplot.xlabel("epoch")
    pyplot.ylabel("mean training loss")
    pyplot.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
