"""`Sweep`: a scenario at all combinations of values and seeds, on any `concurrent.futures.Executor`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from . import _sluice
from ._errors import Error, LostWorkersError, VersionError
from ._frame import Frame

_Path: TypeAlias = "str | os.PathLike[str]"
_Executors: TypeAlias = "Executor | Callable[[], Executor]"

_LOST = {
    "KilledWorker",
    "CommClosedError",
    "WorkerCrashedError",
    "NodeDiedError",
    "OwnerDiedError",
    "LocalRayletDiedError",
}
"""Names of the exceptions with which Dask and Ray say that a worker is gone."""


_PATIENCE = 5.0
"""Seconds after which the runs of a broken pool that have not ended are lost."""


class _Task(NamedTuple):
    """All that a worker needs for a run: text and values, which every executor can send."""

    program: str
    source: tuple[str | None, str]
    settings: list[tuple[str, list[Any]]]
    seeds: tuple[int, int] | None
    job_files: list[str]
    states: bool | str
    """Whether the scenario's folder of kept states is used, or another folder."""


class _End(NamedTuple):
    """The end of a run: its JSON, or its error."""

    json: str | None
    error: str | None


def _compute(task: _Task) -> _End:
    """Runs a task in a worker. An error of the run is its end: it is the same on every worker."""
    here = _sluice.program()
    if here != task.program:
        raise VersionError(
            f"a worker has {here}, and the sweep was started by {task.program}: install the same wheel"
        )
    try:
        plan = _sluice.SweepPlan(task.source, task.settings, task.seeds, list(task.job_files), None)
        return _End(plan.compute(0, task.states), None)
    except (Error, ValueError, OSError) as error:
        return _End(None, " ".join(str(error).split()))


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep that have ended."""

    frame: Frame
    """One row for each run, job and direction.

    The keys of the sweep; `run`, its index; `seed`, `job`, `direction`, `status` (`ok` or `failed`), `error`,
    `replay` (the command that repeats the run); and the measured values with their unit, NaN if there is none.
    """
    total: int
    """Number of runs."""
    computed: int
    """Number of runs that were computed now, and not taken from the store."""
    damaged: tuple[str, ...] = ()
    """Damaged files of the store, whose runs were computed again."""

    @property
    def failed(self) -> Frame:
        """The rows of failed runs."""
        return self.frame.where(status="failed")

    def __repr__(self) -> str:
        failed = len(set(self.failed["run"].tolist()))
        return f"<sluice.SweepResult of {self.total} runs, {self.computed} computed, {failed} failed>"


@dataclass(frozen=True)
class Verification:
    """The result of `Sweep.verify()`."""

    checked: int
    """Number of runs that were computed again."""
    different: tuple[str, ...]
    """Commands that repeat the runs whose results differ from the stored ones."""


@dataclass
class _Progress:
    """One line on standard error, or a bar of tqdm in a notebook."""

    total: int
    done: int = 0
    failed: int = 0
    begin: float = field(default_factory=time.monotonic)
    shown: float = 0.0
    bar: Any = None

    def start(self) -> _Progress:
        if "ipykernel" in sys.modules:
            try:
                from tqdm.notebook import tqdm

                self.bar = tqdm(total=self.total, unit="run")
            except ImportError:
                pass
        return self

    def update(self, failed: bool) -> None:
        self.done += 1
        self.failed += failed
        if self.bar is not None:
            self.bar.update()
            self.bar.set_postfix_str(f"{self.failed} failed")
        elif sys.stderr.isatty() and (time.monotonic() - self.shown > 0.1 or self.done == self.total):
            self.shown = time.monotonic()
            seconds = int(self.shown - self.begin)
            clock = f"{seconds // 60:02}:{seconds % 60:02}"
            print(
                f"\r{self.done}/{self.total} · {self.failed} failed · {clock}", end="", file=sys.stderr
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.shown:
            print(file=sys.stderr)


class Sweep:
    """A scenario at all combinations of values of its keys, and of seeds.

    `parameters` has the values of each key: `{"drive.ftl.over_provisioning": [0.07, 0.28], "job.bs": ["4k"]}`.
    Keys are those of `docs/sweep.md`. `seeds` is a number of seeds from 0 on, or a `range` with a step of 1: all
    points have the same ones, so that they can be compared in pairs. Without it every run has the scenario's.

    Raises `ScenarioError` for an unknown key, with the nearest names, and for a value that is invalid at all
    points. Values that exclude each other at some points only are failed rows.

    >>> import sluice
    >>> sweep = sluice.Sweep(
    ...     {"drive": {"preset": "femu-default", "geometry": {"chunks": 16}},
    ...      "job": [{"name": "w", "rw": "write", "bs": "4k", "size": "1m"}]},
    ...     {"job.w.iodepth": [1, 8]},
    ...     seeds=2,
    ... )
    >>> len(sweep)
    4
    """

    def __init__(
        self,
        scenario: Any,
        parameters: Mapping[str, Iterable[Any]] | None = None,
        *,
        seeds: int | range | None = None,
        jobs: _Path | Sequence[_Path] = (),
    ) -> None:
        self._source = _source(scenario)
        self._settings = [(key, list(values)) for key, values in (parameters or {}).items()]
        self._seeds = _seed_range(seeds)
        files = [jobs] if isinstance(jobs, (str, os.PathLike)) else list(jobs)
        self._job_files = [os.fspath(file) for file in files]
        self._plan = self._planned(None)

    def _planned(self, store: _Path | None) -> _sluice.SweepPlan:
        files: list[str | os.PathLike[str]] = list(self._job_files)
        return _sluice.SweepPlan(self._source, self._settings, self._seeds, files, store)

    def __len__(self) -> int:
        """Number of runs."""
        return len(self._plan)

    def _task(self, index: int, states: bool | str = True) -> _Task:
        places = self._plan.values(index)
        point = [(key, [values[at]]) for (key, values), at in zip(self._settings, places, strict=True)]
        seed = self._plan.seed(index)
        seeds = None if seed is None else (seed, seed + 1)
        return _Task(_sluice.program(), self._source, point, seeds, self._job_files, states)

    def run(
        self,
        executor: _Executors | None = None,
        *,
        store: _Path | None = None,
        state_cache: _Path | Literal[False] | None = None,
        retries: int = 2,
        progress: bool = True,
    ) -> SweepResult:
        """Runs all points that the store does not have.

        `executor` is any `concurrent.futures.Executor`: a process pool, Dask's `client.get_executor()`, or
        `RayExecutor`.
        Without it, the sweep has a process for each CPU. An executor whose workers are lost for good, as those of
        a process pool, can only be made anew if `executor` is a function that returns one.

        A run whose worker is lost is tried again, `retries` times; then it is a failed row. A run that fails
        by itself is not tried again. Neither ends the sweep.

        `store` is a folder of finished runs, which `sluice sweep` shares. Several sweeps may use one at once. After
        Ctrl-C, the next run of the sweep computes only what is missing.

        `state_cache` is a folder of states of preconditioned drives, from which runs start that need the same
        state; `sluice sweep --state-cache` shares it. Each worker opens it on its own machine. Without it, it is the
        scenario's `states`; with `False`, every run preconditions its drives. The rows do not depend on it.

        Raises `StoreError`, `VersionError` for a worker of another version, and `LostWorkersError`.
        """
        plan = self._planned(store)
        states: bool | str
        if state_cache is None or state_cache is False:
            states = state_cache is None
        else:
            states = os.path.abspath(state_cache)
        ends: dict[int, _End] = {}
        pending: list[int] = []
        damaged: list[str] = []
        shown = _Progress(len(plan))
        if progress:
            shown.start()
        for index in range(len(plan)):
            error = plan.error(index)
            json, problem = (None, None) if error is not None else plan.load(index)
            if problem is not None:
                damaged.append(problem)
                warnings.warn(f"{problem}: the run is computed again", stacklevel=2)
            if error is None and json is None:
                pending.append(index)
                continue
            ends[index] = _End(json, error)
            if progress:
                shown.update(_is_failed(plan, index, ends[index]))

        def ended(index: int, end: _End) -> None:
            if end.json is not None:
                plan.keep(index, end.json)
            ends[index] = end
            if progress:
                shown.update(_is_failed(plan, index, end))

        try:
            tasks = [(index, self._task(index, states)) for index in pending]
            _distribute(tasks, executor, retries, ended)
        finally:
            shown.close()
        return SweepResult(self._frame(plan, ends), len(plan), len(pending), tuple(damaged))

    def verify(
        self, count: int, store: _Path, executor: _Executors | None = None, *, seed: int = 0
    ) -> Verification:
        """Computes up to `count` stored runs again, which `seed` chooses, and compares them byte for byte.

        These runs use no kept states of drives.
        """
        plan = self._planned(store)
        stored = {}
        for index in range(len(plan)):
            json = plan.load(index)[0] if plan.error(index) is None else None
            if json is not None:
                stored[index] = json
        order = np.random.default_rng(seed).permutation(sorted(stored)).tolist()[:count]
        different = []

        def ended(index: int, end: _End) -> None:
            if end.json is None or not _sluice.same_results(stored[index], end.json):
                different.append(index)

        _distribute([(index, self._task(index, False)) for index in order], executor, 2, ended)
        return Verification(len(order), tuple(plan.replay(index) for index in sorted(different)))

    def _frame(self, plan: _sluice.SweepPlan, ends: dict[int, _End]) -> Frame:
        rows = plan.rows([(index, *ends[index]) for index in sorted(ends)])
        measured = Frame._from_bytes(rows).to_dict()
        places = {index: plan.values(index) for index in ends}
        columns = {}
        for at, (key, values) in enumerate(self._settings):
            cells = [values[places[int(run)][at]] for run in measured["run"]]
            columns[key] = _column(cells)
        return Frame({**columns, **measured})


def _column(cells: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Numbers stay numbers; all else is text."""
    if all(isinstance(cell, (bool, int, float, str)) for cell in cells):
        kinds = {type(cell) for cell in cells}
        if len(kinds) <= 1 or kinds <= {int, float}:
            return np.array(cells)
    return np.array([str(cell) for cell in cells])


