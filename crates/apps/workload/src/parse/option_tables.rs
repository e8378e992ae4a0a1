//! Tables of all options of a fio job file: supported, without effect, or refused with a reason.
//! The parser uses these tables, and `docs/fio.md` is generated from them.

/// A supported option.
pub(crate) struct SupportedOption {
    /// Name of the option in fio, or of an option that only Sluice has.
    pub(crate) name: &'static str,
    /// Other names of the option.
    pub(crate) aliases: &'static [&'static str],
    /// Description of the allowed values.
    pub(crate) values: &'static str,
    /// Effect of the option, and differences from fio.
    pub(crate) meaning: &'static str,
}

/// An option of fio that Sluice refuses.
pub(crate) struct RefusedOption {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    /// Values that disable the option, such as `0`. The parser ignores an option with one of these
    /// values.
    pub(crate) off: &'static [&'static str],
    pub(crate) why: &'static str,
}

const fn supported_option(
    name: &'static str,
    aliases: &'static [&'static str],
    values: &'static str,
    meaning: &'static str,
) -> SupportedOption {
    SupportedOption { name, aliases, values, meaning }
}

const fn refused_option(
    name: &'static str,
    off: &'static [&'static str],
    why: &'static str,
) -> RefusedOption {
    RefusedOption { name, aliases: &[], off, why }
}

