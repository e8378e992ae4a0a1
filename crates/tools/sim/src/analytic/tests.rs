//! Tests of the closed forms against values computed by hand.

use std::path::Path;

use scenario::Scenario;

use super::*;

fn limits(more: &str) -> ClosedFormLimits {
    ClosedFormLimits::from_spec(&plan(more))
}

fn plan(more: &str) -> DriveSpec {
    let text = format!("[drive]\npreset = \"mqsim-default-small\"\n{more}");
    Scenario::parse(Path::new("test.toml"), &text).unwrap().drives[0].clone()
}

#[test]
fn the_least_resource_binds() {
    // 64 PUs / (75 us + 12.3 us) against 8 × 333 MB/s / 4 KB against 4 GB/s / 4 KB.
    let l = limits("").random_read.unwrap();
    assert_eq!(l.bound(), Resource::Channels);
    assert!((l.iops() - 8.0 * 333e6 / 4096.0).abs() < 1e-6);
    assert_eq!(l.bounds.len(), 3);
    assert!(l.bounds.windows(2).all(|w| w[0].1 <= w[1].1));
    let l = limits("timing.channel = 0\n").random_read.unwrap();
    assert_eq!(l.bound(), Resource::ParallelUnits);
    assert!((l.iops() - 64.0 / 75e-6).abs() < 1e-3);
    let l = limits("controller.dma_bandwidth = \"100MB/s\"\n").program.unwrap();
    assert_eq!((l.bound(), l.bytes_per_sec()), (Resource::Dma, 100e6));
    let l = limits("controller.fetch_latency = \"10us\"\n").random_read.unwrap();
    assert_eq!((l.bound(), l.iops().round()), (Resource::Fetch, 100e3));
}

#[test]
fn latencies_add_up() {
    let l = limits("controller.fetch_latency = \"1us\"\ncontroller.completion_latency = \"2us\"\n");
    // Fetch, tR, 4 KB at 333 MB/s, 4 KB at 4 GB/s, completion.
    assert_eq!(l.read_latency, Nanos(1_000 + 75_000 + 12_301 + 1_024 + 2_000));
    // Writes complete in the buffer, without the array.
    assert_eq!(l.write_latency, Nanos(1_000 + 1_024 + 2_000));
    let l = limits("write_buffer.kind = \"none\"\n");
    assert_eq!(l.write_latency, Nanos(1_024 + 49_202 + 750_000));
}

#[test]
fn transfers_add_to_programs_without_cache_programming() {
    let l =
        limits("cache_program = false\ntiming.channel = \"1GB/s\"\ncontroller.dma_bandwidth = 0\n");
    let expected = 64.0 * 16384.0 / (750e-6 + 16.384e-6);
    assert!((l.program.unwrap().bytes_per_sec() / expected - 1.0).abs() < 1e-9);
}

#[test]
fn cache_read_overlaps_the_array_and_the_transfer() {
    // 8 KB pages over two planes; with channels of 10 GB/s, the arrays are the limit.
    let fast = "timing.channel = \"10GB/s\"\ncontroller.dma_bandwidth = 0\n";
    let without = limits(fast).sequential_read.unwrap();
    assert!((without.iops() - 64.0 / (75e-6 + 1.639e-6)).abs() < 1.0, "{}", without.iops());
    let with = limits(&format!("cache_read = true\n{fast}")).sequential_read.unwrap();
    assert_eq!((with.bound(), with.iops().round()), (Resource::ParallelUnits, 853_333.0));
}

#[test]
fn a_way_in_of_its_own_bounds_writes_only() {
    let l =
        limits("controller = { dma_bandwidth = \"200MB/s\", dma_in_bandwidth = \"100MB/s\" }\n");
    let (read, program) = (l.sequential_read.unwrap(), l.program.unwrap());
    assert_eq!((read.bound(), read.bytes_per_sec()), (Resource::Dma, 200e6));
    assert_eq!((program.bound(), program.bytes_per_sec()), (Resource::Dma, 100e6));
    // Writes complete in the buffer, without the array.
    assert_eq!(l.write_latency, Nanos(40_960));
    let alone = limits("controller.dma_in_bandwidth = \"100MB/s\"\n").sustained.unwrap();
    let bytes = alone.limit.unwrap().bytes_per_sec();
    assert!(bytes <= 100e6, "{bytes}");
}

