"""Sweeps on a Dask cluster."""

from __future__ import annotations

import hashlib
import os
import pathlib
import signal
import threading
import time
from typing import Any

import pytest
from distributed import Client, LocalCluster

import sluice

SCENARIO: dict[str, Any] = {
    "drive": {"preset": "femu-default", "geometry": {"chunks": 16}},
    "job": [
        {"name": "w", "rw": "randwrite", "bs": "4k", "size": "1m", "io_size": "256k", "norandommap": "1"}
    ],
}
SWEEP: dict[str, list[Any]] = {"job.w.iodepth": [1, 2, 4, 8, 16], "drive.ftl.over_provisioning": [0.1, 0.2, 0.3, 0.4, 0.5]}


def digest(frame: sluice.Frame) -> str:
    cells = [[str(cell) for cell in frame[name]] for name in frame]
    return hashlib.sha256(repr((frame.columns, cells)).encode()).hexdigest()


# guarantee: B-57
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_loses_a_worker_has_the_rows_of_a_process_pool(tmp_path: pathlib.Path) -> None:
    sweep = sluice.Sweep(SCENARIO, SWEEP, seeds=40)
    assert len(sweep) == 1_000
    expected = digest(sweep.run(progress=False).frame)
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        before = set(client.run(os.getpid).values())
        assert len(before) == 2
        done = threading.Event()

        def kill() -> None:
            # In the middle: some runs have ended, and others have not begun.
            time.sleep(0.5)
            done.set()
            os.kill(min(before), signal.SIGKILL)

        killer = threading.Timer(0.0, kill)
        killer.start()
        result = sweep.run(client.get_executor(), progress=False)
        assert done.is_set(), "the sweep has ended before the worker was killed"
        killer.join()
        assert (result.computed, digest(result.frame)) == (1_000, expected)
        client.wait_for_workers(2, timeout=30)
        # Other workers than those of a run compute it again.
        store = tmp_path / "runs"
        part = sluice.Sweep(SCENARIO, SWEEP)
        part.run(store=store, progress=False)
        again = part.verify(10, store, client.get_executor())
        assert (again.checked, again.different) == (10, ())
        assert set(client.run(os.getpid).values()) != before
