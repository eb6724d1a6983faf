#!/usr/bin/env python3
"""Checks that the code keeps the shape docs/architecture.md describes.

- C++ includes point one way: bindings -> comm -> {algorithms, exec, direct} -> {transport, reduce}
  -> store -> base.
- The environment is read in csrc/base/env.cpp only; CUDA and MPI are switched in the transport
  registry only.
- pycomm.nn and pycomm.parallel know the public communicator, never the extension module.
- Every source opens with its purpose and stays below 500 lines, unless LONG_FILES gives a reason.

`--self-test` plants one violation of each kind in a temporary tree and fails unless each is found.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# What a folder of csrc/ may include, itself apart.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "store": {"base"},
    "transport": {"base", "store"},
    "reduce": {"base"},
    "schedule": {"base"},
    "algorithms": {"base", "schedule"},
    "exec": {"base", "store", "transport", "reduce", "schedule"},
    "direct": {"base", "store", "transport", "reduce"},
    "comm": {
        "base", "store", "transport", "reduce", "schedule", "algorithms", "exec", "direct",
    },
    "bindings": {
        "base", "store", "transport", "reduce", "schedule", "algorithms", "exec", "direct", "comm",
    },
    "tools": {
        "base", "store", "transport", "reduce", "schedule", "algorithms", "exec", "direct", "comm",
    },
}  # fmt: skip

ENVIRONMENT_READER = "csrc/base/env.cpp"
# The registry chooses among the transports that a build has.
SWITCH_HOLDERS = {"csrc/transport/registry.h", "csrc/transport/registry.cpp"}

# Python packages that must work on any communicator with the public surface.
PURE_PACKAGES = ("pycomm/nn", "pycomm/parallel")

LINE_LIMIT = 500
# Path -> why the file is longer than LINE_LIMIT.
LONG_FILES: dict[str, str] = {
    "pycomm/communicator.py": "the public operations with their documentation, read as one page",
}

CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inc"}
SOURCE_FOLDERS = ("csrc", "pycomm", "tests", "examples", "bench", ".ci")

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(|\benviron\b")
SWITCH = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*(?:CUDA|NVCC|MPI(?:_|CH|\b))")
COMMENT = re.compile(r"//.*|/\*.*?\*/")


def without_strings(line: str) -> str:
    """The line without comments and string literals, whose words are not code."""
    return COMMENT.sub("", re.sub(r'"(?:[^"\\]|\\.)*"', '""', line))


def sources(root: Path, *folders: str) -> Iterator[tuple[str, Path]]:
    """Every C++ and Python file below `folders`, with its path relative to the root."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in CPP_SUFFIXES | {".py"} and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path


def check_includes(root: Path) -> Iterator[str]:
    """Yields includes that go up or sideways."""
    for name, path in sources(root, "csrc"):
        if path.suffix == ".py":
            continue
        folder = name.split("/")[1]
        if folder not in LAYERS:
            yield f"{name}: folder csrc/{folder} has no place in LAYERS of {Path(__file__).name}"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match[1]
            target_folder = target.split("/")[0]
            if target_folder not in LAYERS:
                yield f'{name}:{number}: include "{target}" is not relative to csrc/'
            elif target_folder != folder and target_folder not in LAYERS[folder]:
                yield f'{name}:{number}: {folder} must not include "{target}"'


def check_environment(root: Path) -> Iterator[str]:
    """Yields reads of the environment outside env.cpp."""
    for name, path in sources(root, "csrc"):
        if name == ENVIRONMENT_READER or path.suffix == ".py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if GETENV.search(without_strings(line)):
                yield f"{name}:{number}: only {ENVIRONMENT_READER} reads the environment"


def check_switches(root: Path) -> Iterator[str]:
    """Yields conditional compilation for CUDA or MPI outside the registry."""
    for name, path in sources(root, "csrc"):
        if name in SWITCH_HOLDERS or path.suffix == ".py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if SWITCH.match(COMMENT.sub("", line)):
                yield f"{name}:{number}: CUDA and MPI are switched in the transport registry only"


def imported_modules(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute dotted name) of everything a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{prefix}.{alias.name}" if prefix else alias.name


def check_python_layers(root: Path) -> Iterator[str]:
    """Yields imports of the extension module in packages that must not know it."""
    for name, path in sources(root, *PURE_PACKAGES):
        package = list(path.relative_to(root).parent.parts)
        for number, module in imported_modules(ast.parse(path.read_text()), package):
            if f"{module}.".startswith("pycomm._core."):
                yield f"{name}:{number}: {'.'.join(package)} must not import pycomm._core"
            elif package[1] == "nn" and f"{module}.".startswith("pycomm.parallel."):
                yield f"{name}:{number}: pycomm.nn must not import pycomm.parallel"


def check_openings(root: Path) -> Iterator[str]:
    """Yields files that do not open with a comment (C++) or docstring (Python)."""
    for name, path in sources(root, *SOURCE_FOLDERS):
        text = path.read_text().strip()
        if not text:
            continue
        if path.suffix == ".py":
            opens = ast.get_docstring(ast.parse(text)) is not None or text.startswith("#")
        else:
            opens = text.startswith(("//", "/*"))
        if not opens:
            yield f"{name}: does not open with its purpose"


