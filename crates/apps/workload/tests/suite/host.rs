//! Jobs run as fio's manual says: order, size, depth, pace, stages, accounting.

use crate::common;

use block::Op;
use common::{Fault, Ram, job_runner, jobs, run, run_to_end, try_run};
use sluice_workload::{Direction, IoCpuCosts, JobRunner, RunError, parse_jobs, to_fio_json};
use time::{Component, Nanos, VirtualRunner};

const US: fn(u64) -> Nanos = Nanos::from_micros;
const MS: fn(u64) -> Nanos = Nanos::from_millis;

fn ram() -> Ram {
    Ram::new(1024, US(100))
}

#[test]
fn a_random_read_job_reads_every_block_once() {
    let (result, log) = run(ram(), "[j]\nrw=randread\niodepth=8");
    let mut lbas: Vec<u64> = log.iter().map(|(_, r)| r.lba).collect();
    assert_ne!(lbas[..10], (0..10).collect::<Vec<_>>());
    lbas.sort_unstable();
    assert_eq!(lbas, (0..1024).collect::<Vec<_>>());
    let job = &result.jobs[0];
    let read = job.direction(Direction::Read);
    assert_eq!(
        (read.ios, read.bytes, job.requests.issued, job.requests.completed),
        (1024, 4 << 20, 1024, 1024)
    );
    // Closed loop: rate = depth / latency.
    assert_eq!(read.runtime, US(100) * 128);
    assert!((read.iops() - 80_000.0).abs() < 1.0);
    assert_eq!((read.clat.min(), read.clat.max(), read.slat.max()), (US(100), US(100), Nanos(0)));
    // Completions of one instant are processed before any request is issued.
    assert_eq!(job.depth_levels, [128, 256, 512, 128, 0, 0, 0]);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let text = "[a]\nrw=randrw\nbssplit=4k/50:16k/50\niodepth=4\nnumjobs=2\n[b]\nrw=randwrite\nrandom_distribution=zipf:1.1\nio_size=1m";
    let json = |seed| {
        let mut host = JobRunner::new(ram(), jobs(text), IoCpuCosts::default(), seed).unwrap();
        run_to_end(&mut host);
        let log = host.device().log.clone();
        (to_fio_json(&host.finish().unwrap(), 0).to_string(), log)
    };
    assert_eq!(json(1), json(1));
    assert_ne!(json(1).1, json(2).1);
    // A randseed determines the job's accesses, whatever the seed of the run is.
    let seeded = |seed| {
        let spec = jobs("[a]\nrw=randread\nrandseed=7");
        let mut host = JobRunner::new(ram(), spec, IoCpuCosts::default(), seed).unwrap();
        run_to_end(&mut host);
        host.device().log.clone()
    };
    assert_eq!(seeded(1), seeded(2));
}

#[test]
fn host_costs_are_serialised_per_job() {
    let costs = IoCpuCosts { submit: US(2), complete: US(3) };
    let mut host =
        JobRunner::new(ram(), jobs("[j]\nrw=randread\niodepth=1\nio_size=400k"), costs, 1).unwrap();
    run_to_end(&mut host);
    let result = host.finish().unwrap();
    let read = result.jobs[0].direction(Direction::Read);
    assert_eq!((read.slat.min(), read.slat.max()), (US(2), US(2)));
    assert_eq!((read.clat.min(), read.clat.max()), (US(103), US(103)));
    assert_eq!(read.runtime, US(105) * 100, "requests are serial: submit, device, complete");
    assert_eq!(result.jobs[0].cpu_busy, US(5) * 100);
    // At depth, the CPU is the limit: 5 us per request.
    let mut host = JobRunner::new(ram(), jobs("[j]\nrw=randread\niodepth=64"), costs, 1).unwrap();
    run_to_end(&mut host);
    let iops = host.finish().unwrap().jobs[0].direction(Direction::Read).iops();
    assert!((iops - 200_000.0).abs() < 5_000.0, "{iops}");
}