#[test]
fn sustained_writes_follow_the_formula() {
    let s = limits("timing.channel = 0\ncontroller.dma_bandwidth = 0\n").sustained.unwrap();
    let wa = s.write_amplification;
    let capacity = plan("").capacity.unwrap();
    assert!((s.over_provisioning - 0.0753).abs() < 1e-4, "nominal: {}", s.over_provisioning);
    // Of 63 lines, 5 are reserved: two for GC, two open, one for padding. In steady state, three
    // and a 16th are never written (the reserve, GC's line, padding). Of two more lines, from where
    // GC starts, one part in W is free.
    let mapped = (capacity.logical_sectors + capacity.map_sectors) as f64;
    let line = capacity.line_sectors as f64;
    let moved = s.data_write_amplification;
    let spare = (63.0 - 3.0625 - 2.0 / moved) * line / mapped - 1.0;
    assert!((s.effective_spare - spare).abs() < 1e-3, "{} {spare}", s.effective_spare);
    let greedy = greedy::greedy(s.effective_spare, capacity.line_sectors).unwrap();
    assert!((greedy / moved - 1.0).abs() < 1e-9, "{greedy} {moved}");
    // Every page of the map is written once while hosts write four lines.
    let pages = capacity.map_sectors as f64 / (4.0 * line);
    assert!((wa - moved - pages).abs() < 1e-9, "{wa} {moved} {pages}");
    // PUs × planes × page / (WA·tPROG + (W−1)·R·tR + WA·tBERS/N), N = 256 pages per block. Victims
    // have valid sectors in nearly every page of four sectors.
    let valid = 1.0 - 1.0 / moved;
    let reads = (1.0 - (1.0 - valid).powi(4)) / valid;
    let time = wa * 750e-6 + (moved - 1.0) * reads * 75e-6 + wa * 3.8e-3 / 256.0;
    let expected = 64.0 * 2.0 * 8192.0 / time;
    let limit = s.limit.unwrap();
    assert!((limit.bytes_per_sec() / expected - 1.0).abs() < 1e-9);
    assert_eq!(limit.bound(), Resource::ParallelUnits);
    let fifo = limits("ftl.victim_policy = \"fifo\"\n").sustained.unwrap();
    assert!(fifo.write_amplification >= wa);
    assert_eq!(fifo.policy, VictimPolicyKind::Fifo);
}

#[test]
fn few_active_units_bound_writes_but_not_reads() {
    let ocssd = |active: u32| {
        let text = format!(
            "[drive]\npreset = \"ocssd-mlc-128pu\"\n[target]\nkind = \"pblk\"\nactive_pus = {active}\n"
        );
        ClosedFormLimits::from_spec(&Scenario::parse(Path::new("t.toml"), &text).unwrap().drives[0])
    };
    let (few, all) = (ocssd(4), ocssd(128));
    assert_eq!(few.random_read, all.random_read);
    let program = few.program.unwrap();
    // Four times 64 KB per 1.39 ms.
    assert_eq!(program.bound(), Resource::ActiveUnits);
    assert!((program.bytes_per_sec() - 188.6e6).abs() < 0.1e6, "{}", program.bytes_per_sec());
    assert_eq!(all.program.unwrap().bound(), Resource::Dma);
    let sustained = few.sustained.unwrap();
    let limit = sustained.limit.unwrap();
    assert_eq!(limit.bound(), Resource::ActiveUnits);
    let expected = 4.0 * 65536.0 / 1.39e-3 / 1f64.max(sustained.write_amplification - 1.0);
    assert!((limit.bytes_per_sec() / expected - 1.0).abs() < 1e-9);
}

