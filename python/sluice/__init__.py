"""Sluice: a software-defined SSD and the user-space I/O stack that drives it.

A scenario names a drive and jobs. `run()` executes it in virtual time:

>>> import sluice
>>> scenario = sluice.Scenario({
...     "drive": {"preset": "femu-default", "geometry": {"chunks": 16}},
...     "precondition": {"fill": "sequential"},
...     "job": [{"name": "reader", "rw": "randread", "bs": "4k", "size": "4m"}],
... })
>>> result = sluice.run(scenario)
>>> result.jobs["ios"], result.jobs["clat_mean_ns"]
(array([1024], dtype=uint64), array([40000.]))

`open()` opens a drive of a scenario, a served drive, a real controller or a file in real time:

>>> with sluice.open({"drive": {"preset": "femu-default", "geometry": {"chunks": 16},
...                             "data": "memory"}}) as drive:
...     _ = drive.write(0, b"x" * 4096)
...     drive.flush()
...     drive.read(0, 4096)[:4]
b'xxxx'

Offsets and lengths are bytes, in whole sectors of the drive; times end in their unit.
"""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from . import _sluice
from ._errors import (
    CloseError,
    ClosedError,
    Error,
    ForkedError,
    InUseError,
    IoError,
    LostWorkersError,
    OpenError,
    QueueFullError,
    ScenarioError,
    SimulationError,
    StoreError,
    VersionError,
)
from ._frame import Frame
from ._ray import RayExecutor
from ._sluice import Buffer, Completion, Drive, Queue, Scenario
from ._sweep import Sweep, SweepResult, Verification

__all__ = [
    "Buffer",
    "CloseError",
    "ClosedError",
    "Completion",
    "Drive",
    "Error",
    "ForkedError",
    "Frame",
    "InUseError",
    "IoError",
    "LostWorkersError",
    "OpenError",
    "Queue",
    "QueueFullError",
    "RayExecutor",
    "Result",
    "Scenario",
    "ScenarioError",
    "SimulationError",
    "StoreError",
    "Sweep",
    "SweepResult",
    "Verification",
    "VersionError",
    "open",
    "read_trace",
    "run",
]

ScenarioLike: TypeAlias = "Scenario | dict[str, Any] | str | os.PathLike[str]"
Table: TypeAlias = Literal["jobs", "latencies", "time_series", "ftl"]
Path: TypeAlias = "str | os.PathLike[str]"


class Result:
    """Results of a run in virtual time."""

    def __init__(self, native: _sluice.SimResult) -> None:
        self._native = native
        self._frames: dict[str, Frame] = {}

    def json(self) -> str:
        """Returns what `sluice sim --json` writes for the scenario: a list of one result."""
        return self._native.json()

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as `docs/scenario.md` describes it: fio's format with a section `sluice`."""
        result: dict[str, Any] = json.loads(self.json())[0]
        return result

    def table(self) -> str:
        """Returns the table that `sluice sim` prints."""
        return self._native.table()

    def frame(self, name: Table = "jobs") -> Frame:
        """Returns a table by its name. Its values are those of the JSON."""
        if name not in self._frames:
            self._frames[name] = Frame._from_bytes(self._native.columns(name))
        return self._frames[name]

    @property
    def jobs(self) -> Frame:
        """One row for each job and direction that had requests.

        `job`, `direction`, `group`, `error`, `ios`, `bytes`, `runtime_ms`, `iops`, `bytes_per_sec`; and
        `min`, `max`, `mean`, `stddev` of the latencies `slat`, `clat` and `lat`: `clat_mean_ns`.
        """
        return self.frame("jobs")

    @property
    def latencies(self) -> Frame:
        """One row for each job, direction and percentile of its histogram.

        `job`, `direction` (`sync` for flushes), `percentile`, `latency_ns`: of completion, of flushes in all.
        """
        return self.frame("latencies")

    @property
    def time_series(self) -> Frame:
        """One row for each job, direction and interval.

        `path`, `job`, `direction`, `start_ns`, `length_ns`, `queue_depth`, `iops`, `bytes_per_sec`,
        `lat_p50_ns`, `lat_p99_ns`, `lat_max_ns`. Latencies of an interval without requests are NaN.
        """
        return self.frame("time_series")

    @property
    def ftl(self) -> Frame:
        """One row for each path with an FTL and interval.

        `path`, `start_ns`, `length_ns`, `free_lines`, `host_sectors_written`, `gc_sectors_relocated`,
        `lines_reclaimed`, `write_amplification` (NaN without writes).
        """
        return self.frame("ftl")

    @property
    def title(self) -> str:
        """Title of the scenario."""
        return self._native.title

    @property
    def seed(self) -> int:
        """Seed of all random numbers."""
        return self._native.seed

    @property
    def elapsed_ns(self) -> int:
        """Virtual time that the jobs took, in nanoseconds."""
        return self._native.elapsed_ns

    @property
    def notes(self) -> list[str]:
        """Caveats on the results."""
        return self._native.notes

    @property
    def failures(self) -> list[str]:
        """Failed requests, and sectors with wrong data. They are no exceptions."""
        return self._native.failures

    def __repr__(self) -> str:
        return f"<sluice.Result {self.title!r}, {self.elapsed_ns / 1e9:g} s>"