#[test]
fn mixes_and_sizes_come_in_their_shares() {
    let (result, _) = run(
        Ram::new(8192, US(10)),
        "[j]\nrw=randrw\nrwmixread=70\nbs=4k,8k\nnorandommap\nnumber_ios=20000\nio_size=1g\niodepth=4",
    );
    let job = &result.jobs[0];
    let [reads, writes] = [0, 1].map(|d| job.directions[d].ios);
    assert_eq!(reads + writes, 20_000);
    assert!((reads as f64 / 20_000.0 - 0.7).abs() < 0.01, "{reads}");
    assert_eq!((job.directions[0].bytes, job.directions[1].bytes), (reads * 4096, writes * 8192));
}

#[test]
fn runtime_and_ramp_bound_what_is_measured() {
    let text = "[j]\nrw=randread\ntime_based\nruntime=100ms\nramp_time=50ms\niodepth=2";
    let (result, log) = run(ram(), text);
    let job = &result.jobs[0];
    let read = job.direction(Direction::Read);
    assert_eq!(log.len(), 2 * 1500);
    assert_eq!((read.ios, read.runtime, job.requests.issued), (2000, MS(100), 3000));
    assert_eq!(job.series.intervals().map(|i| i.ios[0]).sum::<u64>(), 2000);
    // A job that ends within its ramp has no measurements, and reports only finite numbers.
    let (result, _) = run(ram(), "[j]\nrw=randread\nramp_time=1h");
    let text = to_fio_json(&result, 0).to_string();
    assert!(!text.contains("NaN") && !text.contains("null") && !text.contains(":inf"));
    assert_eq!(result.jobs[0].direction(Direction::Read).iops(), 0.0);
    // Without time_based the size ends the job first, and the runtime caps it.
    let (result, _) = run(ram(), "[j]\nrw=read\nruntime=10ms");
    assert_eq!(result.jobs[0].direction(Direction::Read).ios, 100);
    let (result, _) = run(ram(), "[j]\nrw=read\nruntime=1h\nsize=1m");
    assert_eq!(result.jobs[0].direction(Direction::Read).ios, 256);
}

#[test]
fn rates_are_kept() {
    for (options, direction, iops) in [
        ("rw=randread\nrate_iops=2000", 0, 2000.0),
        ("rw=randread\nrate=4m", 0, 1024.0),
        ("rw=randrw\nrate_iops=3000,1000", 1, 1000.0),
        ("rw=randrw\nrate_iops=3000,1000", 0, 3000.0),
        ("rw=randread\nrate_iops=2000\nrate_process=poisson", 0, 2000.0),
    ] {
        let text = format!("[j]\n{options}\ntime_based\nruntime=4\niodepth=16");
        let (result, _) = run(ram(), &text);
        let measured = result.jobs[0].directions[direction].iops();
        let tolerance = if options.contains("poisson") { 0.04 } else { 0.005 };
        assert!((measured / iops - 1.0).abs() < tolerance, "{options}: {measured}");
    }
    // Linear pacing is even, Poisson pacing is not.
    let gaps = |process: &str| {
        let text = format!("[j]\nrw=read\nrate_iops=1000\n{process}\nnumber_ios=500\niodepth=16");
        let (_, log) = run(ram(), &text);
        let gaps: Vec<u64> = log.windows(2).map(|w| (w[1].0 - w[0].0).0).collect();
        (*gaps.iter().min().unwrap(), *gaps.iter().max().unwrap())
    };
    assert_eq!(gaps("rate_process=linear"), (1_000_000, 1_000_000));
    let (least, most) = gaps("rate_process=poisson");
    assert!(least < 100_000 && most > 3_000_000);
}

#[test]
fn think_time_drains_and_waits() {
    let (_, log) =
        run(ram(), "[j]\nrw=read\nsize=64k\niodepth=8\nthinktime=1ms\nthinktime_blocks=4");
    let times: Vec<u64> = log.iter().map(|(t, _)| t.0 / 1000).collect();
    let expected: Vec<u64> = (0..16).map(|i| i / 4 * 1100).collect();
    assert_eq!(times, expected);
}