def _is_failed(plan: _sluice.SweepPlan, index: int, end: _End) -> bool:
    rows = Frame._from_bytes(plan.rows([(index, *end)]))
    return bool((rows["status"] == "failed").any())


def _source(scenario: Any) -> tuple[str | None, str]:
    """Returns the path and the text of a scenario. It may be complete only with the parameters."""
    if isinstance(scenario, (str, os.PathLike)):
        path = os.fspath(scenario)
        if not (path.endswith(".toml") and "\n" not in path):
            return None, path
        with open(path, encoding="utf-8") as file:
            return path, file.read()
    if isinstance(scenario, dict):
        return None, _sluice.scenario_text(scenario)
    if isinstance(scenario, _sluice.Scenario):
        return (None if scenario.file is None else os.fspath(scenario.file)), scenario.text
    raise TypeError(f"a scenario is a dict, a path or TOML text, and no {type(scenario).__name__}")


def _seed_range(seeds: int | range | None) -> tuple[int, int] | None:
    if seeds is None:
        return None
    if isinstance(seeds, int):
        seeds = range(seeds)
    if seeds.step != 1 or not seeds or seeds.start < 0:
        raise ValueError(f"seeds are a number, or a range of at least one with a step of 1, and not {seeds}")
    return seeds.start, seeds.stop


