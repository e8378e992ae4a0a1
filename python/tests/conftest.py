"""Scenarios that several tests use."""

from __future__ import annotations

import copy
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import sluice

DRIVE: dict[str, Any] = {
    "drive": {"preset": "femu-default", "geometry": {"chunks": 16}, "data": "memory"},
}

# Two jobs in one group each, flushes, trims, and an interval without requests.
JOBS: dict[str, Any] = {
    **DRIVE,
    "title": "mixed",
    "precondition": {"fill": "sequential"},
    "job": [
        {"name": "mixed", "rw": "randrw", "bs": "4k", "size": "2m", "fsync": 8},
        {"name": "wörter", "rw": "randread", "bs": "8k", "size": "1m", "startdelay": "5ms"},
        {"name": "trims", "rw": "randtrim", "bs": "4k", "size": "512k"},
    ],
}


@pytest.fixture
def scenario() -> dict[str, Any]:
    """A drive with data, and jobs on it."""
    return copy.deepcopy(JOBS)


@pytest.fixture
def drive() -> Iterator[sluice.Drive]:
    """An open drive with data in memory and sectors of 4096 bytes."""
    with sluice.open(DRIVE) as opened:
        yield opened


@pytest.fixture
def binary() -> pathlib.Path:
    """The command line of the same build; scripts/python-test sets it."""
    return pathlib.Path(os.environ["SLUICE_BINARY"])
