"""Sweeps on a Ray cluster."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray

import sluice
from test_dask import SCENARIO, SWEEP, digest


@pytest.fixture
def cluster(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster with two workers."""
    # Workers import from the working directory, and the one of the tests has the package without its library.
    monkeypatch.chdir(tmp_path)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


# guarantee: B-57
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_that_loses_a_worker_has_the_rows_of_a_process_pool(cluster: None) -> None:
    sweep = sluice.Sweep(SCENARIO, SWEEP, seeds=8)
    expected = digest(sweep.run(progress=False).frame)
    executor = sluice.RayExecutor()
    victim = executor.submit(os.getpid).result()
    killer = threading.Timer(0.2, os.kill, (victim, signal.SIGKILL))
    killer.start()
    result = sweep.run(executor, progress=False)
    killer.join()
    assert (result.computed, digest(result.frame)) == (200, expected)


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_ends_its_worker_is_a_failed_row(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sluice.Sweep(SCENARIO, seeds=3)
    executor = sluice.RayExecutor()

    class Deadly(sluice.RayExecutor):
        """Ends the worker of the run with seed 1."""

        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
            if arguments[0].seeds == (1, 2):
                return executor.submit(os._exit, 1)
            return executor.submit(function, *arguments, **named)

    rows = sweep.run(Deadly(), retries=1, progress=False)
    assert rows.failed["seed"].tolist() == [1] and "lost 2 times" in rows.failed["error"][0]


@pytest.mark.filterwarnings("ignore")
def test_an_executor_that_is_shut_down_takes_nothing(cluster: None) -> None:
    with sluice.RayExecutor() as executor:
        future = executor.submit(divmod, 7, 3)
    assert future.result() == (2, 1)
    canceled = sluice.RayExecutor()
    late = canceled.submit(time.sleep, 1)
    canceled.shutdown(cancel_futures=True)
    assert late.cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(divmod, 7, 3)
    assert sluice.RayExecutor(num_cpus=2).submit(pow, 2, 5).result() == 32
