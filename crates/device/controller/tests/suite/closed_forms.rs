//! The model against closed forms (ARCHITECTURE.md, time model), within one percent.

// guarantee: M-01, M-02, M-03, M-04, M-05, M-10

use crate::common;

use common::{drive, job, nand, precondition, run};
use controller::{Controller, DriveConfig, TransferConfig};
use time::{Nanos, VirtualRunner};
use workload::RunResult;

fn close(measured: f64, expected: f64, what: &str) {
    println!("{what}: {measured:.0}, closed form {expected:.0}");
    assert!((measured / expected - 1.0).abs() < 0.01, "{what}: {measured}, expected {expected}");
}

fn iops(result: &RunResult, direction: usize) -> f64 {
    result.jobs[0].directions[direction].iops()
}

/// Transfer time of one page of one plane over a channel of 400 MB/s.
const TRANSFER: f64 = 4096.0 / 400e6;

#[test]
fn queue_depth_one_latency_is_array_plus_transfer() {
    let mut runner = VirtualRunner::new();
    let mut d = Controller::new(drive(nand())).unwrap();
    precondition(&mut d, &mut runner, 0.0);
    let result =
        run(&mut d, &mut runner, vec![job(&[("rw", "randread"), ("bs", "4k"), ("size", "16m")])]);
    let read = &result.jobs[0].directions[0];
    close(read.clat.mean(), 50_000.0 + TRANSFER * 1e9, "read latency, ns");
    // Closed loop: IOPS = QD / latency.
    close(iops(&result, 0), 1e9 / read.clat.mean(), "closed loop IOPS");
}

#[test]
fn a_drive_that_times_commands_agrees_with_its_host() {
    let mut runner = VirtualRunner::new();
    let mut d = Controller::new(drive(nand())).unwrap();
    precondition(&mut d, &mut runner, 0.0);
    assert!(d.command_times().is_none(), "command times are recorded only on request");
    d.record_command_times();
    let jobs = vec![job(&[("rw", "randread"), ("bs", "4k"), ("size", "16m"), ("iodepth", "4")])];
    let result = run(&mut d, &mut runner, jobs);
    let read = &result.jobs[0].directions[0];
    let times = d.command_times().unwrap().clone();
    assert_eq!((times.reads.read().count, times.writes.read().count), (read.ios, 0));
    let mean = times.total.0 as f64 / read.ios as f64;
    assert!((mean / read.clat.mean() - 1.0).abs() < 1e-9, "{mean} {}", read.clat.mean());
    // The histogram has two significant digits.
    let (p50, host) = (times.reads.read().p50.0 as f64, read.clat.percentile(50.0).0 as f64);
    assert!((p50 / host - 1.0).abs() < 0.02, "{p50} {host}");
    let none = times.since(&times);
    assert_eq!((none.reads.read().count, none.total), (0, Nanos::ZERO));
}

#[test]
fn random_reads_reach_the_parallel_units_rate() {
    let mut runner = VirtualRunner::new();
    let mut config = drive(nand());
    // Fast channels: the arrays are the bottleneck.
    if let media::MediaConfig::Nand(n) = &mut config.media {
        n.timing.channel_bytes_per_sec = 4_000_000_000;
    }
    let mut d = Controller::new(config).unwrap();
    precondition(&mut d, &mut runner, 0.0);
    let pairs = [
        ("rw", "randread"),
        ("bs", "4k"),
        ("iodepth", "1000"),
        ("norandommap", "1"),
        ("runtime", "2s"),
        ("time_based", "1"),
    ];
    let result = run(&mut d, &mut runner, vec![job(&pairs)]);
    // With 1,000 requests in flight over 16 units, 15 in 1,015 are idle (a closed network).
    let busy = 1_000.0 / 1_015.0;
    close(iops(&result, 0), busy * 16.0 / (50e-6 + TRANSFER / 10.0), "random reads per second");
}

#[test]
fn random_reads_reach_the_channels_rate() {
    let mut runner = VirtualRunner::new();
    let mut config = drive(nand());
    // Slow channels: the channels are the bottleneck.
    if let media::MediaConfig::Nand(n) = &mut config.media {
        n.timing.channel_bytes_per_sec = 100_000_000;
    }
    let mut d = Controller::new(config).unwrap();
    precondition(&mut d, &mut runner, 0.0);
    // Long enough for the queue lengths of the channels to average out: they are short for 3 in
    // 1,003 of the time.
    let pairs = [
        ("rw", "randread"),
        ("bs", "4k"),
        ("iodepth", "1000"),
        ("norandommap", "1"),
        ("runtime", "8s"),
        ("time_based", "1"),
    ];
    let result = run(&mut d, &mut runner, vec![job(&pairs)]);
    close(iops(&result, 0), 4.0 * 100e6 / 4096.0, "random reads per second");
}

