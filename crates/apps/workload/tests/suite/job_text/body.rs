//! Job files with arbitrary content: the parser reports errors, and valid jobs have valid values.

use std::path::Path;

use testkit::choices::{Choices, mangled};

use super::workload::parse_jobs;

/// Valid job files.
const SAMPLES: [&str; 4] = [
    "[global]\nbs=4k\niodepth=4\ntime_based\nruntime=5\nsize=16m\n[readers]\nrw=randread\n\
     [mixed]\nstonewall\nrw=randrw\nrwmixread=50\n",
    "[w]\nrw=randwrite:8\nbssplit=4k/60:8k/40,64k/100\nrandom_distribution=zipf:1.2\nrate_iops=100,200\nnumjobs=3\n",
    "; a comment\n[v]\nrw=write\nbs=16k\nverify=crc32c\ndo_verify=1\nloops=2\nthinktime=100us\n# another\n",
    "[r]\nread_iolog=log\nreplay_redirect=x\nreplay_align=4k\nreplay_scale=2\n[t]\nrw=trim\nbsrange=4k-64k\noffset=10%\n",
];

/// Returns whether the text is a valid job file; the error of an invalid one must be printable.
pub(crate) fn survives(text: &str) -> bool {
    match parse_jobs(Path::new("x.fio"), text) {
        Ok(file) => !format!("{file:?}").is_empty(),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// Parses a valid job file with a few changes.
pub(crate) fn changed(choices: &mut Choices) -> bool {
    survives(&mangled(choices, &SAMPLES))
}

/// Parses a fuzzer's bytes as text, and a job file that they change.
pub(crate) fn fuzz(bytes: &[u8]) {
    survives(&String::from_utf8_lossy(bytes));
    changed(&mut Choices::of(bytes));
}
