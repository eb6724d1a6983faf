"""Builds the extension module pycomm._core with CMake; everything else is in pyproject.toml.

The build folder build/cmake-<python> persists: a second `pip install` compiles only what changed.
The finished module also lands in pycomm/ beside the sources: commands that run from the root of a
clone (`python -m pycomm.bench ...`) import that folder, installed or not.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def check_tools() -> None:
    """Ends the build with the names of missing packages, before CMake fails with less to say."""
    if not sys.platform.startswith("linux"):
        sys.exit("pycomm runs on Linux only (it needs memfd, futex and pidfd).")
    compiler = os.environ.get("CXX", "")
    candidates = shlex.split(compiler)[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in candidates):
        sys.exit(
            f"pycomm needs a C++20 compiler and found none of: {', '.join(candidates)}.\n"
            "Install one, for example\n"
            "    apt-get install g++        (Debian, Ubuntu)\n"
            "    dnf install gcc-c++        (Fedora, RHEL)\n"
            "    conda install -c conda-forge cxx-compiler\n"
            "or name yours in the variable CXX."
        )
    if not shutil.which("cmake"):
        sys.exit("pycomm needs cmake and did not find it: pip install cmake ninja")
    if not (shutil.which("ninja") or shutil.which("make")):
        sys.exit("pycomm needs ninja or make and found neither: pip install ninja")


def discard_stale_cache(build: Path, generator: str) -> None:
    """Forgets a CMake cache whose tools are gone; the object files stay and are used again.

    pip's isolated builds bring a cmake and a ninja that vanish after the build.
    """
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        return
    entries = dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.MULTILINE))
    tools = [entries.get("CMAKE_COMMAND", ""), entries.get("CMAKE_MAKE_PROGRAM", "")]
    made_for = (entries.get("CMAKE_GENERATOR"), entries.get("CMAKE_HOME_DIRECTORY"))
    if made_for != (generator, str(ROOT)):
        shutil.rmtree(build)
    elif not all(Path(tool).exists() for tool in tools):
        cache.unlink()


def available_cores() -> int:
    """The cores this process may use, which a container can make fewer than the machine has."""
    return len(os.sched_getaffinity(0))


class FreshBuild(build):
    """Empties the folder the wheel is packed from, where files deleted since would survive."""

    def run(self) -> None:
        """Builds everything."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Runs CMake for the one extension and puts the module where setuptools expects it."""

    def build_extension(self, ext: Extension) -> None:
        """Builds `ext`, copies it to its target and beside the sources."""
        import pybind11

        check_tools()
        generator = "Ninja" if shutil.which("ninja") else "Unix Makefiles"
        build = ROOT / "build" / f"cmake-{sysconfig.get_config_var('SOABI')}"
        discard_stale_cache(build, generator)
        module_dir = build / "module"
        configure = [
            "cmake",
            f"-S{ROOT}",
            f"-B{build}",
            f"-G{generator}",
            "-DPYCOMM_PYTHON=ON",
            "-DPYCOMM_TESTS=OFF",
            "-DPYCOMM_WERROR=OFF",
            f"-DPYCOMM_MODULE_DIR={module_dir}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        self.run_step(configure)
        self.run_step(["cmake", "--build", str(build), "--parallel", str(available_cores())])

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        module = module_dir / target.name
        if not module.exists():
            sys.exit(f"CMake made no {module.name}: does csrc/bindings have sources?")
        for copy in {target, ROOT / "pycomm" / module.name}:
            replace_file(module, copy)

    def run_step(self, command: list[str]) -> None:
        """Runs one command; ends the build when it fails (its own output says why)."""
        print("+", shlex.join(command), flush=True)
        status = subprocess.run(command).returncode
        if status != 0:
            sys.exit(f"building pycomm failed: `{shlex.join(command)}` gave {status}; see above.")


def replace_file(source: Path, target: Path) -> None:
    """Copies by renaming, since a running process may have mapped the old file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, temporary)
    os.replace(temporary, target)


setup(
    ext_modules=[Extension("pycomm._core", sources=[])],
    cmdclass={"build": FreshBuild, "build_ext": CMakeBuild},
)