/// One parallel unit: its page register occupies the array until it is empty; with a cache
/// register, array and channel overlap.
#[test]
fn cache_read_overlaps_the_array_and_the_channel() {
    for (cache, channel) in [(false, 400e6), (true, 400e6), (false, 40e6), (true, 40e6)] {
        let mut runner = VirtualRunner::new();
        let mut nand = nand();
        (nand.geometry.channels, nand.geometry.pus) = (1, 1);
        nand.timing.channel_bytes_per_sec = channel as u64;
        let transfers =
            TransferConfig { cache_read: cache, dedicated_read_register: false, by_page: false };
        let mut d = Controller::new(DriveConfig { transfers, ..drive(nand) }).unwrap();
        precondition(&mut d, &mut runner, 0.0);
        let pairs = [
            ("rw", "randread"),
            ("bs", "4k"),
            ("iodepth", "4"),
            ("norandommap", "1"),
            ("runtime", "1s"),
            ("time_based", "1"),
        ];
        let result = run(&mut d, &mut runner, vec![job(&pairs)]);
        let (array, transfer) = (50e-6, 4096.0 / channel);
        let time = if cache { f64::max(array, transfer) } else { array + transfer };
        close(iops(&result, 0), 1.0 / time, "reads of one parallel unit per second");
        let busy = d.stats().pus[0].read.as_secs_f64();
        assert!(
            busy <= runner.now().as_secs_f64(),
            "the array was busy for {busy} s, longer than the run"
        );
    }
}

/// Each DMA direction has its own path.
#[test]
fn each_direction_has_its_own_rate() {
    let mut runner = VirtualRunner::new();
    let mut config = drive(nand());
    config.controller.dma_bytes_per_sec = 60_000_000;
    config.controller.dma_to_device_bytes_per_sec = 30_000_000;
    let mut d = Controller::new(config).unwrap();
    precondition(&mut d, &mut runner, 0.0);
    let time = [("bs", "4k"), ("iodepth", "32"), ("runtime", "2s"), ("time_based", "1")];
    let of = |rw, size| job(&[&time[..], &[("rw", rw), ("size", size)]].concat());
    let result = run(&mut d, &mut runner, vec![of("read", "2m"), of("write", "8m")]);
    let rate = |job: usize, direction: usize| result.jobs[job].directions[direction].bandwidth();
    close(rate(0, 0), 60e6, "bytes read per second");
    close(rate(1, 1), 30e6, "bytes written per second");
}

#[test]
fn sequential_writes_reach_the_program_rate() {
    let mut runner = VirtualRunner::new();
    let mut config = drive(nand());
    // Count only data: on a drive this small, map pages and the checkpoint journal take another 2
    // %.
    config.ftl.checkpoint_sectors = u32::MAX;
    let mut d = Controller::new(config).unwrap();
    let pairs = [("rw", "write"), ("bs", "64k"), ("iodepth", "16"), ("end_fsync", "1")];
    let before = runner.now();
    run(&mut d, &mut runner, vec![job(&pairs)]);
    let seconds = runner.now().since(before).as_secs_f64();
    let bytes = d.sectors() as f64 * 4096.0;
    close(bytes / seconds, 16.0 * 4096.0 / 500e-6, "program bandwidth");
}

#[test]
fn sustained_random_writes_meet_the_write_amplification_formula() {
    let mut runner = VirtualRunner::new();
    let mut config = drive(nand());
    // Fast channels, so that only the arrays are a bottleneck.
    if let media::MediaConfig::Nand(n) = &mut config.media {
        n.timing.channel_bytes_per_sec = 0;
        n.geometry.chunks = 256;
    }
    let mut d = Controller::new(config).unwrap();
    precondition(&mut d, &mut runner, 3.0);
    let before = *d.stats().ftl.as_ref().unwrap();
    let pairs = [
        ("rw", "randwrite"),
        ("bs", "4k"),
        ("iodepth", "64"),
        ("norandommap", "1"),
        ("runtime", "60s"),
        ("time_based", "1"),
        ("ramp_time", "20s"),
    ];
    let result = run(&mut d, &mut runner, vec![job(&pairs)]);
    let after = *d.stats().ftl.as_ref().unwrap();
    let wa = after.since(&before).write_amplification().unwrap();
    let time = wa * 500e-6 + (wa - 1.0) * 50e-6 + wa * 3e-3 / 64.0;
    let expected = 16.0 / time;
    let measured = iops(&result, 1);
    println!("write amplification {wa:.3}: {measured:.0} writes/s, formula {expected:.0}");
    assert!((measured / expected - 1.0).abs() < 0.05, "{measured} {expected}");
}

#[test]
fn the_same_seed_gives_the_same_result_to_the_byte() {
    let once = || {
        let mut runner = VirtualRunner::new();
        let mut d = Controller::new(drive(nand())).unwrap();
        precondition(&mut d, &mut runner, 1.0);
        let pairs = [
            ("rw", "randrw"),
            ("bs", "4k"),
            ("iodepth", "16"),
            ("runtime", "300ms"),
            ("time_based", "1"),
            ("norandommap", "1"),
        ];
        let result = run(&mut d, &mut runner, vec![job(&pairs)]);
        (workload::to_fio_json(&result, 0).to_string(), format!("{:?}", d.stats()), runner.now())
    };
    let (a, b) = (once(), once());
    assert_eq!(a, b);
    assert!(a.2 > Nanos::ZERO);
}
