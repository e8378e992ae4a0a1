"""Wrong arguments, and objects that are used after their end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sluice
from conftest import DRIVE

SECTOR = 4096
MIDDLE = 64 << 20


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d: d.read(100, SECTOR), "offset = 100: a multiple of the sector, 4096 bytes"),
        (lambda d: d.read(0, SECTOR + 1), "length = 4097: a multiple"),
        (lambda d: d.read(0, 0), "length = 0"),
        (lambda d: d.write(0, b"short"), "length = 5: a multiple"),
        (lambda d: d.write(0, bytes(SECTOR), at=1, length=SECTOR), "of data of 4096 bytes"),
        (lambda d: d.write(0, bytes(SECTOR), at=SECTOR + 1), "outside of a buffer"),
        (lambda d: d.write(0, d.buffer(SECTOR), length=2 * SECTOR), "the buffer is too small"),
        (lambda d: d.write(0, d.buffer(2 * SECTOR), at=7, length=SECTOR), "at = 7: a multiple of 512"),
        (lambda d: d.read_into(0, d.buffer(SECTOR), length=100), "length = 100: a multiple"),
        (lambda d: d.trim(1, SECTOR), "offset = 1"),
        (lambda d: d.buffer(0), "bytes = 0"),
        (lambda d: d.queue(depth=0), "depth = 0"),
        (lambda d: d.queue(wait="sleep"), "wait = \"sleep\""),
        (lambda d: d.queue().submit("erase"), "op = \"erase\""),
        (lambda d: d.queue().submit("read", 0), "needs a buffer"),
        (lambda d: d.queue().submit("trim", 0, d.buffer(SECTOR)), "has no buffer"),
        (lambda d: d.queue().submit("flush", SECTOR), "a flush is of all"),
        (lambda d: d.queue().submit("read", 0, d.buffer(SECTOR), fua=True), "fua = True"),
        (lambda d: d.queue().submit_many("read", [0] * 3, d.buffer(2 * SECTOR), length=SECTOR), "too small"),
        (lambda d: d.queue().wait(timeout=-1.0), "timeout"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(drive: sluice.Drive, call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(drive)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: d.read("0", SECTOR),
        lambda d: d.write(0, "text"),
        lambda d: d.write(0, None),
        lambda d: d.queue().submit("read", 0, bytearray(SECTOR)),
        lambda d: d.queue().submit_many("read", 5, d.buffer(SECTOR), length=SECTOR),
        lambda d: sluice.open(5),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_refused(drive: sluice.Drive, call: Any) -> None:
    with pytest.raises(TypeError):
        call(drive)


def test_negative_numbers_are_refused(drive: sluice.Drive) -> None:
    for call in (
        lambda: drive.read(-1, SECTOR),
        lambda: drive.read(0, -1),
        lambda: drive.queue().submit_many("read", np.array([-1]), drive.buffer(SECTOR), length=SECTOR),
    ):
        with pytest.raises((OverflowError, ValueError)):
            call()


def test_addresses_beyond_the_end_are_the_drives_error(drive: sluice.Drive) -> None:
    with pytest.raises(sluice.IoError, match="out of range") as raised:
        drive.read(drive.nbytes, SECTOR)
    assert raised.value.errno == 34 and raised.value.status & 0xFF == 0x80
    assert isinstance(raised.value, OSError)
    queue = drive.queue()
    tag = queue.submit("write", drive.nbytes, drive.buffer(SECTOR))
    [done] = queue.wait()
    assert (done.tag, done.ok) == (tag, False) and isinstance(done.error, sluice.IoError)
    with pytest.raises(sluice.IoError):
        done.check()


def test_options_that_a_device_does_not_have_are_refused() -> None:
    open_with: Any = sluice.open
    for option in ({"buffered": True}, {"shared": True}, {"sector_bytes": 512}):
        for what in ("null", DRIVE):
            with pytest.raises(ValueError, match="only files and block devices"):
                open_with(what, **option)
    null: list[dict[str, Any]] = [{"core": 0}, {"read_only": True}, {"timeout": 1.0}]
    emulated: list[dict[str, Any]] = [{"drive": "nope"}, {"depth": 65535}, {"queues": 0}]
    for device, refused in [("null", null), (DRIVE, emulated)]:
        for options in refused:
            with pytest.raises(sluice.OpenError) as invalid:
                open_with(device, **options)
            assert invalid.value.errno == 22
    with pytest.raises(ValueError, match="only a scenario has drives"):
        sluice.open("null", drive="a")
    with pytest.raises(sluice.OpenError) as raised:
        sluice.open("/nonexistent/file")
    assert raised.value.errno == 2


# guarantee: B-60
def test_a_closed_drive_is_an_exception() -> None:
    drive = sluice.open(DRIVE)
    queue, buffer = drive.queue(), drive.buffer(SECTOR)
    drive.read(0, SECTOR)
    drive.close()
    assert drive.closed and queue.closed
    drive.close()
    queue.close()
    for call in (
        lambda: drive.read(0, SECTOR),
        lambda: drive.write(0, buffer),
        lambda: drive.flush(),
        lambda: drive.buffer(SECTOR),
        lambda: drive.queue(),
        lambda: drive.stats(),
        lambda: queue.read_into(0, buffer),
        lambda: queue.submit("read", 0, buffer),
        lambda: queue.submit_many("read", [0], buffer, length=SECTOR),
        lambda: queue.poll(),
        lambda: queue.wait(),
        lambda: queue.outstanding,
        lambda: queue.stats(),
    ):
        with pytest.raises(sluice.ClosedError, match="is closed"):
            call()


# guarantee: B-60
def test_a_closed_queue_is_an_exception(drive: sluice.Drive) -> None:
    with drive.queue() as queue:
        queue.flush()
    with pytest.raises(sluice.ClosedError, match="the queue is closed"):
        queue.flush()
    drive.flush()


# guarantee: B-60
def test_memory_outlives_its_drive_and_its_buffer() -> None:
    drive = sluice.open(DRIVE)
    buffer = drive.buffer(1 << 20)
    view, array = memoryview(buffer), np.frombuffer(memoryview(buffer), np.uint8)
    array[:] = 7
    drive.close()
    del drive, buffer
    gc.collect()
    others = [sluice.open(DRIVE) for _ in range(3)]
    for other in others:
        other.buffer(1 << 20).fill(9)
    assert view[0] == view[-1] == 7 and (array == 7).all()
    array[:] = 8
    assert view[5] == 8


# guarantee: B-60
def test_a_dropped_buffer_is_not_reused_before_its_request_completes() -> None:
    slow = {"drive": {**DRIVE["drive"], "timing": {"read": "200ms"}}, "precondition": {"fill": "sequential"}}
    with sluice.open(slow) as drive:
        queue = drive.queue()
        for i in range(8):
            queue.submit("read", MIDDLE + i * SECTOR, drive.buffer(SECTOR))
        gc.collect()
        held = drive.stats()
        assert held["buffer_bytes"] - held["buffer_bytes_free"] == 8 * SECTOR
        later = [drive.buffer(SECTOR) for _ in range(64)]
        for buffer in later:
            buffer.fill(0xA5)
        assert len(queue.wait(8)) == 8
        assert all(bytes(buffer) == b"\xa5" * SECTOR for buffer in later)
        del later, buffer
        gc.collect()
        assert drive.stats()["buffer_bytes_free"] == held["buffer_bytes"]


# guarantee: B-60
def test_closing_waits_for_requests_whose_buffers_were_dropped() -> None:
    slow = {"drive": {**DRIVE["drive"], "timing": {"read": "100ms"}}, "precondition": {"fill": "sequential"}}
    for end in ("close", "drop"):
        drive = sluice.open(slow)
        queue = drive.queue()
        queue.submit("read", MIDDLE, drive.buffer(SECTOR))
        if end == "close":
            drive.close()
        del queue, drive
        gc.collect()


# guarantee: B-60
def test_a_drive_of_the_parent_process_is_an_exception(drive: sluice.Drive) -> None:
    queue, buffer = drive.queue(), drive.buffer(SECTOR)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            calls: list[Callable[[], object]] = [
                lambda: drive.read(0, SECTOR),
                lambda: queue.submit("read", 0, buffer),
                lambda: queue.poll(),
                lambda: queue.close(),
                lambda: drive.stats(),
                lambda: drive.close(),
            ]
            refused = 0
            for call in calls:
                try:
                    call()
                except sluice.ForkedError:
                    refused += 1
            # The memory is there still; dropping what the parent owns must not wait for its threads.
            bytes(buffer)
            del queue, buffer, calls, call
            gc.collect()
            with sluice.open(DRIVE) as own:
                own.write(0, bytes(SECTOR))
            status = 0 if refused == 6 else 2
        finally:
            os._exit(status)
    for _ in range(300):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail("the child waits for a thread that it does not have")
    assert os.waitstatus_to_exitcode(status) == 0
    drive.read(0, SECTOR)


# guarantee: B-60
def test_a_buffer_of_another_drive_is_an_exception(drive: sluice.Drive) -> None:
    with sluice.open(DRIVE) as other:
        with pytest.raises(ValueError, match="of another drive"):
            drive.write(0, other.buffer(SECTOR))
        with pytest.raises(ValueError, match="of another drive"):
            drive.queue().submit("read", 0, other.buffer(SECTOR))


# guarantee: B-60
def test_a_queue_is_for_one_thread_at_a_time() -> None:
    slow = {"drive": {**DRIVE["drive"], "timing": {"read": "500ms"}}, "precondition": {"fill": "sequential"}}
    with sluice.open(slow) as drive:
        queue = drive.queue()
        raised: list[BaseException] = []

        def read() -> None:
            try:
                queue.read(MIDDLE, SECTOR)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.1)
        with pytest.raises(sluice.InUseError, match="create one for each"):
            queue.flush()
        # Closing ends the call of the other thread.
        drive.close()
        thread.join()
        assert not raised or isinstance(raised[0], sluice.ClosedError)


def test_ctrl_c_ends_a_wait() -> None:
    slow = {"drive": {**DRIVE["drive"], "timing": {"read": "2s"}}, "precondition": {"fill": "sequential"}}
    with sluice.open(slow) as drive:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            drive.read(MIDDLE, SECTOR)
        assert time.monotonic() - started < 1.5
        # The request that was interrupted does not disturb the next.
        drive.write(0, b"n" * SECTOR)


# guarantee: B-60
def test_a_program_that_closes_nothing_ends() -> None:
    program = f"""
import sluice
drive = sluice.open({DRIVE!r})
queue = drive.queue()
buffer = drive.buffer(4096)
queue.submit("read", 0, buffer)
view = memoryview(buffer)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd="/")
