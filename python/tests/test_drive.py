"""Drives in real time: data, queues, buffers, counters."""

from __future__ import annotations

import errno
import pathlib
import random
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


def test_data_is_read_as_written(drive: sluice.Drive) -> None:
    assert (drive.kind, drive.sector_bytes) == ("drive", SECTOR)
    # Other memory than a buffer is copied in pieces of 4 MiB.
    data = random.Random(1).randbytes(9 << 20)
    assert drive.write(SECTOR, data) == len(data)
    drive.flush()
    assert drive.read(SECTOR, len(data)) == data
    drive.trim(SECTOR, 2 * SECTOR)
    assert drive.read(SECTOR, 3 * SECTOR) == bytes(2 * SECTOR) + data[2 * SECTOR : 3 * SECTOR]


def test_memory_of_any_type_is_written_and_read(drive: sluice.Drive) -> None:
    numbers = np.arange(SECTOR // 8, dtype=np.uint64)
    drive.write(0, numbers)
    assert drive.read(0, SECTOR) == numbers.tobytes()
    into = np.zeros(SECTOR // 8, dtype=np.uint64)
    assert drive.read_into(0, into) == SECTOR
    assert (into == numbers).all()
    data = bytearray(b"abcd" * SECTOR)
    drive.write(SECTOR, data, at=2, length=SECTOR, fua=True)
    assert drive.read(SECTOR, SECTOR) == b"cdab" * (SECTOR // 4)
    with pytest.raises(ValueError, match="writable"):
        drive.read_into(0, bytes(SECTOR))
    with pytest.raises(ValueError, match="only a sluice.Buffer has parts"):
        drive.read_into(0, bytearray(2 * SECTOR), length=SECTOR)


def test_the_drive_accesses_a_buffer_directly(drive: sluice.Drive) -> None:
    buffer = drive.buffer(4 * SECTOR)
    array = np.frombuffer(memoryview(buffer), np.uint8)
    assert len(buffer) == buffer.nbytes == array.nbytes == 4 * SECTOR
    assert not array.any(), "a new buffer is zeroed"
    array[:SECTOR] = 1
    array[SECTOR:] = 2
    drive.write(0, buffer)
    buffer.fill(0)
    assert not array.any(), "the array is the buffer's memory"
    drive.read_into(0, buffer, at=2 * SECTOR, length=SECTOR)
    assert array[2 * SECTOR : 3 * SECTOR].tolist() == [1] * SECTOR
    assert array[: 2 * SECTOR].sum() + array[3 * SECTOR :].sum() == 0
    drive.write(8 * SECTOR, buffer, at=2 * SECTOR, length=2 * SECTOR)
    assert drive.read(8 * SECTOR, 2 * SECTOR) == b"\1" * SECTOR + bytes(SECTOR)


@pytest.mark.parametrize("wait", ["event", "poll", "hybrid", None])
def test_many_requests_are_outstanding(drive: sluice.Drive, wait: Any) -> None:
    with drive.queue(depth=64, wait=wait) as queue:
        buffer = drive.buffer(64 * SECTOR)
        array = np.frombuffer(memoryview(buffer), np.uint8).reshape(64, SECTOR)
        array[:] = np.arange(64, dtype=np.uint8)[:, None]
        offsets = np.arange(64, dtype=np.uint64) * SECTOR
        tags = queue.submit_many("write", offsets, buffer, length=SECTOR)
        assert len(tags) == 64
        done = queue.wait(64)
        assert sorted(c.tag for c in done) == list(tags)
        assert all(c.ok and c.status == 0 and c.error is None for c in done)
        flush = queue.submit("flush")
        assert [c.tag for c in queue.wait()] == [flush]
        buffer.fill(0)
        tags = queue.submit_many("read", offsets[::-1].tolist(), buffer, length=SECTOR)
        assert len(queue.wait(len(tags))) == 64
        assert array[:, 0].tolist() == list(range(63, -1, -1))
        assert queue.stats() == queue.stats() | {"submitted": 129, "completed": 129, "errors": 0, "outstanding": 0}


def test_a_full_queue_says_so(drive: sluice.Drive) -> None:
    queue, buffer = drive.queue(depth=4), drive.buffer(16 * SECTOR)
    tags = queue.submit_many("read", range(0, 16 * SECTOR, SECTOR), buffer, length=SECTOR)
    assert 0 < len(tags) <= 4
    accepted = len(tags)
    try:
        for _ in range(100):
            queue.submit("read", 0, buffer, length=SECTOR)
            accepted += 1
    except sluice.QueueFullError as full:
        assert "poll() or wait()" in str(full)
    # A blocking call waits for a slot, and leaves the completions of others.
    assert queue.read(0, SECTOR) == bytes(SECTOR)
    assert len(queue.wait(accepted)) == accepted
    assert queue.outstanding == 0 and queue.poll() == [] and queue.wait(5) == []


def test_a_wait_ends_after_its_time() -> None:
    slow = {"drive": {**DRIVE["drive"], "timing": {"read": "300ms"}}, "precondition": {"fill": "sequential"}}
    with sluice.open(slow) as drive:
        queue = drive.queue()
        queue.submit("read", MIDDLE, drive.buffer(SECTOR))
        assert queue.wait(timeout=0.01) == [] and queue.outstanding == 1
        [done] = queue.wait(timeout=30)
        done.check()


def test_threads_use_a_drive_in_turn(drive: sluice.Drive) -> None:
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            data = bytes([index]) * SECTOR
            for _ in range(50):
                drive.write(index * SECTOR, data)
                assert drive.read(index * SECTOR, SECTOR) == data
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_data_survives_in_an_image(tmp_path: pathlib.Path) -> None:
    text = f"""
        drive.preset = "femu-default"
        drive.geometry.chunks = 16
        drive.data = "file"
        drive.path = "{tmp_path / "image"}"
    """
    file = tmp_path / "drive.toml"
    file.write_text(text)
    for what in (sluice.Scenario(text), str(file), file, f"{file}#drive0"):
        with sluice.open(what) as drive:
            if isinstance(what, sluice.Scenario):
                drive.write(0, b"a" * SECTOR)
            assert drive.read(0, SECTOR) == b"a" * SECTOR


def test_blocks_of_512_bytes_and_flushes_to_the_host(tmp_path: pathlib.Path) -> None:
    image = {"data": "file", "path": str(tmp_path / "d.img"), "flush": "host"}
    scenario = {"drive": {**DRIVE["drive"], **image, "lba_bytes": 512}}
    with sluice.open(scenario) as drive:
        assert drive.sector_bytes == 512
        drive.write(512, b"ab" * 256)
        drive.write(1536, b"cd" * 256)
        drive.flush()
        assert drive.read(0, 2048) == bytes(512) + b"ab" * 256 + bytes(512) + b"cd" * 256
    with sluice.open(scenario) as drive:
        assert drive.read(512, 512) == b"ab" * 256
    with pytest.raises(sluice.ScenarioError, match="lba_bytes"):
        sluice.open({"drive": {**scenario["drive"], "lba_bytes": 768}})


def test_targets_files_and_the_null_device(tmp_path: pathlib.Path) -> None:
    pblk = {
        "drive": {"preset": "ocssd-mlc-128pu-small", "data": "memory"},
        "target": {"kind": "pblk"},
    }
    with sluice.open(pblk) as drive:
        assert drive.kind == "target"
        drive.write(0, b"p" * SECTOR)
        assert drive.read(0, SECTOR) == b"p" * SECTOR
    file = tmp_path / "file.img"
    file.write_bytes(bytes(1 << 20))
    with sluice.open(file, buffered=True, sector_bytes=512, depth=8) as drive:
        assert (drive.kind, drive.nbytes, drive.sector_bytes) == ("file", 1 << 20, 512)
        drive.write(512, b"f" * 512)
        drive.flush()
        too_long = drive.request_bytes_max + 512
        with pytest.raises(ValueError, match=f"at most {drive.request_bytes_max}"):
            drive.queue().submit("read", 0, drive.buffer(too_long))
        with pytest.raises(ValueError, match="queues of this device have its depth"):
            drive.queue(depth=3)
    assert file.read_bytes()[512:1024] == b"f" * 512
    with sluice.open("null:1M") as drive:
        assert (drive.kind, drive.nbytes) == ("null", 1 << 20)
        drive.write(0, bytes(512))
        drive.flush()
        assert drive.stats()["drives"] == []


def test_counters_are_a_dictionary(drive: sluice.Drive) -> None:
    drive.write(0, bytes(4 * SECTOR))
    drive.flush()
    stats = drive.stats()
    [counters] = stats["drives"]
    assert counters["bytes_written"] == 4 * SECTOR
    assert counters["ftl"]["host_sectors_written"] == 4
    assert counters["media"]["programs"] > 0
    assert stats["buffer_bytes"] == stats["buffer_bytes_free"] > 0


def test_injected_faults_of_a_scenario_are_exceptions() -> None:
    faulty = {
        "drive": {**DRIVE["drive"], "errors": {"rber": 0.1, "ecc_bits": 1}},
        "precondition": {"fill": "sequential"},
    }
    with sluice.open(faulty) as drive, drive.queue() as queue:
        with pytest.raises(sluice.IoError) as raised:
            queue.read(0, 1 << 20)
        assert raised.value.errno == 5 and raised.value.status != 0
        assert queue.stats()["errors"] > 0


FULL = {
    "drive": {**DRIVE["drive"], "name": "d", "data": "memory"},
    "precondition": {"fill": "sequential"},
}


def wait_for_zeros(drive: sluice.Drive) -> None:
    """Read sector 5 until it is zeros. The drive is busy meanwhile."""
    end = time.monotonic() + 60
    found = b""
    while found != bytes(SECTOR):
        assert time.monotonic() < end, "the operation does not end"
        try:
            found = drive.read(5 * SECTOR, SECTOR)
        except sluice.IoError as error:
            assert error.errno == errno.EBUSY


# guarantee: B-84
def test_a_format_leaves_zeros() -> None:
    with sluice.open(FULL) as drive:
        drive.write(5 * SECTOR, b"x" * SECTOR)
        drive.inject("format", erase=True)
        wait_for_zeros(drive)
        drive.write(5 * SECTOR, b"y" * SECTOR)
        assert drive.read(5 * SECTOR, SECTOR) == b"y" * SECTOR
        with pytest.raises(sluice.ScenarioError, match="allowed: kind, erase"):
            drive.inject("format", pu=1)


# guarantee: B-97
def test_corrupted_data_is_an_error_with_protection_information() -> None:
    geometry = {**DRIVE["drive"]["geometry"], "oob_bytes": 24}
    protected = {**DRIVE["drive"], "geometry": geometry, "protection": "type1"}
    with sluice.open({"drive": protected, "precondition": {"fill": "sequential"}}) as drive:
        drive.inject("corrupted-data", lba=3)
        drive.inject("corrupted-data", lba=4, what="reference-tag")
        for sector, status in [(3, 0x282), (4, 0x284)]:
            with pytest.raises(sluice.IoError) as raised:
                drive.read(sector * SECTOR, SECTOR)
            assert (raised.value.errno, raised.value.status & 0x7FF) == (errno.EILSEQ, status)
        drive.read(5 * SECTOR, SECTOR)
        with pytest.raises(sluice.ScenarioError, match="reference-tag"):
            drive.inject("corrupted-data", lba=5, what="parity")
    with sluice.open(FULL) as drive:
        drive.inject("corrupted-data", lba=3)
        drive.read(3 * SECTOR, SECTOR)
        with pytest.raises(ValueError, match="protection"):
            drive.inject("corrupted-data", lba=3, what="guard")


# guarantee: B-85
@pytest.mark.parametrize("action", ["block-erase", "overwrite"])
def test_sanitize_leaves_zeros(action: str) -> None:
    with sluice.open(FULL) as drive:
        drive.write(5 * SECTOR, b"x" * SECTOR)
        drive.inject("sanitize", action=action)
        wait_for_zeros(drive)
        drive.write(5 * SECTOR, b"y" * SECTOR)
        assert drive.read(5 * SECTOR, SECTOR) == b"y" * SECTOR
        with pytest.raises(sluice.ScenarioError, match="block-erase"):
            drive.inject("sanitize", action="crypto-erase")


# guarantee: B-115
def test_rules_are_installed_while_a_drive_is_open() -> None:
    ruled = {**DRIVE["drive"], "name": "d", "data": "memory", "personality": "rules"}
    ruled["rules"] = {"template": "throughput", "miss_timeout": "10ms"}
    with sluice.open({"drive": ruled}) as drive:
        drive.write(0, bytes(4096))
        before = drive.rules()
        names = [rule["name"] for rule in before["stats"]["rules"]]
        assert before["stats"]["misses"] == 0 and before["stats"]["inputs"] >= 1
        source = (
            f"app db {{ units = 0-{before['units'] - 1}, spare = 0.05 }}\n"
            "table map: addr[db.sectors] durable\n"
            "rule load when channel.app == db and header.read "
            "do header.addr = map[header.lba]; insert lun\n"
        )
        assert drive.install_rules(source, drive="d") == 0
        assert drive.read(0, 4096) == bytes(4096)
        with pytest.raises(sluice.IoError):
            drive.write(0, bytes(4096))
        after = drive.rules()["stats"]
        assert [rule["name"] for rule in after["rules"]] == ["load"] != names
        assert [(miss["op"], miss["timed_out"]) for miss in after["missed"]] == [("write", 1)]
        (app,) = after["apps"]
        assert (app["name"], app["misses"], app["inputs"]) == ("db", 1, after["inputs"])
        assert drive.reject_misses() == drive.reject_misses("write") == 0
        with pytest.raises(ValueError, match="program:1:"):
            drive.install_rules("rule x")
    plain = {**DRIVE["drive"], "name": "d"}
    with sluice.open({"drive": plain}) as drive:
        with pytest.raises(ValueError, match="the drive has no rules"):
            drive.rules()


def test_rules_have_tables_and_commands() -> None:
    ruled = {**DRIVE["drive"], "name": "d", "data": "memory", "personality": "rules"}
    ruled["rules"] = {"template": "throughput", "ops": 100_000}
    with sluice.open({"drive": ruled}) as drive:
        source = (
            f"app db {{ units = 0-{drive.rules()['units'] - 1}, spare = 0.05 }}\n"
            "table map: addr[db.sectors] durable\n"
            "table wanted: set<u32>[10] volatile\n"
            "table sums: map<u32, u64>[10] volatile\n"
            "record Word = { value: u32 }\n"
            "rule search when channel.app == db and header.op == scan "
            "do for s in header.range up to 4 { for w: Word in s { "
            "if w.value in wanted { emit w } } } complete ok value sums[header.arg0]\n"
            "rule lookup when channel.app == db and header.op == user2 "
            "do if header.arg0 in wanted { complete ok value header.arg1 } complete not_found\n"
            "rule store when channel.app == db and header.write "
            "set map[header.lba] = next_addr(db.host) "
            "do header.addr = map[header.lba]; insert lun\n"
        )
        drive.install_rules(source)
        assert [table["name"] for table in drive.rules()["tables"]] == ["map", "wanted", "sums"]
        drive.write(0, np.arange(1024, dtype="<u4").tobytes())
        drive.edit_rule_table("wanted", add=[3, 1000, 5000])
        drive.edit_rule_table("sums", values={7: 70, 8: (1 << 32) - 2}, drive="d")
        assert drive.rule_table("wanted", 2, 3) == [0, 1, 0]
        assert drive.rule_table("sums", 7, 2) == [70, (1 << 32) - 2]
        found = np.array([3, 1000], dtype="<u4").tobytes()
        assert drive.rule_command("scan", 0, 1, arg0=7, nbytes=4096) == (0, 70, found)
        # The buffer has space for one record.
        assert drive.rule_command("scan", 0, nbytes=4)[::2] == (0x7D3, found[:4])
        assert drive.rule_command("user2", 0, arg0=3, arg1=5) == (0, 5, b"")
        drive.edit_rule_table("wanted", remove=[3, 4])
        assert drive.rule_command("user2", 0, arg0=3)[0] == 0x7C1
        refused: list[tuple[Callable[[], object], str]] = [
            (lambda: drive.rule_table("other"), "other"),
            (lambda: drive.edit_rule_table("sums", add=[1]), "sums"),
            (lambda: drive.edit_rule_table("wanted", add=[1 << 32]), "wanted"),
            (lambda: drive.rule_command("read", 0), "op = read"),
            (lambda: drive.rule_command("user2", 0, nbytes=4), "returns no data"),
            (lambda: drive.rule_command("scan", 0, 0), "sectors = 0"),
        ]
        for call, message in refused:
            with pytest.raises(ValueError, match=message):
                call()
    with sluice.open({"drive": {**DRIVE["drive"], "name": "d"}}) as drive:
        with pytest.raises(ValueError, match="the drive has no rules"):
            drive.rule_table("wanted")
        assert drive.rule_command("scan", 0)[0] != 0


# guarantee: B-106
def test_sectors_with_names_are_written_read_and_freed(tmp_path: pathlib.Path) -> None:
    rules = tmp_path / "names.rules"
    rules.write_text(
        "app db { units = 0-3, spare = 0.05 }\n"
        "table forward: map<u64, u64>[512] volatile\n"
        "rule store when channel.app == db and header.write "
        "do header.addr = next_addr(db.host); header.tag = header.arg0; insert lun\n"
        "rule load when channel.app == db and header.read "
        "do header.addr = name(header.arg0); header.tag = header.arg1; insert lun\n"
        "rule free when channel.app == db and header.op == trim "
        "do header.addr = name(header.arg0); insert lun\n"
        "rule moved when moved(db) set forward[header.arg0] = header.arg1 "
        "do post migrated, header.arg0, header.arg1, header.tag\n"
        "rule tell when channel.app == db and header.op == user2 "
        "do post migrated, 1, 2, header.arg0; complete ok\n"
    )
    geometry = {"channels": 2, "pus": 2, "chunks": 24, "pages": 32, "planes": 4}
    drive_keys = {
        **DRIVE["drive"],
        "geometry": geometry,
        "data": "file",
        "path": str(tmp_path / "names.img"),
        "personality": "rules",
        "rules": {"program": str(rules)},
    }
    data = [bytes([tag]) * 4096 for tag in range(20)]
    with sluice.open({"drive": drive_keys}) as drive:
        written = [drive.named_write(data[tag], tag) for tag in range(20)]
        assert all(status == 0 for status, _ in written)
        names = [name for _, name in written]
        assert len(set(names)) == 20
        assert drive.named_read(names[7], 7) == (0, data[7])
        assert drive.named_read(names[7], 8)[0] != 0
        assert drive.named_free(names[3]) == 0
        assert drive.named_free(names[3]) == 0x7C1
        assert drive.rule_command("user2", 0, arg0=77)[0] == 0
        assert drive.rule_events() == (0, [(1, [1, 2, 77])])
        assert drive.rule_events() == (0, [])
        assert drive.found_names() == []
        with pytest.raises(ValueError, match="a sector has 4096"):
            drive.named_write(b"short", 1)
    with sluice.open({"drive": drive_keys}) as drive:
        found = {tag: name for name, tag in drive.found_names()}
        assert {tag: found[tag] for tag in found if tag != 3} == {
            tag: name for tag, name in enumerate(names) if tag != 3
        }
        assert all(drive.named_read(found[tag], tag) == (0, data[tag]) for tag in found)


def test_rules_of_a_target_are_reached_as_those_of_a_drive() -> None:
    channel = {**DRIVE["drive"], "name": "d", "data": "memory", "personality": "open-channel"}
    target = {"kind": "rules", "template": "throughput", "over_provisioning": 0.3}
    with sluice.open({"drive": channel, "target": target}) as drive:
        drive.write(0, b"x" * SECTOR)
        source = (
            f"app db {{ units = 0-{drive.rules()['units'] - 1}, spare = 0.05 }}\n"
            "table map: addr[db.sectors] durable\n"
            "table seen: set<u32>[10] volatile\n"
            "rule load when channel.app == db and header.read "
            "do header.addr = map[header.lba]; insert lun\n"
        )
        assert drive.install_rules(source, drive="d") == 0
        assert drive.read(0, SECTOR) == b"x" * SECTOR
        with pytest.raises(sluice.IoError):
            drive.write(0, bytes(SECTOR))
        stats = drive.rules()["stats"]
        assert [rule["name"] for rule in stats["rules"]] == ["load"]
        assert [(miss["op"], miss["misses"]) for miss in stats["missed"]] == [("write", 1)]
        (app,) = stats["apps"]
        assert (app["name"], app["misses"], app["inputs"]) == ("db", 1, stats["inputs"])
        drive.edit_rule_table("seen", add=[3, 5])
        assert drive.rule_table("seen", 3, 3) == [1, 0, 1]
        with pytest.raises(ValueError, match="a target parks no request"):
            drive.reject_misses()
    plain = {"kind": "pblk", "over_provisioning": 0.3}
    with sluice.open({"drive": channel, "target": plain}) as drive:
        with pytest.raises(ValueError, match="has no rules"):
            drive.rules()


def test_an_application_is_opened_by_its_name(tmp_path: pathlib.Path) -> None:
    geometry = {"channels": 2, "pus": 2, "chunks": 24, "pages": 32}
    ruled = {**DRIVE["drive"], "name": "d", "geometry": geometry, "personality": "rules"}
    ruled |= {"data": "file", "path": str(tmp_path / "d.img")}
    ruled["rules"] = {"program": str(tmp_path / "apps.rules")}
    source = "".join(
        f"app {app} {{ units = {units}, spare = 0.05 }}\n"
        f"table {app}.{app}_map: addr[{app}.sectors] durable\n"
        f"rule {app}_load when channel.app == {app} and header.read "
        f"do header.addr = {app}_map[header.lba]; insert lun\n"
        f"rule {app}_store when channel.app == {app} and header.write "
        f"set {app}_map[header.lba] = next_addr({app}.host) "
        f"do header.addr = {app}_map[header.lba]; insert lun\n"
        for app, units in [("db", "0-1"), ("log", "2-3")]
    )
    (tmp_path / "apps.rules").write_text(source)
    # Blocks of the same number are different ones.
    for app, before in [("db", False), ("log", False), ("db", True), ("log", True)]:
        with sluice.open({"drive": ruled}, drive=app) as drive:
            own = app[:1].encode() * SECTOR
            assert drive.read(2 * SECTOR, SECTOR) == (own if before else bytes(SECTOR))
            drive.write(2 * SECTOR, own)
            apps = {counted["name"]: counted for counted in drive.rules()["stats"]["apps"]}
            other = apps["log" if app == "db" else "db"]
            assert (apps[app]["inputs"], other["inputs"], other["ops"]) == (2, 0, 0)
    with pytest.raises(sluice.OpenError, match="#db, #log"):
        sluice.open({"drive": ruled}, drive="other")


# guarantee: B-42
def test_namespaces_change_while_a_drive_is_open() -> None:
    two = {**DRIVE["drive"], "name": "d", "data": "memory", "namespaces": ["1M", "1M"]}
    with sluice.open({"drive": two}) as drive:
        drive.write(0, b"x" * SECTOR)
        before = drive.namespaces()
        assert [n["namespace"] for n in before["namespaces"]] == [1, 2]
        first = before["namespaces"][0]
        assert (first["bytes"], first["block_bytes"], first["attached"]) == (1 << 20, SECTOR, True)
        assert len(first["nguid"]) == 32 and before["unallocated_bytes"] > 1 << 20
        assert drive.create_namespace(np.int64(1 << 20), drive="d") == 3
        drive.attach_namespace(3)
        drive.flush()
        drive.inject("uncorrectable", lba=0, namespace=1)
        with pytest.raises(ValueError, match="the sector is not written"):
            drive.inject("uncorrectable", lba=0, namespace=3)
        with pytest.raises(ValueError, match="the drive has no namespace 4"):
            drive.inject("uncorrectable", lba=0, namespace=4)
        drive.detach_namespace(3)
        drive.delete_namespace(2)
        left = drive.namespaces()["namespaces"]
        assert [(n["namespace"], n["attached"]) for n in left] == [(1, True), (3, False)]
        assert drive.create_namespace() == 2
        assert drive.namespaces()["unallocated_bytes"] == 0
        refused: list[tuple[Callable[[], object], str]] = [
            (lambda: drive.create_namespace(4096), "unallocated"),
            (lambda: drive.create_namespace(0), "at least one block"),
            (lambda: drive.attach_namespace(9), "no namespace 9; it has: 1, 2, 3"),
            (lambda: drive.attach_namespace(1), "attached already"),
            (lambda: drive.detach_namespace(2), "is not attached"),
            (lambda: drive.delete_namespace(9), "no namespace 9"),
            (lambda: drive.namespaces(drive="x"), "there are: d"),
        ]
        for change, says in refused:
            with pytest.raises(ValueError, match=says):
                change()
        # The drive keeps the namespace that it has opened.
        drive.detach_namespace(1)
        with pytest.raises(sluice.IoError):
            drive.read(SECTOR, SECTOR)
        drive.attach_namespace(1)
        drive.read(SECTOR, SECTOR)
        drive.delete_namespace(None)
        assert drive.namespaces()["namespaces"] == []
    with pytest.raises(sluice.ClosedError):
        drive.namespaces()
    with sluice.open("null:1M") as null, pytest.raises(ValueError, match="emulated NVMe drive"):
        null.create_namespace(4096)


# guarantee: B-65
def test_faults_are_injected_into_an_open_drive() -> None:
    with sluice.open(FULL) as drive:
        drive.inject("uncorrectable", lba=3)
        # Far from sector 3: the drive relocates its line, and its own read would meet the failure.
        far = drive.nbytes // SECTOR // 2
        drive.inject("read-failure", drive="d", lba=np.int64(far))
        for sector, errors in [(2, [0, 0]), (3, [5, 5]), (far, [5, 0])]:
            for errno in errors:
                if errno == 0:
                    drive.read(sector * SECTOR, SECTOR)
                    continue
                with pytest.raises(sluice.IoError) as raised:
                    drive.read(sector * SECTOR, SECTOR)
                assert raised.value.errno == errno
        drive.inject("slow-die", pu=0, factor=2.5, duration="1ms")
        with pytest.raises(sluice.ScenarioError, match="needs `pu`"):
            drive.inject("die-failure")
        with pytest.raises(sluice.ScenarioError, match="die-failure"):
            drive.inject("dye-failure", pu=1)
        with pytest.raises(sluice.ScenarioError, match="chunk"):
            drive.inject("die-failure", pu=1, chunk=2)
        with pytest.raises(ValueError, match="`pu` 99999 does not exist"):
            drive.inject("die-failure", pu=99999)
        with pytest.raises(ValueError, match="there are: d"):
            drive.inject("power-cut", drive="x")
    with pytest.raises(sluice.ClosedError):
        drive.inject("power-cut")
    with sluice.open("null:1M") as null, pytest.raises(ValueError, match="emulated NVMe drive"):
        null.inject("power-cut")


# guarantee: B-101


def test_what_was_persisted_survives_a_power_cut() -> None:
    config = {"drive": {**DRIVE["drive"], "pmr": {"size": "64k", "store": "10ns"}}}
    with sluice.open(config) as drive:
        assert drive.pmr_nbytes == 64 << 10
        drive.pmr_store(60, b"durable!")
        drive.pmr_persist(60, 8)
        drive.pmr_store(4096, np.arange(512, dtype=np.uint64))
        assert drive.pmr_read(4096, 16) == np.arange(2, dtype=np.uint64).tobytes()
        drive.inject("power-cut")
        assert drive.pmr_read(60, 8) == b"durable!"
        words = np.frombuffer(drive.pmr_read(4096, 4096), np.uint64)
        assert all(word in (0, index) for index, word in enumerate(words))
        for call in (
            lambda: drive.pmr_store((64 << 10) - 1, b"ab"),
            lambda: drive.pmr_persist(64 << 10, 1),
            lambda: drive.pmr_read(0, 1 << 60),
        ):
            with pytest.raises(ValueError, match="persistent memory region of 65536"):
                call()
        assert drive.stats()["drives"][0]["pmr"]["persists"] == 1
    with pytest.raises(sluice.ClosedError):
        drive.pmr_persist(0, 1)


# guarantee: B-50


def test_an_option_gives_a_drive_a_log(tmp_path: pathlib.Path) -> None:
    config = {
        "drive": {
            **DRIVE["drive"],
            "data": "file",
            "path": str(tmp_path / "image"),
            "pmr": {"size": "256k"},
        }
    }
    wrong: tuple[Any, ...] = ("x", -1, 1.5)
    for size in wrong:
        with pytest.raises(ValueError, match="log: bytes, a size"):
            sluice.open(config, log=size)
    refusals: tuple[tuple[Any, int | str, str], ...] = (
        (config, 64, "log = 64 for .*multiples of 64 bytes"),
        (config, 65537, "log = 65537 for .*multiples of 64 bytes"),
        (config, "257k", "log = 263168 for .*up to 262144"),
        (config, "128k", "need at least 131328"),
        (DRIVE, "pmr", "no persistent memory region for a log"),
        ("null:1M", "64k", "log = 65536 for the null device"),
    )
    for what, size, problem in refusals:
        with pytest.raises(sluice.OpenError, match=problem) as refused:
            sluice.open(what, log=size)
        assert refused.value.errno == errno.EINVAL
    for log in ("256k", 256 << 10, "pmr"):
        with sluice.open(config, log=log) as drive:
            if log == "256k":
                drive.write(SECTOR, b"x" * SECTOR)
                drive.flush()
            assert drive.read(SECTOR, SECTOR) == b"x" * SECTOR
            assert drive.pmr_read(0, 8) == b"SLUICLOG"
    with pytest.raises(sluice.OpenError, match="its own log"):
        sluice.open(config)


def test_a_drive_without_a_region_says_so(drive: sluice.Drive) -> None:
    with pytest.raises(sluice.OpenError, match="no persistent memory region") as refused:
        drive.pmr_read(0, 1)
    assert refused.value.errno == errno.EOPNOTSUPP


# guarantee: D-59


def test_a_write_that_cannot_be_atomic_is_refused() -> None:
    geometry = {**DRIVE["drive"]["geometry"], "page_bytes": 16384}
    config = {"drive": {**DRIVE["drive"], "geometry": geometry, "atomic": True}}
    with sluice.open(config) as drive, drive.queue(depth=4) as queue:
        unit = 4 * SECTOR
        assert drive.write(SECTOR, b"a" * unit, atomic=True) == unit
        assert queue.write(6 * SECTOR, b"b" * unit, atomic=True, fua=True) == unit
        assert drive.read(SECTOR, unit) == b"a" * unit
        buffer = drive.buffer(2 * unit)
        for call in (
            lambda: drive.write(0, b"c" * (unit + SECTOR), atomic=True),
            lambda: drive.write(0, buffer, atomic=True),
            lambda: queue.submit("write", 0, buffer, atomic=True),
            lambda: queue.submit_many("write", [0], buffer, length=2 * unit, atomic=True),
        ):
            with pytest.raises(ValueError, match="at most 4 are atomic"):
                call()
        with pytest.raises(ValueError, match="only a write can be atomic"):
            queue.submit("read", 0, buffer, length=SECTOR, atomic=True)
        assert drive.read(0, SECTOR) == bytes(SECTOR)
    with sluice.open(DRIVE) as drive, pytest.raises(ValueError, match="at most 1 are atomic"):
        drive.write(0, bytes(2 * SECTOR), atomic=True)
