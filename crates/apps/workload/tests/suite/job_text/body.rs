//! Job files of any content: a reader that says what is wrong, and jobs that say what they are.

use std::path::Path;

use testkit::choices::{Choices, mangled};

use super::workload::parse_jobs;

/// Job files that are right.
const SAMPLES: [&str; 4] = [
    "[global]\nbs=4k\niodepth=4\ntime_based\nruntime=5\nsize=16m\n[readers]\nrw=randread\n\
     [mixed]\nstonewall\nrw=randrw\nrwmixread=50\n",
    "[w]\nrw=randwrite:8\nbssplit=4k/60:8k/40,64k/100\nrandom_distribution=zipf:1.2\nrate_iops=100,200\nnumjobs=3\n",
    "; a comment\n[v]\nrw=write\nbs=16k\nverify=crc32c\ndo_verify=1\nloops=2\nthinktime=100us\n# another\n",
    "[r]\nread_iolog=log\nreplay_redirect=x\nreplay_align=4k\nreplay_scale=2\n[t]\nrw=trim\nbsrange=4k-64k\noffset=10%\n",
];

/// Whether the text is a job file; what is wrong with one that is not can be said.
pub(crate) fn survives(text: &str) -> bool {
    match parse_jobs(Path::new("x.fio"), text) {
        Ok(file) => !format!("{file:?}").is_empty(),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A job file with a few changes.
pub(crate) fn changed(choices: &mut Choices) -> bool {
    survives(&mangled(choices, &SAMPLES))
}

/// Runs on a fuzzer's bytes: a text of them, and a text that they change.
pub(crate) fn fuzz(bytes: &[u8]) {
    survives(&String::from_utf8_lossy(bytes));
    changed(&mut Choices::of(bytes));
}