#[test]
fn flushes_come_after_every_n_writes_and_at_the_end() {
    let (result, log) = run(ram(), "[j]\nrw=write\nsize=40k\nfsync=4\nend_fsync=1");
    let ops: Vec<Op> = log.iter().map(|(_, r)| r.op).collect();
    let (w, f) = (Op::Write, Op::Flush);
    assert_eq!(ops, [w, w, w, w, f, w, w, w, w, f, w, w, f]);
    let job = &result.jobs[0];
    assert_eq!((job.sync.count(), job.directions[1].ios, job.requests.issued), (2, 10, 13));
}

#[test]
fn a_stonewall_waits_for_everything_before_it() {
    let text = "[a]\nrw=read\nsize=400k\n[b]\nrw=read\nsize=200k\nstartdelay=3ms\n[c]\nstonewall\nrw=write\nsize=4k\nnumjobs=2\n[d]\nstonewall\nrw=read\nsize=4k";
    let (result, log) = run(ram(), text);
    let started: Vec<u64> = result.jobs.iter().map(|j| j.started.0 / 1000).collect();
    assert_eq!(started, [0, 3000, 10_000, 10_000, 10_100]);
    assert_eq!(result.jobs.iter().map(|j| j.group).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
    assert_eq!(result.elapsed, US(10_200));
    let first_write = log.iter().position(|(_, r)| r.op == Op::Write).unwrap();
    assert_eq!(first_write, 150);
}

#[test]
fn clones_share_the_region_unless_told_otherwise() {
    let (_, log) = run(ram(), "[j]\nrw=write\nsize=8k\nnumjobs=3\noffset=1m\noffset_increment=64k");
    let mut lbas: Vec<u64> = log.iter().map(|(_, r)| r.lba).collect();
    lbas.sort_unstable();
    assert_eq!(lbas, [256, 257, 272, 273, 288, 289]);
    let (_, log) = run(ram(), "[j]\nrw=read\nsize=25%\noffset=50%");
    assert_eq!((log[0].1.lba, log.len()), (512, 256));
}

#[test]
fn trims_become_discards_and_trimwrite_writes_after_each() {
    let (result, log) = run(ram(), "[j]\nrw=randtrim\nbs=16k");
    assert!(log.iter().all(|(_, r)| r.op == Op::Discard && r.sectors == 4));
    assert_eq!(result.jobs[0].directions[2].ios, 256);
    for rw in ["trimwrite", "randtrimwrite"] {
        let (result, log) = run(ram(), &format!("[j]\nrw={rw}\niodepth=4\nsize=1m"));
        let job = &result.jobs[0];
        assert_eq!((job.directions[1].ios, job.directions[2].ios), (256, 256), "{rw}");
        let mut trimmed = std::collections::HashMap::new();
        for (at, r) in log {
            match r.op {
                Op::Discard => drop(trimmed.insert(r.lba, at)),
                Op::Write => assert!(trimmed.remove(&r.lba).unwrap() + US(100) <= at),
                _ => unreachable!(),
            }
        }
        assert!(trimmed.is_empty());
    }
}

#[test]
fn long_requests_are_split_and_a_full_device_is_shared() {
    let (result, log) = run(ram().max_sectors(8).depth(3), "[j]\nrw=randread\nbs=128k\niodepth=4");
    assert_eq!(log.len(), 128);
    assert!(log.iter().all(|(_, r)| r.sectors == 8));
    let read = result.jobs[0].direction(Direction::Read);
    assert_eq!((read.ios, read.bytes), (32, 4 << 20));
    let text = "[a]\nrw=randread\niodepth=32\ntime_based\nruntime=1\nnumjobs=4";
    let (result, _) = run(ram().depth(8), text);
    let ios: Vec<u64> = result.jobs.iter().map(|j| j.directions[0].ios).collect();
    assert_eq!(ios.iter().sum::<u64>(), result.jobs.iter().map(|j| j.requests.issued).sum::<u64>());
    let (least, most) = (*ios.iter().min().unwrap(), *ios.iter().max().unwrap());
    assert!(most - least <= most / 10, "the jobs share the device equally: {ios:?}");
    assert!((ios.iter().sum::<u64>() as i64 - 80_000).abs() < 200, "{ios:?}");
}

#[test]
fn groups_are_reported_as_one() {
    let text =
        "[a]\nrw=randread\nnumjobs=3\nsize=1m\ngroup_reporting\n[b]\nrw=read\nsize=1m\nnew_group";
    let (result, _) = run(ram(), text);
    let reported = result.reported_jobs();
    assert_eq!(reported.len(), 2);
    assert_eq!((reported[0].members, reported[0].directions[0].ios), (3, 768));
    let sum: f64 = result.jobs[..3].iter().map(|j| j.directions[0].iops()).sum();
    assert!((reported[0].directions[0].iops() / sum - 1.0).abs() < 1e-9);
}

#[test]
fn what_does_not_fit_the_device_is_refused() {
    for (text, part) in [
        ("[j]\nrw=read\nbs=512", "whole sectors of 4096"),
        ("[j]\nrw=read\nsize=1g", "past the end of the device (4194304 bytes)"),
        ("[j]\nrw=read\noffset=4m", "offset is past the end"),
        ("[j]\nrw=read\noffset=100", "not in whole sectors"),
        ("[j]\nrw=read\nbs=8m", "does not fit the job's region"),
        ("[j]\nread_iolog=/nonexistent", "No such file"),
    ] {
        let error = JobRunner::new(ram(), jobs(text), IoCpuCosts::default(), 1).err().unwrap();
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.to_string().contains("`j`"), "{error}");
    }
    assert!(matches!(
        JobRunner::new(ram(), Vec::new(), IoCpuCosts::default(), 1),
        Err(RunError::NoJobs)
    ));
}