def _own_pool() -> Executor:
    # A forked process would have the threads' locks, but not the threads.
    return ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))


def _end_broken(pool: Executor) -> None:
    """Ends a broken pool, and its processes.

    CPython's `ProcessPoolExecutor.submit` may start a process while another thread ends those of a broken pool. That
    process waits for work for ever, and so does the interpreter for the process when it exits.
    """
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()


def _is_lost(error: BaseException) -> bool:
    """Whether the worker is gone, and not the run wrong."""
    lost = (BrokenExecutor, CancelledError, ConnectionError, EOFError)
    return isinstance(error, lost) or type(error).__name__ in _LOST


def _distribute(
    tasks: list[tuple[int, _Task]],
    executor: _Executors | None,
    retries: int,
    ended: Callable[[int, _End], None],
) -> None:
    """Runs the tasks, and calls `ended` for each, in any order, on this thread."""
    if tasks:
        _Distribution(tasks, executor, retries, ended).run()


class _Distribution:
    """Tasks on an executor, which may lose its workers.

    A process pool that loses one worker is broken, and all of its runs with it. The runs that were in it are then
    tried one by one in a new pool, so that only the run that ends its worker is counted.
    """

    def __init__(
        self,
        tasks: list[tuple[int, _Task]],
        executor: _Executors | None,
        retries: int,
        ended: Callable[[int, _End], None],
    ) -> None:
        self._queue = deque(tasks)
        self._retries = retries
        self._ended = ended
        self._make = _own_pool if executor is None else executor if callable(executor) else None
        self._pool: Executor = executor if isinstance(executor, Executor) else self._new_pool()
        self._futures: dict[Future[_End], tuple[int, _Task]] = {}
        self._losses: dict[int, int] = {}
        self._suspects: set[int] = set()

    def _new_pool(self) -> Executor:
        if self._make is None:
            raise TypeError("executor is a concurrent.futures.Executor, or a function that returns one")
        return self._make()

    def run(self) -> None:
        try:
            while self._queue or self._futures:
                broken = self._submit() or self._collect()
                if broken is not None:
                    self._replace_pool(broken)
        finally:
            for future in self._futures:
                future.cancel()
            if self._make is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def _limit(self) -> int:
        """Number of runs that may be in the executor."""
        if self._suspects:
            return 1
        workers = getattr(self._pool, "_max_workers", None)
        return 2 * workers if isinstance(workers, int) else 1_000

    def _submit(self) -> BaseException | None:
        while self._queue and len(self._futures) < self._limit():
            try:
                future = self._pool.submit(_compute, self._queue[0][1])
            except BrokenExecutor as error:
                return error
            except Exception as error:
                # A process pool that breaks while it starts a process fails in any way.
                if getattr(self._pool, "_broken", False):
                    return BrokenExecutor(str(error))
                raise
            self._futures[future] = self._queue.popleft()
        return None

    def _collect(self) -> BaseException | None:
        """Waits for runs to end. Returns the error of a broken executor."""
        done: set[Future[_End]] = set()
        while not done:
            is_broken = bool(getattr(self._pool, "_broken", False))
            done, _ = wait(self._futures, timeout=_PATIENCE, return_when=FIRST_COMPLETED)
            if is_broken and not done:
                return BrokenExecutor("the pool is broken and says nothing of its runs")
        broken = None
        for future in done:
            index, task = self._futures.pop(future)
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                self._end(index, future.result())
            elif not _is_lost(error):
                raise error
            else:
                if isinstance(error, BrokenExecutor):
                    broken = error
                self._lose(index, task, error)
        return broken

    def _end(self, index: int, end: _End) -> None:
        self._suspects.discard(index)
        self._ended(index, end)

    def _lose(self, index: int, task: _Task, error: BaseException) -> None:
        """Queues a run again whose worker was lost, or ends it."""
        is_known = not isinstance(error, BrokenExecutor) or index in self._suspects
        self._losses[index] = self._losses.get(index, 0) + is_known
        if self._losses[index] > self._retries:
            text = f"its worker was lost {self._losses[index]} times: {error}"
            self._end(index, _End(None, " ".join(text.split()).rstrip(": ")))
            return
        if isinstance(error, BrokenExecutor):
            self._suspects.add(index)
        self._queue.appendleft((index, task))

    def _replace_pool(self, broken: BaseException) -> None:
        if self._make is None:
            raise LostWorkersError(
                f"the executor has lost its workers ({broken}): give a function that returns an executor, so "
                "that it can be made anew"
            ) from broken
        if self._futures:
            wait(self._futures, timeout=_PATIENCE)
        for future, (index, task) in self._futures.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                self._end(index, future.result())
            else:
                self._lose(index, task, broken)
        self._futures.clear()
        _end_broken(self._pool)
        self._pool = self._new_pool()
