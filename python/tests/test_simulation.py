"""Runs in virtual time, and their results."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import sluice
from conftest import DRIVE

DIRECTIONS = ("read", "write", "trim")


def same(column: Any, values: list[Any]) -> bool:
    """Whether a column has the values of the JSON; `None` there is NaN here."""
    found = column.tolist()
    return len(found) == len(values) and all(
        (a == b) or (b is None and math.isnan(a)) for a, b in zip(found, values, strict=True)
    )


def test_json_is_that_of_the_command_line(
    scenario: dict[str, Any], binary: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    parsed = sluice.Scenario(scenario)
    file = tmp_path / "drive.toml"
    file.write_text(parsed.text)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
         ({"seed": 7}, ["--seed", "7"]),
        ({"slowest": 3}, ["--slowest", "3"]),
    ]
    for options, arguments in cases:
        out = tmp_path / "out.json"
        subprocess.run(
            [binary, "sim", file, "--json", out, *arguments], check=True, stdout=subprocess.DEVNULL
        )
        assert sluice.run(file, **options).json() == out.read_text()


# guarantee: B-59
def test_a_frame_has_the_values_of_the_json(scenario: dict[str, Any]) -> None:
    result = sluice.run(scenario)
    whole = json.loads(result.json())[0]
    assert whole == result.to_dict()
    rows = [
        (job, name, job[name]) for job in whole["jobs"] for name in DIRECTIONS if job[name]["total_ios"]
    ]
    assert {(job["jobname"], name) for job, name, _ in rows} == {
        ("mixed", "read"), ("mixed", "write"), ("wörter", "read"), ("trims", "trim"),
    }  # fmt: skip
    jobs = result.jobs
    assert same(jobs["job"], [job["jobname"] for job, _, _ in rows])
    assert same(jobs["direction"], [name for _, name, _ in rows])
    assert same(jobs["group"], [job["groupid"] for job, _, _ in rows])
    assert same(jobs["error"], [job["error"] for job, _, _ in rows])
    plain = {
        "ios": "total_ios", "bytes": "io_bytes", "runtime_ms": "runtime", "iops": "iops",
        "bytes_per_sec": "bw_bytes",
    }  # fmt: skip
    for column, key in plain.items():
        assert same(jobs[column], [entry[key] for _, _, entry in rows]), column
    latencies = [
        (f"{kind}_{part}_ns", f"{kind}_ns", part)
        for kind in ("slat", "clat", "lat")
        for part in ("min", "max", "mean", "stddev")
    ]
    for column, kind, part in latencies:
        assert same(jobs[column], [entry[kind][part] for _, _, entry in rows]), column
    assert set(jobs.columns) == {"job", "direction", "group", "error", *plain, *(c for c, _, _ in latencies)}

    histograms = [(job["jobname"], name, entry["clat_ns"]) for job, name, entry in rows]
    histograms += [(job["jobname"], "sync", job["sync"]["lat_ns"]) for job in whole["jobs"]]
    expected = {
        (job, name, float(percentile), latency)
        for job, name, histogram in histograms
        for percentile, latency in histogram.get("percentile", {}).items()
    }
    columns = ("job", "direction", "percentile", "latency_ns")
    percentiles = [result.latencies[column].tolist() for column in columns]
    assert set(zip(*percentiles, strict=True)) == expected
    assert len(result.latencies) == len(expected)
    assert "sync" in result.latencies["direction"]

    [drive] = whole["sluice"]["drives"]
    seen = 0
    for job in drive["jobs_over_time"]:
        for name in DIRECTIONS:
            if name not in job:
                continue
            series = result.time_series.where(job=job["name"], direction=name)
            count = len(job["queue_depth"])
            seen += count
            assert same(series["queue_depth"], job["queue_depth"])
            for key, values in job[name].items():
                assert same(series[key], values), key
            assert same(series["start_ns"], [i * job["interval_ns"] for i in range(count)])
            lengths = [job["interval_ns"]] * (count - 1) + [job["last_interval_ns"]]
            assert same(series["length_ns"], lengths)
            assert set(series["path"]) == {drive["name"]}
    assert seen == len(result.time_series) > 0
    assert np.isnan(result.time_series["lat_p50_ns"]).any(), "an interval has no requests"

    over_time = drive["over_time"]
    for key in ("free_lines", "host_sectors_written", "gc_sectors_relocated", "lines_reclaimed",
                "write_amplification"):  # fmt: skip
        assert same(result.ftl[key], over_time[key]), key


# guarantee: B-59
def test_frames_of_several_paths_are_told_apart() -> None:
    two = {
        "drive": [
            {"name": "a", "preset": "femu-default", "geometry": {"chunks": 16}},
            {"name": "b", "preset": "femu-default", "geometry": {"chunks": 16}},
        ],
        "job": [
            {"name": "x", "drive": "a", "rw": "write", "bs": "4k", "size": "1m"},
            {"name": "x", "drive": "b", "rw": "write", "bs": "64k", "size": "1m"},
        ],
    }
    result = sluice.run(two)
    drives = result.to_dict()["sluice"]["drives"]
    for drive in drives:
        [job] = drive["jobs_over_time"]
        part = result.time_series.where(path=drive["name"])
        assert same(part["iops"], job["write"]["iops"])
        assert same(result.ftl.where(path=drive["name"])["free_lines"], drive["over_time"]["free_lines"])


def test_frames_convert_to_other_packages(scenario: dict[str, Any]) -> None:
    frame = sluice.run(scenario).jobs
    pandas, polars, arrow = frame.to_pandas(), frame.to_polars(), frame.to_arrow()
    for name in frame.columns:
        values = frame[name].tolist()
        assert pandas[name].tolist() == values
        assert polars[name].to_list() == values
        assert arrow[name].to_pylist() == values
    # Columns of numbers are views of the bytes that came from the run.
    assert not frame["ios"].flags.owndata
    with pytest.raises(KeyError, match="no column 'nope': job, direction"):
        frame["nope"]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = sluice.Frame({"a": np.zeros(1)})
    for method, module in [("to_pandas", "pandas"), ("to_polars", "polars"), ("to_arrow", "pyarrow")]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=f"{method}.. needs {module}: pip install {module}"):
            getattr(frame, method)()


def test_equal_seeds_have_equal_results(scenario: dict[str, Any]) -> None:
    first, again, other = (sluice.run(scenario, seed=seed) for seed in (1, 1, 2))
    assert first.json() == again.json() != other.json()
    assert (first.seed, other.seed) == (1, 2)


def test_job_files_are_run(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.fio"
    file.write_text("[reader]\nrw=randread\nbs=4k\nsize=1m\n")
    plain = {"drive": {"preset": "femu-default", "geometry": {"chunks": 16}}}
    for jobs in (file, str(file), [file]):
        assert sluice.run(plain, jobs=jobs).jobs["ios"].tolist() == [256]
    with pytest.raises(ValueError, match="no jobs|job"):
        sluice.run(plain)


def test_other_threads_run_during_a_run(scenario: dict[str, Any]) -> None:
    scenario["job"] = [{"name": "a", "rw": "randread", "bs": "4k", "time_based": 1, "runtime": "2s", "iodepth": 16}]
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    started = time.monotonic()
    sluice.run(scenario)
    took = time.monotonic() - started
    stop.set()
    thread.join()
    assert counted[0] > took * 100, f"{counted[0]} in {took} s"


def test_progress_is_reported_and_can_end_a_run(scenario: dict[str, Any]) -> None:
    seen: list[tuple[str, float]] = []
    sluice.run(scenario, progress=lambda stage, part: seen.append((stage, part)))
    assert seen[-1] == ("running", 1.0)

    def fail(stage: str, part: float) -> None:
        raise LookupError(stage)

    with pytest.raises(LookupError, match="running|preconditioning"):
        sluice.run(scenario, progress=fail)


def test_ctrl_c_ends_a_run(scenario: dict[str, Any]) -> None:
    scenario["job"] = [{"name": "a", "rw": "randread", "bs": "4k", "time_based": 1, "runtime": "10h"}]
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sluice.run(scenario)
    assert time.monotonic() - started < 10


def test_a_trace_is_read_as_a_frame(scenario: dict[str, Any], tmp_path: pathlib.Path) -> None:
    file = tmp_path / "run.json"
    result = sluice.run(scenario, trace=file)
    spans = sluice.read_trace(file)
    events = json.loads(file.read_text())
    assert len(spans) == sum(event["ph"] in ("X", "b") for event in events) > 100

    def nanoseconds(microseconds: float) -> int:
        return round(microseconds * 1000)

    begun = [event for event in events if event["ph"] in ("X", "b")]
    assert same(spans["name"], [event["name"] for event in begun])
    assert same(spans["category"], [event.get("cat", "") for event in begun])
    assert same(spans["start_ns"], [nanoseconds(event["ts"]) for event in begun])
    # A span that overlaps others ends with an event of its own.
    durations = [nanoseconds(event["dur"]) if event["ph"] == "X" else -1 for event in begun]
    open_spans: dict[tuple[str, str], list[int]] = {}
    row = 0
    for event in events:
        key = (event.get("cat", ""), event.get("id", ""))
        if event["ph"] in ("X", "b"):
            if event["ph"] == "b":
                open_spans.setdefault(key, []).append(row)
            row += 1
        elif event["ph"] == "e":
            start = open_spans[key].pop()
            durations[start] = nanoseconds(event["ts"]) - nanoseconds(begun[start]["ts"])
    assert same(spans["duration_ns"], durations)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert same(spans["process"], [processes[event["pid"]] for event in begun])
    assert result.json() == sluice.run(scenario).json(), "a trace does not change the results"
    file.write_text("[\n{\n]\n")
    with pytest.raises(ValueError, match="not a trace"):
        sluice.read_trace(file)
    with pytest.raises(FileNotFoundError):
        sluice.read_trace(tmp_path / "missing.json")


def test_faults_of_a_dictionary_are_in_the_result() -> None:
    scenario = {
        "drive": {**DRIVE["drive"], "name": "d"},
        "precondition": {"fill": "sequential"},
        "job": [{"name": "r", "rw": "randread", "bs": "4k", "size": "4m", "continue_on_error": "all"}],
        "fault": [{"at": "0s", "kind": "read-failure", "rate": 0.5, "duration": "1s"}],
    }
    result = sluice.run(sluice.Scenario(scenario))
    [fault] = json.loads(result.json())[0]["sluice"]["faults"]
    assert (fault["kind"], fault["drive"], fault["rate"]) == ("read-failure", "d", 0.5)
    assert 400 < fault["count"] < 624