/// Supported options, in the order of the reference page.
pub(crate) const SUPPORTED: &[SupportedOption] = &[
    supported_option("name", &[], "text", "The job's name instead of its section's."),
    supported_option("description", &[], "text", "Carried into the results."),
    supported_option(
        "rw",
        &["readwrite"],
        "a kind of access",
        "read, write, trim, randread, randwrite, randtrim, rw (readwrite), randrw, trimwrite or randtrimwrite.",
    ),
    supported_option(
        "rwmixread",
        &[],
        "0 to 100",
        "Percentage of reads of a mixed job; 50 unless said.",
    ),
    supported_option("rwmixwrite", &[], "0 to 100", "The rest of `rwmixread`."),
    supported_option(
        "bs",
        &["blocksize"],
        "sizes",
        "Block size of reads, writes and trims: `4k` or `4k,8k,16k`; whole sectors of the drive.",
    ),
    supported_option(
        "bsrange",
        &["blocksize_range"],
        "ranges of sizes",
        "`4k-64k`: every multiple of the first up to the second is as likely, 256 of them at most.",
    ),
    supported_option(
        "bssplit",
        &[],
        "sizes with percentages",
        "`4k/50:64k/50`; what has no percentage shares the rest.",
    ),
    supported_option(
        "size",
        &[],
        "size or percentage",
        "The part of the drive that the job works on; the whole drive unless said. 0 is refused.",
    ),
    supported_option(
        "io_size",
        &["io_limit"],
        "size or percentage",
        "Bytes to move; those of `size` unless said.",
    ),
    supported_option("offset", &[], "size or percentage", "Where the part begins."),
    supported_option(
        "offset_increment",
        &[],
        "size or percentage",
        "Added to `offset` for each clone of `numjobs`.",
    ),
    supported_option("number_ios", &[], "number", "Requests to issue at most, per loop."),
    supported_option(
        "loops",
        &[],
        "number",
        "How often the whole job runs, one after the other. As in fio, each loop draws what the first drew, and a job with a `verify` verifies in each.",
    ),
    supported_option(
        "iodepth",
        &[],
        "1 to 65536",
        "Requests outstanding at most; 1 unless said, 1024 for a trace with times.",
    ),
    supported_option("numjobs", &[], "1 to 4096", "Clones of the job."),
    supported_option(
        "runtime",
        &["timeout"],
        "time",
        "The job ends after this long; seconds without a unit.",
    ),
    supported_option(
        "time_based",
        &[],
        "flag",
        "The job runs for all of `runtime`, however often it has covered its part.",
    ),
    supported_option("ramp_time", &[], "time", "Runs this long before anything is measured."),
    supported_option("startdelay", &["start_delay"], "time", "Starts this long after its stage."),
    supported_option(
        "rate",
        &[],
        "bytes per second",
        "Upper limit per direction: `1m` or `1m,500k`.",
    ),
    supported_option("rate_iops", &[], "requests per second", "Upper limit per direction."),
    supported_option(
        "rate_process",
        &[],
        "linear, poisson",
        "How limited requests are spread over time.",
    ),
    supported_option(
        "random_distribution",
        &[],
        "distribution",
        "random, zipf:THETA, pareto:H, zoned:... or zoned_abs:...",
    ),
    supported_option(
        "norandommap",
        &[],
        "flag",
        "Random blocks may repeat before all were touched.",
    ),
    supported_option("randseed", &[], "number", "The job's own seed; the scenario's unless said."),
    supported_option(
        "thinktime",
        &[],
        "time",
        "Pause after `thinktime_blocks` requests; microseconds without a unit.",
    ),
    supported_option(
        "thinktime_blocks",
        &[],
        "number",
        "Requests between two pauses; 1 unless said.",
    ),
    supported_option(
        "fsync",
        &["fdatasync"],
        "number",
        "A flush after so many writes; 0 for none.",
    ),
    supported_option("end_fsync", &[], "flag", "A flush when the job has written everything."),
    supported_option(
        "verify",
        &[],
        "crc32c, none",
        "Blocks carry a checksum, and are read back and checked. Other checksums of fio are refused.",
    ),
    supported_option(
        "do_verify",
        &[],
        "flag",
        "Whether a writing job with `verify` reads back at its end.",
    ),
    supported_option(
        "continue_on_error",
        &[],
        "kinds of errors",
        "none, read, write, io, verify or all: errors that do not end the job.",
    ),
    supported_option(
        "stonewall",
        &["wait_for_previous"],
        "flag",
        "Starts when all jobs before it have ended.",
    ),
    supported_option("new_group", &[], "flag", "Begins a group of results."),
    supported_option("group_reporting", &[], "flag", "Neighbors of one group are reported as one."),
    supported_option(
        "percentile_list",
        &[],
        "percentages",
        "Percentiles of the JSON, up to 20: `50:99:99.9`.",
    ),
    supported_option(
        "latency_target",
        &[],
        "time",
        "Finds the greatest depth, up to `iodepth`, whose latency meets this: doubles the depth until a window fails, then halves the distance. The result is of one more window at that depth. Microseconds without a unit.",
    ),
    supported_option(
        "latency_window",
        &[],
        "time",
        "How long each depth is tried; needed with `latency_target`. Microseconds without a unit.",
    ),
    supported_option(
        "latency_percentile",
        &[],
        "0 to 100",
        "Percentage of a window's requests that must meet the target; 100 unless said, and then one late request ends the window.",
    ),
    supported_option("latency_run", &[], "flag", "The search goes on until the job ends."),
    supported_option(
        "write_lat_log",
        &[],
        "name",
        "Writes `NAME_slat.N.log`, `NAME_clat.N.log` and `NAME_lat.N.log`, N counting jobs and their clones from 1; the job's name unless said. Relative to the current folder.",
    ),
    supported_option("write_bw_log", &[], "name", "Writes `NAME_bw.N.log`."),
    supported_option("write_iops_log", &[], "name", "Writes `NAME_iops.N.log`."),
    supported_option(
        "log_avg_msec",
        &[],
        "milliseconds",
        "One line per window of this length and direction instead of one per request.",
    ),
    supported_option(
        "log_max_value",
        &["log_max"],
        "flag",
        "A window's greatest value instead of its average.",
    ),
    supported_option("log_offset", &[], "flag", "Lines have the offset of the request."),
    supported_option("per_job_logs", &[], "1", "Every job has a log of its own; 0 is refused."),
    supported_option(
        "read_iolog",
        &[],
        "file",
        "Replays a trace, see `docs/traces.md`. The path is relative to the job file.",
    ),
    supported_option(
        "replay_no_stall",
        &[],
        "flag",
        "Ignores times and waits of the trace: as fast as `iodepth` allows.",
    ),
    supported_option(
        "replay_time_scale",
        &[],
        "percentage",
        "200 replays twice as fast, 50 half as fast.",
    ),
    supported_option(
        "replay_align",
        &[],
        "power of two",
        "Rounds offsets down to a multiple of it, and lengths up to whole sectors. fio leaves lengths as they are.",
    ),
    supported_option("replay_scale", &[], "number", "Divides offsets by it."),
    supported_option(
        "replay_skip",
        &[],
        "kinds of requests",
        "Leaves out requests of these kinds: read, write, trim, sync, with commas between.",
    ),
    supported_option(
        "replay_redirect",
        &[],
        "1, or a device",
        "All files or devices of the trace go to this drive, whatever its name.",
    ),
    supported_option(
        "ycsb",
        &[],
        "load, a to f",
        "Sluice's own: the job is a phase of YCSB on a key-value target, see *Keys*.",
    ),
    supported_option(
        "recordcount",
        &[],
        "1 to 4294967296",
        "Sluice's own, as in YCSB: the records of a job on a key-value target.",
    ),
    supported_option(
        "operationcount",
        &[],
        "number",
        "Sluice's own, as in YCSB: operations of `ycsb` a to f, per clone and loop.",
    ),
    supported_option(
        "pus",
        &[],
        "0-3, 0,4,8-11",
        "Sluice's own: the parallel units of a job on physical addresses, see *Parallel units*.",
    ),
    supported_option(
        "trace_format",
        &[],
        "auto, iolog, msr, mqsim",
        "Sluice's own: the format of the trace.",
    ),
    supported_option(
        "trace_device",
        &[],
        "number",
        "Sluice's own: only the requests to this device of the trace.",
    ),
    supported_option(
        "wrap",
        &[],
        "flag",
        "Sluice's own: requests past the end of the drive wrap around.",
    ),
];

