"""Memory and descriptors of many drives."""

from __future__ import annotations

import gc
import os

import sluice

DRIVES = 10_000
SMALL = {"drive": {"preset": "nvme-null", "capacity": "1M"}}


def in_use() -> tuple[int, int, int]:
    """Bytes of resident memory, open descriptors and threads of this process."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def use(scenario: sluice.Scenario, index: int) -> None:
    drive = sluice.open(scenario)
    queue, buffer = drive.queue(), drive.buffer(4096)
    queue.submit("write", 0, buffer)
    drive.write(0, buffer)
    # Every other drive is closed by dropping it.
    if index % 2:
        drive.close()


# guarantee: B-60
def test_ten_thousand_drives_leave_nothing() -> None:
    scenario = sluice.Scenario(SMALL)
    for index in range(200):
        use(scenario, index)
    gc.collect()
    before = in_use()
    for index in range(DRIVES):
        use(scenario, index)
    gc.collect()
    after = in_use()
    assert after[1:] == before[1:]
    # A leak of one page per drive would be 40 MB.
    assert after[0] - before[0] < 20 << 20, f"{(after[0] - before[0]) / DRIVES} bytes per drive"
