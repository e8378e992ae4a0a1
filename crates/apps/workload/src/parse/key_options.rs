//! Checks of the options of jobs on keys: options without a meaning for them are errors.

use crate::io_range::key_range;
use crate::job::JobSpec;
use crate::key_spec::{KeySpec, YCSB_VALUE_BYTES, YcsbPhase};

const MIX: &str = "the workload determines the operations and their records";
const AMOUNT: &str = "`recordcount` and `operationcount` are the amount of work";
const ONE_SIZE: &str = "values have one size: `bs`";
const NO_KEYS: &str = "a trace has no keys";

/// Options that do not go with `ycsb`, each with the reason.
const NOT_WITH_YCSB: &[(&str, &str)] = &[
    ("rw", MIX),
    ("readwrite", MIX),
    ("rwmixread", MIX),
    ("rwmixwrite", MIX),
    ("random_distribution", MIX),
    ("norandommap", MIX),
    ("size", AMOUNT),
    ("io_size", AMOUNT),
    ("io_limit", AMOUNT),
    ("offset", AMOUNT),
    ("offset_increment", AMOUNT),
    ("number_ios", AMOUNT),
];

/// Options that do not go with any job on keys, each with the reason.
const NOT_WITH_KEYS: &[(&str, &str)] = &[
    ("bsrange", ONE_SIZE),
    ("blocksize_range", ONE_SIZE),
    ("bssplit", ONE_SIZE),
    ("read_iolog", NO_KEYS),
    ("replay_no_stall", NO_KEYS),
    ("replay_time_scale", NO_KEYS),
    ("replay_align", NO_KEYS),
    ("replay_scale", NO_KEYS),
    ("replay_skip", NO_KEYS),
    ("replay_redirect", NO_KEYS),
    ("trace_format", NO_KEYS),
    ("trace_device", NO_KEYS),
    ("wrap", NO_KEYS),
];

/// Completes the description of a job on keys by the defaults of YCSB. `has` returns whether the
/// job has an option.
///
/// # Errors
/// The option that has no meaning or does not fit, and a description.
pub(super) fn complete(
    spec: &mut JobSpec,
    has: impl Fn(&str) -> bool,
) -> Result<(), (&'static str, String)> {
    let Some(keys) = spec.keys else { return Ok(()) };
    if keys.ycsb.is_some() && !has("bs") && !has("blocksize") {
        spec.pattern.block_sizes =
            spec.pattern.block_sizes.each_ref().map(|_| vec![(YCSB_VALUE_BYTES, 100.0)]);
    }
    spec.set_ycsb_directions();
    let (with, refused) = match keys.ycsb {
        Some(_) => ("ycsb", NOT_WITH_YCSB),
        None => ("recordcount", &[][..]),
    };
    if let Some((option, why)) = refused.iter().chain(NOT_WITH_KEYS).find(|(o, _)| has(o)) {
        return Err((option, format!("`{option}` does not go with `{with}`: {why}")));
    }
    match check_amount(spec, &keys) {
        Some(problem) => Err(problem),
        None => [0, spec.numjobs.saturating_sub(1)]
            .iter()
            .try_for_each(|clone| key_range(spec, &keys, *clone).map(|_| ())),
    }
}

/// Returns the problem of the options that limit the work of a job.
fn check_amount(spec: &JobSpec, keys: &KeySpec) -> Option<(&'static str, String)> {
    let operations = keys.operation_count.is_some();
    let (option, what) = match keys.ycsb {
        None if operations && keys.record_count > 0 => {
            ("operationcount", "`operationcount` needs a `ycsb`; other jobs have `number_ios`")
        }
        None if keys.record_count == 0 => {
            ("operationcount", "`operationcount` needs a `ycsb` and a `recordcount`")
        }
        _ if keys.record_count == 0 => ("ycsb", "`ycsb` needs a `recordcount`"),
        Some(YcsbPhase::Load) if operations => {
            ("operationcount", "`ycsb=load` inserts `recordcount` records, not `operationcount`")
        }
        Some(YcsbPhase::Load) if spec.schedule.time_based => {
            ("time_based", "`time_based` does not go with `ycsb=load`, which ends")
        }
        Some(YcsbPhase::Run(_)) if !operations && spec.schedule.runtime.is_none() => {
            ("ycsb", "`ycsb` needs an `operationcount` or a `runtime`")
        }
        Some(phase) if spec.integrity.verify && !operations && phase.has_inserts() => {
            ("verify", "`verify` of a workload that inserts needs an `operationcount`")
        }
        Some(phase) if spec.integrity.verify && spec.schedule.time_based && phase.has_inserts() => {
            ("time_based", "`time_based` does not go with `verify` of a workload that inserts")
        }
        _ => return None,
    };
    Some((option, what.to_owned()))
}