#[test]
fn the_summary_has_every_section() {
    let sheet = summary::summary(&plan("name = \"left\"\n"));
    for part in [
        "drive \"left\", preset mqsim-default-small",
        "8 channels × 8 PUs = 64",
        "group 3 | pu 3 | chunk 6 | sector 10",
        "16 GiB = 17.2 GB",
        "7.53 % (physical/logical − 1; lines held back not counted as physical)",
        "bound by channels",
        "tR                      75 us",
        "write amplification",
        "effective spare space",
        "garbage collection",
        "bad from the factory    0 % of chunks",
        "endurance               the usual of MLC program/erase cycles",
        "arbitration             round robin, bursts of 8",
        "tables",
    ] {
        assert!(sheet.contains(part), "`{part}` is missing in\n{sheet}");
    }
    assert!(sheet.lines().all(|l| l == l.trim_end()), "no trailing blanks\n{sheet}");
    for preset in scenario::presets::all() {
        let text = format!("[drive]\npreset = \"{}\"\n", preset.name);
        let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
        let sheet = summary::summary(&scenario.drives[0]);
        assert!(!sheet.contains("NaN") && !sheet.contains("inf "), "{sheet}");
    }
}

#[test]
fn every_section_of_a_drive_is_in_the_summary() {
    let errors = "errors = { factory_bad_ratio = 0.01, program_failure_rate = 0.002, erase_failure_rate = 0.003, rber = 1e-6, \
        rber_growth = 50, ecc_bits = 72, endurance = 3000, read_retries = 5, retry_error_fraction = 0.4, \
        retention_doubling_time = \"100s\", read_disturb_doubling = 5000 }\n";
    let controller = "controller = { max_io_queues = 7, queue_depth = 99, doorbell_buffer = true, arbitration = { \
        kind = \"weighted\", high = 9 }, scrub = { rate = \"2MB/s\", interval = \"60s\" }, \
        latency_monitor = [\"5ms\", \"10ms\", \"50ms\", \"100ms\"] }\n";
    let ftl = "ftl = { gc_queue_depth = 5, separate_gc_stream = false, static_wear_leveling = 8, dynamic_wear_leveling = true, \
        rate_limiter = \"pid\", gc_read_priority = \"global\", checkpoint_interval = \"64M\" }\n";
    let text = format!("{errors}{controller}{ftl}cmb = \"64M\"\ncache_read = true\nseed = 77\n");
    let shown = summary::summary(&plan(&text));
    for part in [
        "1 % of chunks",
        "0.002 per page, 0.003 per chunk",
        "0.000001 when new, 50 times that",
        "72 bits per sector",
        "3,000 program/erase cycles",
        "5 at most, each leaves 40 %",
        "after 100 s (retention), after 5,000 sectors read (read disturb)",
        "7 of 99 entries",
        "weighted 9 / 4 / 1, bursts of 8",
        "doorbells in memory     yes",
        "counts from 5 ms, 10 ms, 50 ms, 100 ms on",
        "2.00 MB/s, everything every 60 s",
        "5 write units in flight",
        "the lines of users' data",
        "PID, gains 1, 0.1, 0.05",
        "any read",
        "every 64 MiB written or moved",
        "from 8 erases behind",
        "64 MiB",
        "cache read: yes",
        "seed                    77",
    ] {
        assert!(shown.contains(part), "`{part}` is missing in\n{shown}");
    }
    let text = "[drive]\npreset = \"ocssd-mlc-128pu\"\nsuspend_hint = true\ndevice_l2p = true\n\
        data = \"memory\"\n[target]\nkind = \"pblk\"\nwrite_buffer = \"256M\"\nscrub = { rate = \"1MB/s\" }\n";
    let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
    let shown = summary::summary(&scenario.drives[0]);
    for part in [
        "in 25 us, resumed in 25 us",
        "map of its own          yes",
        "256 MiB",
        "1.00 MB/s, chunks",
    ] {
        assert!(shown.contains(part), "`{part}` is missing in\n{shown}");
    }
    // Without a write buffer, units are full only if enough writes are outstanding.
    let text = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"block\"\n";
    let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
    let shown = summary::summary(&scenario.drives[0]);
    assert!(shown.contains("at least 16,384 sectors"), "{shown}");
}

#[test]
fn a_2_tb_drive_simulates_in_8_gib_without_data() {
    let text = "[drive]\npreset = \"ocssd-mlc-128pu\"\npersonality = \"block\"\ndata = \"none\"\n";
    let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
    let memory = summary::Memory::from_spec(&scenario.drives[0]);
    assert_eq!(memory.data, 0);
    assert!(memory.tables < 8 << 30, "{}", memory.tables);
}
