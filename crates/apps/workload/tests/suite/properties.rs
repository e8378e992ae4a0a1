//! For random jobs and devices: the run ends, every request is accounted for, data verifies, and
//! equal seeds give equal results.

use crate::common;

use block::{BlockDevice, Op};
use common::{Ram, jobs, run_to_end};
use proptest::prelude::*;
use sluice_workload::{IoCpuCosts, JobRunner, to_fio_json};
use time::Nanos;

fn job() -> impl Strategy<Value = String> {
    let access = prop::sample::select(vec![
        "read",
        "write",
        "trim",
        "randread",
        "randwrite",
        "randtrim",
        "rw",
        "randrw",
        "trimwrite",
        "randtrimwrite",
    ]);
    let sizes = prop::sample::select(vec![
        "bs=4k",
        "bs=16k,8k",
        "bs=128k",
        "bssplit=4k/50:32k/",
        "bssplit=4k/10:8k/90,16k/100",
    ]);
    let extra = prop::collection::vec(
        prop::sample::select(vec![
            "norandommap",
            "verify=crc32c",
            "fsync=3",
            "end_fsync=1",
            "thinktime=300us",
            "thinktime_blocks=5",
            "rate_iops=5000",
            "rate=20m,40m",
            "rate_process=poisson",
            "stonewall",
            "group_reporting",
            "numjobs=3",
            "ramp_time=2ms",
            "time_based\nruntime=9ms",
            "runtime=3ms",
            "size=50%",
            "offset=25%",
            "io_size=3m",
            "number_ios=77",
            "startdelay=1ms",
            "continue_on_error=all",
        ]),
        0..6,
    );
    (access, sizes, 1..40u32, extra).prop_map(|(rw, size, depth, extra)| {
        format!("[j]\nrw={rw}\n{size}\niodepth={depth}\n{}\n", extra.join("\n"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_run_ends_and_adds_up(
        texts in prop::collection::vec(job(), 1..4),
        depth in 1..20u32,
        split in 1..40u32,
        costs in (0..3u64, 0..3u64),
        seed: u64,
    ) {
        let costs = IoCpuCosts { submit: Nanos(costs.0 * 700), complete: Nanos(costs.1 * 900) };
        let once = || {
            let ram = Ram::new(256, Nanos(20_000)).per_sector(Nanos(77)).depth(depth).max_sectors(split);
            let mut host = JobRunner::new(ram, jobs(&texts.concat()), costs, seed).unwrap();
            run_to_end(&mut host);
            let log = host.device().log.clone();
            prop_assert!(host.device().max_outstanding <= host.device().limits().queue_depth);
            Ok((host.finish(), log))
        };
        let (result, log) = once()?;
        let result = result.map_err(|e| TestCaseError::fail(format!("{e}\n{}", texts.concat())))?;
        for job in &result.jobs {
            prop_assert_eq!(job.requests.issued, job.requests.completed);
            prop_assert_eq!((job.requests.mismatches, job.aborted), (0, false));
            prop_assert!(job.directions.iter().map(|d| d.ios).sum::<u64>() <= job.requests.issued);
        }
        let mut sectors = [0u64; 3];
        for (_, request) in &log {
            match request.op {
                Op::Read => sectors[0] += u64::from(request.sectors),
                Op::Write => sectors[1] += u64::from(request.sectors),
                Op::Discard => sectors[2] += u64::from(request.sectors),
                _ => {}
            }
        }
        let ramps = texts.iter().any(|t| t.contains("ramp_time"));
        for (d, sectors) in sectors.iter().enumerate() {
            let bytes: u64 = result.jobs.iter().map(|j| j.directions[d].bytes).sum();
            prop_assert!(bytes == sectors * 4096 || ramps && bytes <= sectors * 4096);
        }
        let (again, log_again) = once()?;
        prop_assert_eq!(log, log_again);
        let json = to_fio_json(&result, 0).to_string();
        prop_assert_eq!(&json, &to_fio_json(&again.unwrap(), 0).to_string());
        prop_assert!(!json.contains("null") && !json.contains("NaN"));
    }
}