def _scenario(source: ScenarioLike) -> Scenario:
    return source if isinstance(source, Scenario) else Scenario(source)


def run(
    scenario: ScenarioLike,
    *,
    seed: int | None = None,
    jobs: Path | Sequence[Path] = (),
    slowest: int = 0,
    trace: Path | None = None,
    progress: Callable[[str, float], object] | None = None,
) -> Result:
    """Runs a scenario in virtual time. Equal scenarios and seeds have equal results.

    `seed` replaces the scenario's. `jobs` are fio job files, in addition to the scenario's own jobs.
    `slowest` is the number of requests to explain in the JSON. `trace` is a file for a Perfetto trace
    (`read_trace`). `progress` is called with the stage, `"preconditioning"` or `"running"`, and its
    progress from 0 to 1, at most 20 times a second.

    Other threads run meanwhile. Ctrl-C, and an exception of `progress`, end the run.

    Raises `ScenarioError`, `ValueError` for jobs that cannot run, `SimulationError`, `OSError`.
    """
    files = [jobs] if isinstance(jobs, (str, os.PathLike)) else list(jobs)
    native = _sluice.run(
        _scenario(scenario),
        seed=seed,
        job_files=files,
        slowest=slowest,
        trace=trace,
        progress=progress,
    )
    return Result(native)


_drives: weakref.WeakSet[Drive] = weakref.WeakSet()


@atexit.register
def _close_drives() -> None:
    """Closes the drives that are still open, so that their images are complete."""
    for drive in list(_drives):
        try:
            drive.close()
        except ForkedError:
            pass


def open(
    what: ScenarioLike,
    *,
    drive: str | None = None,
    depth: int | None = None,
    queues: int | None = None,
    read_only: bool = False,
    buffered: bool = False,
    shared: bool = False,
    sector_bytes: int | None = None,
    timeout: float | None = None,
    core: int | None = None,
    log: int | str | None = None,
) -> Drive:
    """Opens a drive in real time.

    `what` is a scenario, its dictionary or its path (`"drive.toml"`, `"drive.toml#NAME"`), a served drive
    (`"sluice:///run/x.sock#PARTITION"`), a controller (`"vfio:0000:01:00.0"`), a file or block device, or
    `"null:64G"`. `drive` selects one of several drives or paths of a scenario.

    `depth` is the minimum number of outstanding requests of each queue, and `queues` the minimum number of
    queues. `timeout` limits answers of a server or controller, in seconds. `core` is the index of the CPU
    for the drive's thread. `log` gives a scenario's drive a log for small writes in its persistent memory
    region, of this size (bytes, or a text such as `"16M"`), or in the whole region (`"pmr"`). For files and block devices only: `read_only`, `buffered` (use the page cache),
    `shared` (allow a device that is in use), `sector_bytes`.

    Raises `ScenarioError`, `OpenError`, and `ValueError` for options that the device does not have.
    """
    source = Scenario(what) if isinstance(what, dict) else what
    opened = _sluice.open(
        source if isinstance(source, Scenario) else os.fspath(source),
        drive=drive,
        depth=depth,
        queues=queues,
        read_only=read_only,
        buffered=buffered,
        shared=shared,
        sector_bytes=sector_bytes,
        timeout=timeout,
        core=core,
        log=log,
    )
    _drives.add(opened)
    return opened


def read_trace(path: Path) -> Frame:
    """Reads the spans of a trace that `run(trace=...)` or `sluice sim --trace` has written.

    `process`, `track`, `category`, `name`, `start_ns`, `duration_ns`.
    """
    return Frame._from_bytes(_sluice.read_trace(path))