def check_lengths(root: Path) -> Iterator[str]:
    """Yields files past the limit that have no reason, and reasons that are out of date."""
    lengths = {
        name: len(path.read_text().splitlines()) for name, path in sources(root, *SOURCE_FOLDERS)
    }
    for name, lines in lengths.items():
        if lines > LINE_LIMIT and name not in LONG_FILES:
            yield f"{name}: {lines} lines, more than {LINE_LIMIT}, without a reason in LONG_FILES"
    for name in LONG_FILES:
        if lengths.get(name, 0) <= LINE_LIMIT:
            yield f"{name}: no longer needs its entry in LONG_FILES"


CHECKS: list[Callable[[Path], Iterator[str]]] = [
    check_includes,
    check_environment,
    check_switches,
    check_python_layers,
    check_openings,
    check_lengths,
]


def violations(root: Path) -> list[str]:
    """Everything that is wrong below `root`."""
    return [text for check in CHECKS for text in check(root)]


# One clean tree, and per violation: path, content, a word of the message it must cause.
CLEAN: dict[str, str] = {
    "csrc/base/env.cpp": '// Reads.\n#include <cstdlib>\nauto* v = std::getenv("X");\n',
    "csrc/base/error.h": "// Errors.\n// getenv( is only a word here\n",
    "csrc/exec/run.h": '// Runs.\n#include "schedule/schedule.h"\n#include "base/error.h"\n',
    "csrc/schedule/schedule.h": '// Plain data.\n#include "base/error.h"\n',
    "csrc/transport/registry.cpp": "// Chooses.\n#ifdef PYCOMM_HAVE_CUDA\n#endif\n",
    "pycomm/nn/layers.py": '"""Layers."""\nimport numpy as np\n',
    "pycomm/parallel/mesh.py": '"""A mesh."""\nfrom ..communicator import Communicator\n',
}
LONG = '"""Long."""\n' + "x = 1\n" * LINE_LIMIT
PLANTED: list[tuple[str, str, str]] = [
    ("csrc/base/up.h", '// Up.\n#include "comm/communicator.h"\n', "base must not include"),
    ("csrc/algorithms/x.cpp", '// X.\n#include "exec/run.h"\n', "algorithms must not include"),
    ("csrc/reduce/x.cpp", '// X.\n#include "transport/transport.h"\n', "reduce must not include"),
    ("csrc/base/near.cpp", '// Near.\n#include "error.h"\n', "not relative to csrc/"),
    ("csrc/misc/x.h", "// X.\n", "no place in LAYERS"),
    ("csrc/comm/x.cpp", '// X.\nauto* v = getenv("X");\n', "reads the environment"),
    ("csrc/comm/y.cpp", "// Y.\nextern char** environ;\n", "reads the environment"),
    ("csrc/exec/x.cpp", "// X.\n#ifdef PYCOMM_HAVE_CUDA\n#endif\n", "switched in the"),
    ("csrc/exec/y.cpp", "// Y.\n#if defined(PYCOMM_MPI)\n#endif\n", "switched in the"),
    ("pycomm/nn/x.py", '"""X."""\nfrom pycomm import _core\n', "must not import pycomm._core"),
    ("pycomm/nn/y.py", '"""Y."""\nfrom .. import _core\n', "must not import pycomm._core"),
    ("pycomm/parallel/x.py", '"""X."""\nimport pycomm._core\n', "must not import pycomm._core"),
    ("pycomm/parallel/y.py", '"""Y."""\nfrom .._core import Work\n', "import pycomm._core"),
    ("pycomm/nn/z.py", '"""Z."""\nfrom ..parallel import Mesh\n', "import pycomm.parallel"),
    ("csrc/base/bare.h", "#pragma once\n", "does not open with its purpose"),
    ("pycomm/bare.py", "import os\n", "does not open with its purpose"),
    ("pycomm/long.py", LONG, "lines, more than"),
    *((name, '"""Short."""\n', "no longer needs") for name in LONG_FILES),
]


def write(root: Path, name: str, text: str) -> Path:
    """Writes one file of the self-test's tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def self_test() -> list[str]:
    """Returns the planted violations that were not found, and false alarms."""
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        clean = CLEAN | dict.fromkeys(LONG_FILES, LONG)
        for name, text in clean.items():
            write(root, name, text)
        failures += [f"false alarm: {text}" for text in violations(root)]
        for name, text, expected in PLANTED:
            path = write(root, name, text)
            found = violations(root)
            if len(found) != 1 or name not in found[0] or expected not in found[0]:
                failures.append(f"planted {name} ({expected!r}) gave {found}")
            if name in clean:
                write(root, name, clean[name])
            else:
                path.unlink()
    return failures


def main() -> int:
    """Runs the checks on this project, or the self-test."""
    if "--self-test" in sys.argv[1:]:
        problems = self_test()
        summary = f"self-test: {len(PLANTED)} planted violations"
    else:
        root = Path(__file__).resolve().parent.parent
        problems = violations(root)
        summary = f"{sum(1 for _ in sources(root, *SOURCE_FOLDERS))} sources"
    for text in problems:
        print(text)
    print(f"architecture: {summary}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
