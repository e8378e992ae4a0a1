//! Checks of the options of jobs on parallel units: options without a meaning for them are errors.

use crate::job::{Direction, JobSpec};

const KEYS: &str = "a parallel unit has no records";
const POINTERS: &str = "`pus` and `size` select the chunks, and writes are at their write pointers";
const ONE_SIZE: &str = "vector commands of a direction have one size: `bs`";
const NO_FLUSH: &str =
    "a completed vector write is on the media, so that there is nothing to flush";
const NO_TRACE: &str = "a trace has logical blocks";

/// Options that do not go with `pus`, each with the reason.
const NOT_WITH_UNITS: &[(&str, &str)] = &[
    ("ycsb", KEYS),
    ("recordcount", KEYS),
    ("operationcount", KEYS),
    ("offset", POINTERS),
    ("offset_increment", POINTERS),
    ("random_distribution", POINTERS),
    ("norandommap", POINTERS),
    ("bsrange", ONE_SIZE),
    ("blocksize_range", ONE_SIZE),
    ("bssplit", ONE_SIZE),
    ("fsync", NO_FLUSH),
    ("fdatasync", NO_FLUSH),
    ("end_fsync", NO_FLUSH),
    ("read_iolog", NO_TRACE),
    ("replay_no_stall", NO_TRACE),
    ("replay_time_scale", NO_TRACE),
    ("replay_align", NO_TRACE),
    ("replay_scale", NO_TRACE),
    ("replay_skip", NO_TRACE),
    ("replay_redirect", NO_TRACE),
    ("trace_format", NO_TRACE),
    ("trace_device", NO_TRACE),
    ("wrap", NO_TRACE),
];

/// Checks the description of a job on parallel units. `has` returns whether the job has an option.
///
/// # Errors
/// The option that has no meaning, and a description.
pub(super) fn check(
    spec: &JobSpec,
    has: impl Fn(&str) -> bool,
) -> Result<(), (&'static str, String)> {
    if spec.units.is_none() {
        return Ok(());
    }
    if let Some((option, why)) = NOT_WITH_UNITS.iter().find(|(option, _)| has(option)) {
        return Err((option, format!("`{option}` does not go with `pus`: {why}")));
    }
    let access = &spec.pattern.access;
    let rw = if has("readwrite") { "readwrite" } else { "rw" };
    if access.uses(Direction::Trim) {
        let what = "a job with `pus` resets its chunks before it writes them again: `rw` is read, \
                    randread, write, rw or randrw";
        return Err((rw, what.to_owned()));
    }
    if access.random && !access.uses(Direction::Read) {
        let what = "a chunk is written at its write pointer, not at random: `rw=write`";
        return Err((rw, what.to_owned()));
    }
    Ok(())
}
