//! For random jobs on keys: the run ends, every operation is reaped exactly once, values verify, and
//! equal seeds give equal results. The harness checks tags and the invariants of the device.

// guarantee: A-16

use proptest::prelude::*;
use sluice_workload::{RecordOp, to_fio_json};

use super::harness::{StoreFault, try_run};

fn job() -> impl Strategy<Value = String> {
    let operations = prop::sample::select(vec![
        "ycsb=a\noperationcount=300",
        "ycsb=b\noperationcount=300",
        "ycsb=c\noperationcount=300",
        "ycsb=d\noperationcount=300",
        "ycsb=e\noperationcount=60",
        "ycsb=f\noperationcount=200",
        "ycsb=load",
        "rw=randread",
        "rw=randwrite",
        "rw=randrw\nnorandommap",
        "rw=randtrimwrite",
    ]);
    let extra = prop::collection::vec(
        prop::sample::select(vec![
            "verify=crc32c",
            "fsync=3",
            "end_fsync=1",
            "thinktime=300us",
            "rate_iops=9000",
            "rate=2m,4m",
            "rate_process=poisson",
            "stonewall",
            "group_reporting",
            "numjobs=3",
            "ramp_time=2ms",
            "runtime=30ms",
            "startdelay=1ms",
            "loops=2",
        ]),
        0..5,
    );
    (operations, 1..60u32, extra).prop_map(|(operations, depth, extra)| {
        format!(
            "[j]\nrecordcount=80\nbs=150\n{operations}\niodepth={depth}\n{}\n",
            extra.join("\n")
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_operation_is_reaped_once(jobs in prop::collection::vec(job(), 1..4), seed: u64) {
        // Trims of one job would remove the records that another one reads.
        let trims = jobs.iter().any(|job| job.contains("trim"));
        let errors = if trims { "continue_on_error=all\n" } else { "" };
        let jobs: String = jobs.iter().map(|job| format!("{job}{errors}")).collect();
        let text = format!("[load]\nycsb=load\nrecordcount=80\nbs=150\nverify=crc32c\n[wait]\nstonewall\n\
                            recordcount=80\nbs=150\nrw=read\n[go]\nstonewall\nrecordcount=80\nbs=150\n\
                            rw=read\n{jobs}");
        let once = || try_run(&text, StoreFault::None, seed);
        let run = once().map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        let issued: u64 = run.result.jobs.iter().map(|job| job.requests.issued).sum();
        prop_assert_eq!(issued, run.requests.len() as u64);
        for job in &run.result.jobs {
            let counts = &job.requests;
            prop_assert_eq!(counts.issued, counts.completed + counts.failed);
            prop_assert!(counts.mismatches == 0, "{:?}\n{}", job.failures, text);
            prop_assert!(trims || counts.failed == 0, "{:?}\n{}", job.failures, text);
        }
        let scans = run.requests.iter().filter(|r| r.op == RecordOp::Scan);
        prop_assert!(scans.map(|r| r.count).all(|count| (1..=100).contains(&count)));
        let again = once().unwrap();
        prop_assert_eq!(&run.requests, &again.requests);
        let json = to_fio_json(&run.result, 0).to_string();
        prop_assert_eq!(json, to_fio_json(&again.result, 0).to_string());
    }
}