#[test]
fn every_request_is_accounted_for_or_the_run_fails() {
    let lost =
        try_run(ram().fault(Fault::Lose(5)), "[j]\nrw=read\nsize=40k\niodepth=2").unwrap_err();
    assert!(matches!(lost, RunError::NotFinished { outstanding: 1, .. }), "{lost}");
    let stray = try_run(ram().fault(Fault::Spurious), "[j]\nrw=read").unwrap_err();
    assert!(matches!(stray, RunError::SpuriousCompletion { .. }), "{stray}");
}

#[test]
fn a_failed_request_ends_its_job_unless_tolerated() {
    let text = "[a]\nrw=read\nsize=1m\n[b]\nrw=read\nsize=1m\noffset=1m";
    let (result, _) = run(ram().fault(Fault::FailRead(7)), text);
    let [a, b] = &result.jobs[..] else { panic!() };
    assert_eq!(
        (a.requests.failed, a.requests.completed, a.requests.issued, a.aborted),
        (1, 7, 8, true)
    );
    assert_eq!((b.requests.failed, b.requests.completed, b.aborted), (0, 256, false));
    let (job, failure) = result.failures().next().unwrap();
    assert_eq!((job, failure.lba, failure.errno()), ("a", 7, 5));
    assert_eq!(to_fio_json(&result, 0)["jobs"][0]["error"], 5);
    let (result, _) =
        run(ram().fault(Fault::FailRead(7)), "[a]\nrw=read\nsize=1m\ncontinue_on_error=io");
    assert_eq!((result.jobs[0].requests.failed, result.jobs[0].requests.completed), (1, 255));
    let json = to_fio_json(&result, 0);
    assert_eq!((&json["jobs"][0]["error"], &json["jobs"][0]["total_err"]), (&0.into(), &1.into()));
    let (result, _) = run(ram().fault(Fault::Full), "[a]\nrw=write");
    assert_eq!(result.jobs[0].errno(), 28);
}

#[test]
fn time_that_stands_still_is_an_error() {
    let text = "[forever]\nrw=randread\ntime_based\nruntime=1\niodepth=64";
    let error = try_run(Ram::new(16, Nanos::ZERO), text).unwrap_err();
    assert!(matches!(&error, RunError::TimeStalled { job, .. } if job == "forever"), "{error}");
    let costs = IoCpuCosts { submit: US(10), complete: Nanos::ZERO };
    let mut host = JobRunner::new(Ram::new(16, Nanos::ZERO), jobs(text), costs, 1).unwrap();
    run_to_end(&mut host);
    assert_eq!(host.finish().unwrap().jobs[0].directions[0].ios, 100_000);
}

