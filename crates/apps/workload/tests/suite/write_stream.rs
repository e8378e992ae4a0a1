//! The writes of a job as a stream against those that a job runner issues.

use crate::common;

use block::Op;
use common::{Ram, jobs, run};
use sluice_workload::{JobDevice, JobLimits, JobWrite, RunError, WriteStream};
use time::Nanos;

/// The seed of [`run`].
const SEED: u64 = 1;

fn limits(ram: &Ram) -> block::Limits {
    let JobLimits::Blocks(limits) = JobDevice::limits(ram) else { panic!("it has blocks") };
    limits
}

fn streams(text: &str) -> Result<Option<Vec<WriteStream>>, RunError> {
    WriteStream::of_jobs(&jobs(text), &limits(&Ram::new(1000, Nanos::ZERO)), SEED)
}

#[test]
fn a_stream_has_the_writes_of_the_job_runner() {
    for text in [
        "[fill]\nrw=write\nbs=64k\niodepth=8\n",
        "[a]\nrw=write\nbs=256k\nsize=2m\n[b]\nrw=randwrite\nbs=4k\nio_size=9m\nnorandommap\niodepth=64\nstonewall\n",
        "[a]\nrw=randwrite\nbssplit=4k/50:64k/50\nnumber_ios=333\n[b]\nrw=randwrite\nbs=8k\nrandom_distribution=zipf:1.1\noffset=64k\nstonewall\n",
        "[a]\nrw=randwrite\nbs=4k\nrandseed=7\n",
    ] {
        let (_, log) = run(Ram::new(1000, Nanos::ZERO), text);
        let issued = log.iter().filter(|(_, request)| request.op == Op::Write);
        let issued: Vec<JobWrite> = issued
            .map(|(_, request)| JobWrite { lba: request.lba, sectors: request.sectors })
            .collect();
        assert!(issued.len() > 30, "{text}");
        let mut streamed = Vec::new();
        for mut stream in streams(text).unwrap().unwrap_or_else(|| panic!("{text}")) {
            assert!(stream.progress() < 0.1);
            streamed.extend(std::iter::from_fn(|| stream.next_write()));
            assert!(stream.progress() >= 1.0, "{text}");
        }
        assert!(streamed == issued, "{text}");
    }
}

#[test]
fn jobs_that_do_more_than_write_have_no_stream() {
    let plain = "[a]\nrw=randwrite\nbs=4k\niodepth=4\n";
    assert!(streams(plain).unwrap().is_some());
    for line in [
        "rw=randread",
        "rw=randrw",
        "rw=trimwrite",
        "numjobs=2",
        "loops=2",
        "runtime=1",
        "startdelay=1",
        "thinktime=1",
        "rate=1m",
        "fsync=8",
        "end_fsync=1",
        "verify=crc32c",
        "continue_on_error=write",
        "write_lat_log=x",
        "latency_target=1ms\nlatency_window=1s",
        "iodepth=5000",
        "bs=1m",
    ] {
        assert!(streams(&format!("{plain}{line}\n")).unwrap().is_none(), "{line}");
    }
    let parallel = format!("{plain}[b]\nrw=write\n");
    assert!(streams(&parallel).unwrap().is_none(), "the jobs run at the same time");
    let misfit = streams(&format!("{plain}offset=1g\n"));
    assert!(matches!(misfit, Err(RunError::DeviceMismatch { .. })), "{misfit:?}");
}
