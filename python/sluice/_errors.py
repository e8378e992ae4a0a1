"""Exceptions. All of them are an `Error`."""

from __future__ import annotations

import os


class Error(Exception):
    """Any failure that this package reports by a type of its own."""


class ScenarioError(Error, ValueError):
    """A scenario is invalid, or its file cannot be read."""

    file: str | os.PathLike[str] | None = None
    """Path of the file; `<scenario>` for a dictionary or a text."""
    line: int | None = None
    """Line of `Scenario.text`, from 1; `None` if the file cannot be read."""
    column: int | None = None
    """Column in characters, from 1."""
    help: str | None = None
    """What to do: the nearest key or value, and the allowed ones."""


class SimulationError(Error, RuntimeError):
    """A run cannot be executed or its files cannot be written."""


class OpenError(Error, OSError):
    """A drive, queue or buffer cannot be provided; `errno` says why."""


class IoError(Error, OSError):
    """The device failed a request; `errno` is that of the C library."""

    status: int = 0
    """NVMe status field without the phase tag (NVMe 1.2, section 4.6.1)."""


class QueueFullError(Error, RuntimeError):
    """The queue has no space for a request: reap completions first."""


class CloseError(Error, OSError):
    """A drive was not closed cleanly. As after a power cut, flushed data is safe."""


class ClosedError(Error, ValueError):
    """The drive or queue has been closed."""


class ForkedError(Error, RuntimeError):
    """The drive was opened before a fork(), and its threads are in the parent process."""


class InUseError(Error, RuntimeError):
    """Another thread is in a call on the queue."""


class StoreError(Error, RuntimeError):
    """A store of runs cannot be used: it is of another version, is no store, or cannot be written."""


class VersionError(Error, RuntimeError):
    """A worker of a sweep has another version of Sluice than the process that started the sweep."""


class LostWorkersError(Error, RuntimeError):
    """The executor of a sweep has no workers left, and cannot be made anew."""