/// Options that have no effect here: they select how fio accesses a file, or how it prints.
pub(crate) const IGNORED: &[(&str, &str)] = &[
    ("allow_file_create", FILES),
    ("allow_mounted_write", FILES),
    ("allrandrepeat", SEED),
    ("buffer_compress_chunk", CONTENT),
    ("buffer_compress_percentage", CONTENT),
    ("buffer_pattern", CONTENT),
    ("cgroup", PROCESS),
    ("cgroup_nodelete", PROCESS),
    ("cgroup_weight", PROCESS),
    ("clat_percentiles", "all latencies have percentiles"),
    ("clocksource", CLOCK),
    ("cpumask", PROCESS),
    ("cpus_allowed", PROCESS),
    ("cpus_allowed_policy", PROCESS),
    ("create_fsync", FILES),
    ("create_on_open", FILES),
    ("create_serialize", FILES),
    ("dedupe_global", CONTENT),
    ("dedupe_mode", CONTENT),
    ("dedupe_percentage", CONTENT),
    ("dedupe_working_set_percentage", CONTENT),
    ("direct", "there is no page cache"),
    ("directory", FILES),
    ("disable_bw_measurement", "everything is measured"),
    ("disable_clat", "everything is measured"),
    ("disable_lat", "everything is measured"),
    ("disable_slat", "everything is measured"),
    ("disk_util", "there is no kernel to ask"),
    ("error_dump", "failures are listed in the results"),
    ("eta", "a terminal shows progress"),
    ("fadvise_hint", FILES),
    ("fallocate", FILES),
    ("file_service_type", FILES),
    ("filename", "a job runs on the drive that its scenario says"),
    ("filename_format", FILES),
    ("filesize", FILES),
    ("fsync_on_close", FILES),
    ("gid", PROCESS),
    ("gtod_cpu", CLOCK),
    ("gtod_reduce", CLOCK),
    ("hugepage-size", PROCESS),
    ("invalidate", "there is no page cache"),
    ("ioengine", "requests go to the simulated drive"),
    ("ioscheduler", "`[path] scheduler` of the scenario is the scheduler"),
    ("lat_percentiles", "all latencies have percentiles"),
    ("lockfile", FILES),
    ("lockmem", PROCESS),
    ("log_compression", LOG),
    ("log_compression_cpus", LOG),
    ("log_entries", LOG),
    ("mem", PROCESS),
    ("iomem", PROCESS),
    ("nice", PROCESS),
    ("numa_cpu_nodes", PROCESS),
    ("numa_mem_policy", PROCESS),
    ("openfiles", FILES),
    ("overwrite", FILES),
    ("pre_read", "there is no page cache"),
    ("randrepeat", SEED),
    ("read_iolog_chunked", "traces are read as they are replayed"),
    ("refill_buffers", CONTENT),
    ("scramble_buffers", CONTENT),
    ("significant_figures", "the table has figures of its own"),
    ("slat_percentiles", "all latencies have percentiles"),
    ("stats", "everything is measured"),
    ("thread", PROCESS),
    ("uid", PROCESS),
    ("unique_filename", FILES),
    ("unlink", FILES),
    ("unlink_each_loop", FILES),
    ("uri", "a job runs on the drive that its scenario says"),
    ("verify_async", PROCESS),
    ("zero_buffers", CONTENT),
];

