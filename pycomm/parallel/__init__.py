"""Training across ranks: data parallel, pipeline parallel, and the two combined."""

from pycomm.parallel.data_parallel import DataParallel
from pycomm.parallel.mesh import Mesh
from pycomm.parallel.partition import split_by_cost, split_by_sizes, split_evenly
from pycomm.parallel.pipeline import Pipeline
from pycomm.parallel.schedules import (
    SCHEDULES,
    Action,
    ScheduleError,
    forward_only,
    gpipe,
    one_f_one_b,
    with_communication,
)
from pycomm.parallel.timeline import format_schedule, timeline
from pycomm.parallel.verify import check as check_schedule
from pycomm.parallel.verify import peak_in_flight

__all__ = [
    "SCHEDULES",
    "Action",
    "DataParallel",
    "Mesh",
    "Pipeline",
    "ScheduleError",
    "check_schedule",
    "format_schedule",
    "forward_only",
    "gpipe",
    "one_f_one_b",
    "peak_in_flight",
    "split_by_cost",
    "split_by_sizes",
    "split_evenly",
    "timeline",
    "with_communication",
]
