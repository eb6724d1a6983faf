# What stands in front of an operation's function looks like the function.
from __future__ import annotations

import copy
import gc
import inspect
import pickle
import pydoc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from core.test_quick_calls import QUICK, taken, words
from core.values import check

import pycomm
from pycomm import _core


@pytest.mark.parametrize("name", QUICK)
def test_looks_like_the_function(name: str) -> None:
    quick: Any = getattr(pycomm.Communicator, name)
    plain: Any = quick.__wrapped__
    assert inspect.isfunction(plain) and type(quick).__name__ == "QuickMethod"
    for attribute in ("__doc__", "__name__", "__qualname__", "__module__", "__annotations__"):
        assert getattr(quick, attribute) == getattr(plain, attribute)
    for attribute in ("__code__", "__defaults__", "__kwdefaults__", "__globals__"):
        assert getattr(quick, attribute) is getattr(plain, attribute)
    assert quick.__qualname__ == f"Communicator.{name}" and quick.__doc__
    assert repr(quick) == repr(plain)
    assert inspect.signature(quick) == inspect.signature(plain)
    assert inspect.getsource(quick) == inspect.getsource(plain)
    assert inspect.isroutine(quick) and callable(quick)
    shown = pydoc.plain(pydoc.render_doc(quick))
    assert name in shown and "timeout: " in shown
    assert name in pydoc.plain(pydoc.render_doc(pycomm.Communicator))
    assert pickle.loads(pickle.dumps(quick)) is quick
    assert copy.deepcopy(quick) is quick
    with pytest.raises(AttributeError, match="nothing"):
        _ = quick.nothing
    assert getattr(pycomm.Communicator, name) is quick


def test_bound_methods() -> None:
    comm: Any = pycomm.thread_world(1)[0]
    function: Any = pycomm.Communicator.all_reduce
    bound = comm.all_reduce
    assert bound.__self__ is comm and bound == comm.all_reduce and inspect.ismethod(bound)
    assert "x" in inspect.signature(bound).parameters
    assert "self" not in inspect.signature(bound).parameters
    assert repr(bound).startswith("<bound method Communicator.all_reduce of <pycomm.Comm")
    assert weakref.WeakMethod(bound)() == bound
    x, options = np.arange(3.0), {"op": "sum"}
    calls: list[Callable[[], Any]] = [
        lambda: bound(x),
        lambda: bound(x=x),
        lambda: function(comm, x),
        lambda: bound(*[x], **options),
    ]
    for call in calls:
        result, count = taken(call)
        assert result is x and count == 1
    result, count = taken(lambda: function(self=comm, x=x))
    assert result is x and count == 0
    wrongs: list[Callable[[], Any]] = [bound, partial(bound, x, x=x), partial(bound, x, y=1)]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"all_reduce\(\)"):
            wrong()
    with pytest.raises(TypeError, match=r"all_reduce\(\) missing"):
        function()
    with pytest.raises(AttributeError):
        function(object(), x)


def test_subclasses_override() -> None:
    class Doubling(pycomm.Communicator):
        def all_reduce(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            result = super().all_reduce(x, *args, **kwargs)
            result *= 2
            return result

    outer = pycomm.thread_world(1)[0]
    comm: Any = Doubling(outer._core)
    result, count = taken(lambda: comm.all_reduce(np.arange(3.0)))
    check(result, np.array([0.0, 2.0, 4.0]), "doubled")
    assert count == 1


def test_unfinished_and_wrong_objects() -> None:
    empty: Any = pycomm.Communicator.__new__(pycomm.Communicator)
    with pytest.raises(AttributeError):
        empty.all_reduce(np.zeros(1))
    del empty
    comm: Any = pycomm.thread_world(1)[0]
    for arguments in ((), (3,), (comm._core, comm._core)):
        with pytest.raises(TypeError):
            _core.CommunicatorBase(*arguments)
    with pytest.raises(TypeError, match="once"):
        comm.__init__(comm._core)
    with pytest.raises(ValueError, match="nothing"):
        _core.quick("nothing")
    reference = weakref.ref(comm)
    comm.cycle = comm
    del comm
    gc.collect()
    assert reference() is None


def test_references() -> None:
    comm: Any = pycomm.thread_world(1)[0]
    x, out, junk = np.arange(3.0), np.zeros(3), np.ones((2, 2))[:, 0]
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(x, out=out),
        lambda: comm.all_reduce(x, "band", out),
        lambda: comm.all_reduce(junk, timeout=99.5),
        lambda: comm.sendrecv(x, 0, out, 0, timeout=99.5),
        comm.barrier,
    ]
    objects = (x, out, junk, None, type(comm).all_reduce, comm)
    counts = [sys.getrefcount(item) for item in objects]

    def repeat(call: Callable[[], Any]) -> None:
        for _ in range(200):
            words(lambda _: call(), comm)

    for call in calls:
        repeat(call)
    for item, count in zip(objects, counts, strict=True):
        assert abs(sys.getrefcount(item) - count) < 50, item