const FILES: &str = "a job runs on a drive, there are no files";
const PROCESS: &str = "jobs are no processes of this machine";
const CLOCK: &str = "the clock is virtual, or the emulator's own";
const CONTENT: &str = "the drive does not look at the data";
const SEED: &str = "a run with the same seed is always the same";
const LOG: &str = "logs are written as they come";

const ZONES: &str = "drives have no zones";
const BATCH: &str = "requests are issued and reaped one by one";
const ENDS: &str = "a failed request ends its own job; `continue_on_error` says which do not";
const VERIFY: &str =
    "verification is by `verify=crc32c`, with a header in each sector, over all blocks";
const STATE: &str = "results are of the whole run; `[precondition]` brings a drive to its state";

/// Options of fio that would change a result; Sluice refuses them with the reason.
pub(crate) const REFUSED: &[RefusedOption] = &[
    refused_option("atomic", &["0"], "drives here have no atomic write units beyond a sector"),
    RefusedOption {
        aliases: &["ba"],
        ..refused_option("blockalign", &[], "offsets are multiples of the smallest block size")
    },
    refused_option("block_error_percentiles", &["0"], "failures are listed in the results"),
    refused_option("bs_is_seq_rand", &["0"], "block sizes are per direction"),
    refused_option("bs_unaligned", &["0"], "requests are whole sectors"),
    refused_option(
        "buffered",
        &["0"],
        "there is no page cache; `sluice exec` runs programs over one",
    ),
    refused_option(
        "bwavgtime",
        &["500"],
        "samples of the JSON are over 500 ms; `log_avg_msec` is free",
    ),
    refused_option("create_only", &["0"], "there are no files to create"),
    refused_option("exec_prerun", &[], "a simulation starts no programs"),
    refused_option("exec_postrun", &[], "a simulation starts no programs"),
    refused_option("exit_what", &[], ENDS),
    refused_option("exitall", &["0"], ENDS),
    refused_option("exitall_on_error", &["0"], ENDS),
    refused_option("experimental_verify", &["0"], VERIFY),
    refused_option("file_append", &["0"], "there are no files; `offset` says where a job starts"),
    refused_option("fill_device", &["0"], "a job without `size` covers the whole drive"),
    refused_option("flow", &["0"], "jobs are not tied to each other; `rate_iops` paces each"),
    refused_option("flow_id", &[], "jobs are not tied to each other; `rate_iops` paces each"),
    refused_option("flow_sleep", &[], "jobs are not tied to each other; `rate_iops` paces each"),
    refused_option(
        "ignore_error",
        &[],
        "errors are NVMe statuses; `continue_on_error` says which do not end a job",
    ),
    refused_option("ignore_zone_limits", &["0"], ZONES),
    refused_option("io_submit_mode", &["inline"], "a job has one CPU, which submits and completes"),
    refused_option("iodepth_batch", &["1"], BATCH),
    refused_option("iodepth_batch_complete", &["1"], BATCH),
    refused_option("iodepth_batch_complete_max", &["1"], BATCH),
    refused_option("iodepth_batch_complete_min", &["1"], BATCH),
    refused_option("iodepth_low", &[], BATCH),
    refused_option(
        "iopsavgtime",
        &["500"],
        "samples of the JSON are over 500 ms; `log_avg_msec` is free",
    ),
    refused_option("job_max_open_zones", &[], ZONES),
    refused_option("kb_base", &["1024"], "sizes count by 1024, as fio's do unless told otherwise"),
    refused_option("log_alternate_epoch", &["0"], "logs count from the job's start"),
    refused_option("log_alternate_epoch_clock_id", &[], "logs count from the job's start"),
    refused_option("log_hist_coarseness", &[], "the JSON and the report have the distributions"),
    refused_option("log_hist_msec", &[], "the JSON and the report have the distributions"),
    refused_option(
        "log_prio",
        &["0"],
        "requests have no priority; `[path.scheduler]` has classes of jobs",
    ),
    refused_option("log_store_compressed", &["0"], "logs are text"),
    refused_option("log_unix_epoch", &["0"], "logs count from the job's start, in virtual time"),
    refused_option("max_latency", &["0"], "latencies are reported, and end nothing"),
    refused_option("max_open_zones", &[], ZONES),
    refused_option("merge_blktrace_file", &[], "blktrace files are not read"),
    refused_option("merge_blktrace_iters", &[], "blktrace files are not read"),
    refused_option("merge_blktrace_scalars", &[], "blktrace files are not read"),
    refused_option("nrfiles", &["1"], "a job has one drive and no files"),
    refused_option("offset_align", &[], "`offset` is said exactly"),
    refused_option("opendir", &[], "there are no files"),
    refused_option(
        "percentage_random",
        &["100"],
        "a job is random or sequential; two jobs can run together",
    ),
    refused_option(
        "prio",
        &["0"],
        "requests have no priority; `[path.scheduler]` has classes of jobs",
    ),
    refused_option(
        "prioclass",
        &[],
        "requests have no priority; `[path.scheduler]` has classes of jobs",
    ),
    refused_option("profile", &[], "give a job file"),
    refused_option(
        "random_generator",
        &["tausworthe"],
        "a permutation covers every block once, without memory",
    ),
    refused_option("rate_cycle", &[], "limits hold at every instant"),
    refused_option("rate_ignore_thinktime", &["0"], "pauses count towards a rate"),
    refused_option("rate_iops_min", &["0"], "a job that falls short is in the results"),
    refused_option("rate_min", &["0"], "a job that falls short is in the results"),
    refused_option("read_beyond_wp", &["0"], ZONES),
    refused_option("rw_sequencer", &["sequential"], "a sequential job goes on where it was"),
    refused_option(
        "serialize_overlap",
        &["0"],
        "only jobs with `verify` keep overlapping writes apart",
    ),
    refused_option("steadystate", &[], STATE),
    refused_option("steadystate_duration", &[], STATE),
    refused_option("steadystate_ramp_time", &[], STATE),
    refused_option("sync", &["0", "none"], "writes are durable when a flush says so: `fsync=1`"),
    refused_option("sync_file_range", &[], "there are no files"),
    refused_option("thinktime_blocks_type", &["complete"], "pauses count completed requests"),
    refused_option("thinktime_iotime", &["0"], "pauses are after `thinktime_blocks` requests"),
    refused_option("thinktime_spin", &["0"], "a pause costs no CPU"),
    refused_option("trim_backlog", &["0"], "`rw=randtrimwrite` trims and writes every block"),
    refused_option("trim_backlog_batch", &["0"], "`rw=randtrimwrite` trims and writes every block"),
    refused_option("trim_percentage", &["0"], "`rw=randtrimwrite` trims and writes every block"),
    refused_option("trim_verify_zero", &["0"], "`rw=randtrimwrite` trims and writes every block"),
    refused_option("unified_rw_reporting", &["0", "none"], "directions are reported apart"),
    refused_option("unit_base", &["0", "8"], "results are in bytes"),
    refused_option("verify_backlog", &["0"], VERIFY),
    refused_option("verify_backlog_batch", &[], VERIFY),
    refused_option("verify_dump", &["0"], VERIFY),
    refused_option("verify_fatal", &["1"], "`continue_on_error=verify` goes on after a mismatch"),
    refused_option("verify_interval", &[], VERIFY),
    refused_option("verify_offset", &["0"], VERIFY),
    refused_option("verify_only", &["0"], VERIFY),
    refused_option("verify_pattern", &[], VERIFY),
    refused_option("verify_state_load", &["0"], VERIFY),
    refused_option("verify_state_save", &["0"], VERIFY),
    refused_option("wait_for", &[], "`stonewall` waits for all jobs before"),
    refused_option("write_barrier", &["0"], "`fsync=N` flushes after N writes"),
    refused_option("write_hint", &["none"], "jobs carry no write hints"),
    refused_option("write_hist_log", &[], "the JSON and the report have the distributions"),
    refused_option(
        "write_iolog",
        &[],
        "a scenario is repeated by its seed; `--trace` writes what happened",
    ),
    refused_option("zone_reset_frequency", &[], ZONES),
    refused_option("zone_reset_threshold", &[], ZONES),
    refused_option("zonecapacity", &[], ZONES),
    refused_option("zonemode", &["none"], ZONES),
    refused_option("zonerange", &["0"], ZONES),
    refused_option("zonesize", &["0"], ZONES),
    refused_option("zoneskip", &["0"], ZONES),
];

