"""Sweeps on executors, with a store."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import numpy as np
import pytest

import sluice
from sluice import _sluice, _sweep

SCENARIO: dict[str, Any] = {
    "drive": {"preset": "femu-default", "geometry": {"chunks": 16}},
    "job": [
        {"name": "w", "rw": "randwrite", "bs": "4k", "size": "1m", "io_size": "256k", "norandommap": "1"}
    ],
}
DEPTHS: dict[str, list[Any]] = {"job.w.iodepth": [1, 4], "drive.ftl.over_provisioning": [0.1, 0.3]}


def pool(workers: int = 2) -> concurrent.futures.Executor:
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)


def columns(frame: sluice.Frame) -> dict[str, list[Any]]:
    """Returns the columns without the NaN, which differ from themselves."""
    return {name: [str(cell) for cell in frame[name]] for name in frame}


def test_a_sweep_has_a_row_for_each_point_and_its_parameters() -> None:
    result = sluice.Sweep(SCENARIO, DEPTHS, seeds=2).run(concurrent.futures.ThreadPoolExecutor(2))
    frame = result.frame
    assert (result.total, result.computed, len(frame)) == (8, 8, 8)
    assert frame["job.w.iodepth"].tolist() == [1, 1, 1, 1, 4, 4, 4, 4]
    assert frame["drive.ftl.over_provisioning"].tolist() == [0.1, 0.1, 0.3, 0.3] * 2
    assert frame["seed"].tolist() == [0, 1] * 4
    assert set(frame["status"]) == {"ok"} and (frame["requests"] == 64).all()
    alone = sluice.run({**SCENARIO, "job": [{**SCENARIO["job"][0], "iodepth": 4}]}, seed=1)
    rows = sluice.Sweep(SCENARIO, {"job.w.iodepth": [4]}, seeds=range(1, 2)).run(
        concurrent.futures.ThreadPoolExecutor(1)
    )
    assert rows.frame["clat_mean_ns"][0] == alone.jobs["clat_mean_ns"][0]


# guarantee: B-57
def test_every_executor_has_the_same_rows() -> None:
    sweep = sluice.Sweep(SCENARIO, DEPTHS, seeds=3)
    threads = sweep.run(concurrent.futures.ThreadPoolExecutor(3)).frame
    own = sweep.run(progress=False).frame
    with pool(1) as one:
        assert columns(sweep.run(one).frame) == columns(threads) == columns(own)


# guarantee: B-58
def test_a_second_run_computes_only_what_is_missing(tmp_path: pathlib.Path) -> None:
    store = tmp_path / "runs"
    executor = concurrent.futures.ThreadPoolExecutor(2)
    first = sluice.Sweep(SCENARIO, {"job.w.iodepth": [1, 4]}, seeds=2).run(executor, store=store)
    larger = sluice.Sweep(SCENARIO, {"job.w.iodepth": [1, 4, 8]}, seeds=2)
    second = larger.run(executor, store=store)
    assert (first.computed, second.computed) == (4, 2)
    assert columns(larger.run(executor).frame) == columns(second.frame)
    assert larger.verify(3, store, executor) == sluice.Verification(3, ())


# guarantee: B-66
def test_rows_are_equal_with_kept_states_and_a_damaged_one_fails_its_runs(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "states"
    filled = {**SCENARIO, "precondition": {"fill": "sequential", "states": str(tmp_path / "own")}}
    sweep = sluice.Sweep(filled, DEPTHS)
    executor = concurrent.futures.ThreadPoolExecutor(4)
    without = columns(sweep.run(executor, state_cache=False).frame)
    assert not folder.exists() and not (tmp_path / "own").exists()
    assert columns(sweep.run(executor, state_cache=folder, store=tmp_path / "runs").frame) == without
    files = sorted(folder.iterdir())
    assert len(files) == 2, "a state for each over-provisioning"
    before = [(file.read_bytes(), file.name) for file in files]
    assert columns(sweep.run(executor, state_cache=folder).frame) == without
    with pool() as processes:
        assert columns(sweep.run(processes, state_cache=str(folder)).frame) == without
    assert [(file.read_bytes(), file.name) for file in sorted(folder.iterdir())] == before
    assert not (tmp_path / "own").exists()
    assert columns(sweep.run(executor).frame) == without
    assert sorted(file.name for file in (tmp_path / "own").iterdir()) == [name for _, name in before]
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    assert sweep.verify(4, tmp_path / "runs", executor) == sluice.Verification(4, ())
    failed = sweep.run(executor, state_cache=folder).frame
    assert set(failed["status"]) == {"failed"}
    assert all(any(name in error for _, name in before) for error in failed["error"])


def test_the_command_line_shares_the_store(tmp_path: pathlib.Path) -> None:
    scenario = tmp_path / "writes.toml"
    scenario.write_text(sluice.Scenario(SCENARIO).text)
    sweep = tmp_path / "op.toml"
    sweep.write_text('scenario = "writes.toml"\nseeds = 2\nstore = "runs"\n[set]\n"job.w.iodepth" = [1, 4]\n')
    command = [os.environ["SLUICE_BINARY"], "sweep", str(sweep)]
    subprocess.run(command, check=True, capture_output=True)
    same = sluice.Sweep(scenario, {"job.w.iodepth": [1, 4]}, seeds=2)
    result = same.run(concurrent.futures.ThreadPoolExecutor(1), store=tmp_path / "runs")
    assert (result.total, result.computed) == (4, 0)


def test_a_stored_run_that_was_changed_is_found(tmp_path: pathlib.Path) -> None:
    executor = concurrent.futures.ThreadPoolExecutor(1)
    sweep = sluice.Sweep(SCENARIO, {"job.w.iodepth": [1, 4]})
    sweep.run(executor, store=tmp_path)
    file = next(path for path in tmp_path.iterdir() if path.suffix == ".json")
    file.write_text(file.read_text()[:-20])
    with pytest.warns(UserWarning, match=file.name):
        again = sweep.run(executor, store=tmp_path)
    assert again.computed == 1 and file.name in again.damaged[0]
    assert sweep.run(executor, store=tmp_path).computed == 0


def test_verify_names_the_run_that_differs(tmp_path: pathlib.Path) -> None:
    executor = concurrent.futures.ThreadPoolExecutor(1)
    sweep = sluice.Sweep(SCENARIO, {"job.w.iodepth": [1, 4]})
    plan = sweep._planned(tmp_path)
    wrong = json.loads(plan.compute(0))
    wrong["jobs"][0]["write"]["total_ios"] += 1
    plan.keep(0, json.dumps(wrong))
    plan.keep(1, plan.compute(1))
    assert sweep.verify(10, tmp_path, executor) == sluice.Verification(2, (plan.replay(0),))


def test_a_failing_run_is_a_row_with_its_error() -> None:
    scenario = {**SCENARIO, "job": [{**SCENARIO["job"][0], "size": "1g"}]}
    sweep = sluice.Sweep(scenario, {"drive.geometry.chunks": [16, 400]})
    result = sweep.run(concurrent.futures.ThreadPoolExecutor(2))
    assert result.frame["status"].tolist() == ["failed", "ok"]
    failed = result.failed
    assert len(failed) == 1 and failed["error"][0]
    assert "--set drive.geometry.chunks=16" in failed["replay"][0]


def test_invalid_sweeps_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(sluice.ScenarioError, match="over_provisioning") as unknown:
        sluice.Sweep(SCENARIO, {"drive.ftl.over_provisionin": [0.1]})
    assert 'parameter "drive.ftl.over_provisionin"' in str(unknown.value)
    with pytest.raises(sluice.ScenarioError):
        sluice.Sweep(SCENARIO, {"drive.ftl.over_provisioning": ["much"]})
    with pytest.raises(sluice.ScenarioError, match="no value"):
        sluice.Sweep(SCENARIO, {"job.w.iodepth": []})
    with pytest.raises(sluice.ScenarioError):
        sluice.Sweep(SCENARIO, {"job.w.iodepth": [1, 1]})
    with pytest.raises(ValueError, match="at most"):
        sluice.Sweep(SCENARIO, seeds=10**9)
    for seeds in (0, range(0, 10, 2), range(-1, 2)):
        with pytest.raises(ValueError, match="step of 1"):
            sluice.Sweep(SCENARIO, seeds=seeds)
    with pytest.raises(TypeError, match="no int"):
        sluice.Sweep(7)
    (tmp_path / "SLUICE_STORE").write_text("sluice sweep store 0\n")
    with pytest.raises(sluice.StoreError, match="sluice sweep store 0"):
        sluice.Sweep(SCENARIO, seeds=1).run(store=tmp_path)
    with pytest.raises(TypeError, match="Executor"):
        sluice.Sweep(SCENARIO, seeds=1).run(7)  # type: ignore[arg-type]


def test_a_worker_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sluice.Sweep(SCENARIO, seeds=1)
    task = sweep._task(0)._replace(program="sluice 0.0.0 other")
    with pytest.raises(sluice.VersionError, match="sluice 0.0.0 other"):
        _sweep._compute(task)
    monkeypatch.setattr(_sweep.Sweep, "_task", lambda self, index, states: task)
    with pytest.raises(sluice.VersionError):
        sweep.run(concurrent.futures.ThreadPoolExecutor(1))


class Lossy(concurrent.futures.ThreadPoolExecutor):
    """Loses the workers of some tasks, once or always."""

    def __init__(self, lost: dict[int, int], error: type[Exception]) -> None:
        super().__init__(1)
        self.lost, self.error, self.calls = lost, error, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        seed = args[0].seeds[0]
        self.calls += 1
        if self.lost.get(seed, 0) > 0:
            self.lost[seed] -= 1
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            future.set_exception(self.error("gone"))
            return future
        return super().submit(fn, *args, **kwargs)


KilledWorker = type("KilledWorker", (Exception,), {})


def test_lost_workers_are_retried_and_failures_are_not() -> None:
    sweep = sluice.Sweep(SCENARIO, seeds=4)
    expected = columns(sweep.run(concurrent.futures.ThreadPoolExecutor(1)).frame)
    executor = Lossy({1: 2}, KilledWorker)
    assert columns(sweep.run(executor).frame) == expected and executor.calls == 6
    failed = sweep.run(Lossy({2: 99}, KilledWorker), retries=1).failed
    assert failed["seed"].tolist() == [2] and "lost 2 times: gone" in failed["error"][0]
    failing = Lossy({}, KilledWorker)
    sluice.Sweep({**SCENARIO, "job": [{**SCENARIO["job"][0], "size": "1g"}]}, {"drive.geometry.chunks": [16, 400]}, seeds=1).run(failing)
    assert failing.calls == 2


def test_a_broken_executor_is_made_anew() -> None:
    sweep = sluice.Sweep(SCENARIO, seeds=5)
    expected = columns(sweep.run(concurrent.futures.ThreadPoolExecutor(1)).frame)
    lost = {3: 1}
    made = []

    def make() -> concurrent.futures.Executor:
        made.append(Lossy(lost, concurrent.futures.BrokenExecutor))
        return made[-1]

    assert columns(sweep.run(make).frame) == expected and len(made) == 2
    with pytest.raises(sluice.LostWorkersError):
        sweep.run(Lossy({3: 1}, concurrent.futures.BrokenExecutor))
    lost[3] = 99
    failed = sweep.run(make, retries=1).failed
    assert failed["seed"].tolist() == [3] and "lost 2 times" in failed["error"][0]


def test_killed_processes_change_no_row() -> None:
    sweep = sluice.Sweep(SCENARIO, {"job.w.iodepth": [1, 2, 4, 8]}, seeds=10)
    expected = columns(sweep.run(concurrent.futures.ThreadPoolExecutor(2)).frame)
    pools: list[concurrent.futures.ProcessPoolExecutor] = []
    others = set(multiprocessing.active_children())

    def make() -> concurrent.futures.Executor:
        made = concurrent.futures.ProcessPoolExecutor(
            2, mp_context=multiprocessing.get_context("spawn")
        )
        pools.append(made)
        if len(pools) == 1:
            future = made.submit(os.getpid)
            # The worker is killed after it has started, and before the sweep ends.
            os.kill(future.result(), signal.SIGKILL)
        return made

    assert columns(sweep.run(make).frame) == expected and len(pools) == 2
    deadline = time.monotonic() + 60
    while left := set(multiprocessing.active_children()) - others:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


class StuckPool(concurrent.futures.Executor):
    """A process pool that broke while it started a process: neither that one nor its futures ever end."""

    def __init__(self) -> None:
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(3_600,))
        process.start()
        self._broken = True
        self._processes = {process.pid: process}

    def submit(self, *_: Any, **__: Any) -> concurrent.futures.Future[Any]:
        return concurrent.futures.Future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def test_a_pool_that_is_stuck_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice._sweep._PATIENCE", 0.2)
    sweep = sluice.Sweep(SCENARIO, seeds=4)
    expected = columns(sweep.run(concurrent.futures.ThreadPoolExecutor(2)).frame)
    stuck = StuckPool()
    pools: list[concurrent.futures.Executor] = [stuck, concurrent.futures.ThreadPoolExecutor(2)]
    assert columns(sweep.run(lambda: pools.pop(0)).frame) == expected and not pools
    for process in stuck._processes.values():
        process.join(60)
        assert process.exitcode == -signal.SIGKILL


def test_ctrl_c_keeps_what_is_done(tmp_path: pathlib.Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        import sluice
        if __name__ == "__main__":
            scenario = {
                "drive": {"preset": "femu-default", "geometry": {"chunks": 16}},
                "job": [{"name": "w", "rw": "randwrite", "bs": "4k", "size": "1m", "io_size": "64m",
                         "norandommap": "1"}],
            }
            sweep = sluice.Sweep(scenario, seeds=200)
            print(sweep.run(store=sys.argv[1]).computed)
        """
    )
    script = tmp_path / "sweep.py"
    script.write_text(program)
    store = tmp_path / "runs"
    child = subprocess.Popen(
        [sys.executable, str(script), str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(store.glob("*.json"))) < 3:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode != 0 and b"KeyboardInterrupt" in errors
    kept = len(list(store.glob("*.json")))
    assert 3 <= kept < 200
    done = subprocess.run(
        [sys.executable, str(script), str(store)], capture_output=True, check=True, timeout=300
    )
    assert int(done.stdout) == 200 - kept


def test_values_that_are_no_numbers_are_texts() -> None:
    values: dict[str, list[Any]] = {"job.w.bs": ["4k", "8k"], "drive.ftl.hot_cold": [True, False]}
    frame = sluice.Sweep(SCENARIO, values).run(concurrent.futures.ThreadPoolExecutor(1)).frame
    assert frame["job.w.bs"].tolist() == ["4k", "4k", "8k", "8k"]
    assert frame["drive.ftl.hot_cold"].dtype == np.bool_


def test_a_task_is_plain_data() -> None:
    sweep = sluice.Sweep(SCENARIO, DEPTHS, seeds=2)
    task = sweep._task(3)
    assert task.settings == [("job.w.iodepth", [1]), ("drive.ftl.over_provisioning", [0.3])]
    assert (task.seeds, task.program) == ((1, 2), _sluice.program())
    end = _sweep._compute(task)
    assert end.error is None and end.json is not None
    assert json.loads(end.json) == json.loads(sweep._plan.compute(3))