#[test]
fn a_run_can_be_stopped_and_still_adds_up() {
    let text = "[a]\nrw=randread\ntime_based\nruntime=1h\niodepth=4\n[b]\nstonewall\nrw=read";
    let mut host = job_runner(ram(), text);
    let mut runner = VirtualRunner::new();
    runner.run_until_time(&mut [&mut host], MS(10));
    assert!(!host.is_done() && host.progress() > 0.0);
    host.stop();
    runner.run_until_time(&mut [&mut host], MS(20));
    assert!(host.is_done());
    let result = host.finish().unwrap();
    assert!((400..=410).contains(&result.jobs[0].requests.completed));
    assert_eq!(result.jobs[0].requests.issued, result.jobs[0].requests.completed);
    assert_eq!(result.jobs[1].requests.issued, 0);
}

#[test]
fn late_polls_do_no_harm() {
    // Polls at intervals, as in real time, and not at the deadlines.
    let mut host =
        job_runner(ram(), "[j]\nrw=randrw\nrate_iops=1000,1000\ntime_based\nruntime=1\niodepth=8");
    let mut now = Nanos::ZERO;
    while !host.is_done() {
        host.poll(now);
        now += US(37);
    }
    let result = host.finish().unwrap();
    for d in 0..2 {
        assert!((result.jobs[0].directions[d].ios as i64 - 1000).abs() <= 8);
        assert!(
            result.jobs[0].directions[d].clat.min() >= US(100),
            "no request completes before the device's latency"
        );
    }
}

#[test]
fn fio_job_files_with_everything_in_them_run() {
    let text = "; a comment\n[global]\nioengine=libaio\ndirect=1\nfilename=/dev/nvme0n1\nbs=4k\nsize=2m\ngroup_reporting\n\n[readers]\nrw=randread\niodepth=4\nnumjobs=2\n# another\n[writers]\nrw=randwrite\nrandom_distribution=zoned:80/20:20/80\nio_size=1m\npercentile_list=50:99.9\n";
    let parsed = parse_jobs(std::path::Path::new("x.fio"), text).unwrap();
    assert_eq!(parsed.ignored, ["direct", "filename", "ioengine"]);
    let mut host = JobRunner::new(ram(), parsed.jobs, IoCpuCosts::default(), 1).unwrap();
    run_to_end(&mut host);
    let json = to_fio_json(&host.finish().unwrap(), 0);
    assert_eq!(json["jobs"].as_array().unwrap().len(), 1, "the jobs are reported as one group");
    assert_eq!(json["global options"]["bs"], "4k");
    assert_eq!(json["jobs"][0]["read"]["total_ios"], 1024);
    assert_eq!(json["jobs"][0]["write"]["total_ios"], 256);
}

#[test]
fn loops_run_the_whole_job_again() {
    // Counts of fio 3.33 for the same options: every loop draws the same blocks, and only the count
    // of writes until a flush continues.
    for (options, [reads, writes], syncs) in [
        ("rw=randread\nloops=3", [768, 0], 0),
        ("rw=randread\nloops=3\nnumber_ios=10", [30, 0], 0),
        ("rw=read\nloops=3\nio_size=12k", [9, 0], 0),
        ("rw=read\nloops=2\nio_size=20k", [10, 0], 0),
        ("rw=write\nloops=3\nverify=crc32c", [768, 768], 0),
        ("rw=write\nloops=3\nfsync=10\nend_fsync=1", [0, 768], 76),
    ] {
        let (result, log) = run(ram(), &format!("[j]\nsize=1m\n{options}"));
        let job = &result.jobs[0];
        let ios = [Direction::Read, Direction::Write].map(|d| job.direction(d).ios);
        assert_eq!((ios, job.sync.count()), ([reads, writes], syncs), "{options}");
        if options.starts_with("rw=randread\nloops=3") {
            let lbas: Vec<u64> = log.iter().map(|(_, r)| r.lba).collect();
            let loops: Vec<&[u64]> = lbas.chunks(lbas.len() / 3).collect();
            assert!(loops[0] == loops[1] && loops[1] == loops[2], "{options}");
        }
    }
    // No request is outstanding between two loops, and time counts once.
    let (result, log) = run(ram(), "[j]\nrw=read\nsize=12k\niodepth=2\nloops=2");
    let times: Vec<u64> = log.iter().map(|(t, _)| t.0 / 100_000).collect();
    assert_eq!(times, [0, 0, 1, 2, 2, 3]);
    assert_eq!(result.jobs[0].direction(Direction::Read).runtime, US(400));
    let (result, _) = run(ram(), "[j]\nrw=write\nsize=16k\nloops=3\nverify=crc32c");
    let job = &result.jobs[0];
    let runtimes = [Direction::Write, Direction::Read].map(|d| job.direction(d).runtime);
    assert_eq!((runtimes, job.requests.verified), ([US(1200); 2], 12));
    // A runtime ends all loops, and so does an error.
    let (result, _) = run(ram(), "[j]\nrw=read\nsize=40k\nloops=1000\nruntime=5ms");
    assert_eq!(result.jobs[0].ended, MS(5));
    let (result, _) = run(ram().fault(Fault::FailRead(3)), "[j]\nrw=read\nsize=40k\nloops=5");
    assert_eq!((result.jobs[0].requests.failed, result.jobs[0].requests.completed), (1, 3));
}