/// Options of generated jobs that have no effect on a replay, as in fio.
pub(crate) const NOT_IN_REPLAYS: &[&str] = &[
    "rw",
    "readwrite",
    "rwmixread",
    "rwmixwrite",
    "bs",
    "blocksize",
    "bsrange",
    "blocksize_range",
    "bssplit",
    "size",
    "io_size",
    "io_limit",
    "offset",
    "offset_increment",
    "number_ios",
    "loops",
    "rate",
    "rate_iops",
    "rate_process",
    "random_distribution",
    "norandommap",
    "randseed",
    "fsync",
    "fdatasync",
];

/// Support of an option.
pub(crate) enum OptionSupport {
    Supported,
    Ignored,
    Refused(&'static RefusedOption),
    Unknown,
}

/// Looks an option up in the tables.
pub(crate) fn option_support(option: &str) -> OptionSupport {
    if SUPPORTED.iter().any(|w| w.name == option || w.aliases.contains(&option)) {
        return OptionSupport::Supported;
    }
    if IGNORED.iter().any(|(name, _)| *name == option) {
        return OptionSupport::Ignored;
    }
    match REFUSED.iter().find(|r| r.name == option || r.aliases.contains(&option)) {
        Some(refused) => OptionSupport::Refused(refused),
        None => OptionSupport::Unknown,
    }
}

/// Returns every name of every supported option, in alphabetical order.
pub(crate) fn supported_names() -> Vec<&'static str> {
    let names = SUPPORTED.iter().flat_map(|w| std::iter::once(&w.name).chain(w.aliases));
    let mut names: Vec<&str> = names.copied().collect();
    names.sort_unstable();
    names
}

/// Returns the option of any table whose name is most similar to `option`, if one is similar.
pub(crate) fn nearest_option(option: &str) -> Option<&'static str> {
    let others = IGNORED.iter().map(|(name, _)| *name);
    nearest(option, supported_names().into_iter().chain(others))
}

/// Returns the candidate that is most similar to `word`, if one is similar.
pub(crate) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    candidates
        .into_iter()
        .map(|known| (strsim::levenshtein(word, known), known))
        .min()
        .filter(|(d, known)| *d <= (known.len().max(word.len()) / 3).max(1))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_in_two_tables_or_twice_in_one() {
        let supported = supported_names();
        let refused = REFUSED.iter().flat_map(|r| std::iter::once(&r.name).chain(r.aliases));
        let ignored = IGNORED.iter().map(|(name, _)| name);
        let mut all: Vec<&str> = supported.iter().chain(refused).chain(ignored).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_misspelt_option_finds_its_neighbour() {
        assert_eq!(nearest_option("iodepht"), Some("iodepth"));
        assert_eq!(nearest_option("rwmixreads"), Some("rwmixread"));
        assert_eq!(nearest_option("colour"), None);
    }
}