#[test]
fn the_depth_that_meets_a_latency_target_is_found() {
    // This device's latency does not depend on the depth, so that every depth meets the target or
    // none does. A device that executes one request at a time would have a latency of depth *
    // latency.
    let text = |target: u64| {
        format!(
            "[j]\nrw=randread\niodepth=24\ntime_based\nruntime=1s\nlatency_target={target}us\n\
             latency_window=5ms\nlatency_percentile=99"
        )
    };
    let (result, _) = run(ram(), &text(100));
    let job = &result.jobs[0];
    let found = job.depth_search.unwrap();
    assert_eq!((found.depth, found.met, found.converged), (24, true, true));
    // The result is that of one window at this depth: 24 / 100 us.
    let read = job.direction(Direction::Read);
    assert!((read.iops() / 240_000.0 - 1.0).abs() < 0.03, "{}", read.iops());
    assert!(job.ended < MS(50), "{}", job.ended);
    let json = &to_fio_json(&result, 0)["jobs"][0];
    assert_eq!((&json["latency_depth"], &json["latency_target"]), (&24.into(), &100_000.into()));
    assert_eq!(json["latency_window"], 5000);
    assert_eq!(json["latency_percentile"], 99.0);
    // A target that no depth meets: the job stays at 1 until its end, as fio's does.
    let (result, _) = run(ram(), &text(99));
    let job = &result.jobs[0];
    let found = job.depth_search.unwrap();
    assert_eq!((found.depth, found.met, found.converged), (1, false, false));
    assert_eq!((job.ended, job.depth_levels[1..].iter().sum::<u64>()), (Nanos::from_secs(1), 0));
}

#[test]
fn many_jobs_share_a_device_as_few_do() {
    // More jobs than the device's depth: each job gets an equal share.
    let text = "[j]\nrw=randread\niodepth=4\nnumjobs=300\ntime_based\nruntime=30ms\nsize=64k";
    let (result, _) = run(ram().depth(100), text);
    let ios: Vec<u64> = result.jobs.iter().map(|j| j.direction(Direction::Read).ios).collect();
    // The device executes 100 requests at a time, for 300 times 100 us, plus the requests that
    // waited at the end.
    let sum = ios.iter().sum::<u64>();
    assert!((300 * 100..=300 * 100 + 300).contains(&sum), "{sum}");
    assert!(ios.iter().all(|n| n.abs_diff(100) <= 4), "{ios:?}");
}

#[test]
fn jobs_that_need_more_memory_than_there_is_are_refused_before_anything_is_set_up() {
    let text = "[j]\nrw=randwrite\niodepth=65536\nnumjobs=4096\nverify=crc32c\nbs=1m\n";
    let error = JobRunner::new(ram(), jobs(text), IoCpuCosts::default(), 1).err().unwrap();
    let RunError::TooLarge { jobs: 4096, iodepth: 65_536, need_bytes, available_bytes, .. } = error
    else {
        panic!("{error}");
    };
    assert!(need_bytes > 4096 * 65_536 * (1 << 20) && available_bytes < need_bytes);
}
