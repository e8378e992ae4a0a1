//! JSON of an outcome: fio's result format with a `sluice` section.

use block::notify::NotifyStats;
use controller::{
    BlockCommandStats, DoorbellToFetch, DriveStats, HintStats, LatenessPart, MediaScrubStats,
    NotificationStats,
};
use ftl::FtlStats;
use kv::KvStats;
use media::MediaStats;
use pblk::SuperblockHealth;
use report::explain::{breakdown_json, request_json};
use serde_json::{Map, Value, json};
use stack::ShardCounts;
use workload::{DepthSearchResult, Direction, JobResult, RunResult};
use write_log::WriteLogStats;

use crate::output::faults::faults;
use crate::output::json_schema::SCHEMA;
use crate::output::rules::{rule_counters, target_rule_counters};
use crate::{DriveOutcome, Note, PathOutcome, ProcessOutcome, SimOutcome, Timeline};

/// Returns the result in fio's format with a `sluice` section. Equal outcomes give equal bytes: the
/// timestamp is zero.
pub fn to_json(outcome: &SimOutcome) -> Value {
    // fio has no drives: the jobs of all paths are in one list, and the `sluice` section lists them
    // per drive or path.
    let all = RunResult {
        seed: outcome.seed,
        elapsed: outcome.elapsed,
        jobs: outcome.paths.iter().flat_map(|p| p.run.jobs.iter().cloned()).collect(),
    };
    let mut value = workload::to_fio_json(&all, 0);
    let mut section = json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "title": outcome.title,
        "question": outcome.question,
        "scenario": &*outcome.text,
        "parameters": outcome.parameters,
        "seed": outcome.seed,
        "partial": outcome.partial,
        "notes": outcome.notes.iter().map(Note::to_json).collect::<Vec<_>>(),
        "clock": "virtual",
        "elapsed_ns": outcome.elapsed.0,
        "host": {
            "submit_ns": outcome.costs.submit.0,
            "complete_ns": outcome.costs.complete.0,
        },
        "ignored_options": outcome.ignored,
        "failures": outcome.failures(),
        "drives": drives(outcome),
    });
    if outcome.is_composed {
        section["paths"] = outcome.paths.iter().map(|p| path(p, outcome)).collect();
    }
    if let Some(machine) = &outcome.diagnostics.machine {
        section["machine"] = machine.to_json();
    }
    let faults = faults(outcome);
    if !faults.is_empty() {
        section["faults"] = faults.into();
    }
    if let Some(profile) = &outcome.diagnostics.profile {
        section["profile"] = profile.to_json();
    }
    if let Value::Object(object) = &mut value {
        object.insert("sluice".into(), section);
    }
    value
}

/// Returns results of replays, of depth searches and of processes, for which fio's format has no keys.
fn job_extensions(job: &JobResult, process: Option<ProcessOutcome>) -> Option<Value> {
    let mut object = Map::from_iter([("jobname".to_owned(), json!(job.spec.name))]);
    if job.spec.replay.is_some() {
        let fit = &job.trace_adjustments;
        object.insert(
            "replay".into(),
            json!({
                "iodepth": job.spec.depth(),
                "delayed": job.requests.delayed,
                "trace_fit": {
                    "aligned_requests": fit.aligned_requests,
                    "bytes_requested": fit.bytes_requested,
                    "bytes_issued": fit.bytes_issued,
                    "wrapped": fit.wrapped,
                    "skipped": fit.skipped,
                },
            }),
        );
    }
    if let Some(DepthSearchResult { depth, met, converged }) = job.depth_search {
        let target = json!({ "depth": depth, "met": met, "converged": converged });
        object.insert("latency_target".into(), target);
    }
    if let Some(process) = process {
        object.insert("process".into(), process.to_json());
    }
    (object.len() > 1).then_some(Value::Object(object))
}

/// Returns the drives; without named paths, each with the entries of its path.
fn drives(outcome: &SimOutcome) -> Vec<Value> {
    let whole = |(i, d)| {
        let path = outcome.paths.get(i).filter(|_| !outcome.is_composed);
        Value::Object(entries(path, Some(d), outcome))
    };
    outcome.drives.iter().enumerate().map(whole).collect()
}

/// Returns a named path.
fn path(p: &PathOutcome, outcome: &SimOutcome) -> Value {
    let mut object = entries(Some(p), None, outcome);
    let drives = p.drives.iter().filter_map(|drive| outcome.drives.get(*drive));
    object.insert("drives".into(), drives.map(|drive| json!(drive.name)).collect());
    let jobs = p.run.jobs.iter().map(|job| json!(job.spec.name));
    object.insert("jobnames".into(), jobs.collect());
    Value::Object(object)
}

fn log_counters(log: &WriteLogStats) -> Value {
    json!({
        "logged_writes": log.logged_writes,
        "logged_sectors": log.logged_sectors,
        "lines": log.lines,
        "persists": log.persists,
        "passed_changes": log.passed_changes,
        "read_sectors": log.read_sectors,
        "absorbed_flushes": log.absorbed_flushes,
        "device_flushes": log.device_flushes,
        "destaged_sectors": log.destaged_sectors,
        "superseded_records": log.superseded_records,
        "space_waits": log.space_waits,
        "failed_destages": log.failed_destages,
        "replayed_records": log.replayed_records,
        "power_cuts": log.power_cuts,
    })
}

/// Returns the entries of a path, of a drive, or of both.
fn entries(
    path: Option<&PathOutcome>,
    drive: Option<&DriveOutcome>,
    outcome: &SimOutcome,
) -> Map<String, Value> {
    let mut object = Map::new();
    let name = drive.map(|d| &d.name).or(path.map(|p| &p.name));
    object.insert("name".into(), json!(name));
    if let Some(p) = path {
        path_results(p, outcome, &mut object);
    }
    if let Some(d) = drive {
        drive_use(d, outcome, &mut object);
    }
    if let Some(notify) = path.and_then(|p| p.notify.as_ref()) {
        let NotifyStats { interrupts, polls, by_submitter, completions } = *notify;
        let counters = json!({
            "interrupts": interrupts,
            "polls": polls,
            "by_submitter": by_submitter,
            "completions": completions,
        });
        object.insert("notification".into(), counters);
    }
    if let Some(log) = path.and_then(|p| p.log.as_ref()) {
        object.insert("log".into(), log_counters(log));
    }
    if let Some(layer) = path.and_then(|p| p.block_layer.as_ref()) {
        object.insert("block_layer".into(), layer.to_json());
    }
    if let Some(rules) = drive.and_then(|d| d.drive.rules.as_ref()) {
        object.insert("rules".into(), rule_counters(rules));
    }
    if let Some(m) = drive.and_then(|d| d.drive.media.as_ref()) {
        object.insert("media".into(), media(m));
    }
    if let Some(m) = drive.and_then(|d| d.media_before.as_ref()) {
        object.insert("media_before".into(), media(m));
    }
    if let Some(p) = path
        && let (Some(explanation), Some(d)) = (&p.explanation, p.drive(outcome))
    {
        let names = d.names(explanation);
        let slowest = explanation.slowest.iter().map(|r| request_json(r, names));
        let breakdowns = explanation.breakdowns.iter().map(|b| breakdown_json(b, names));
        object.insert("slowest".into(), slowest.collect());
        object.insert("latency_breakdown".into(), breakdowns.collect());
    }
    if let Some(d) = drive {
        let late = &d.drive.late;
        object.insert(
            "lateness_ns".into(),
            json!({
                "count": late.count,
                "late_p50": late.p50.0,
                "late_p99": late.p99.0,
                "late_max": late.max.0,
            }),
        );
        object.insert("doorbell_to_fetch_ns".into(), doorbell_to_fetch(&d.drive.doorbell_to_fetch));
    }
    object
}

/// Returns the waits of a drive's doorbells, or the reason for which they are not known.
fn doorbell_to_fetch(waits: &DoorbellToFetch) -> Value {
    let (waits, unmeasured) = match waits {
        DoorbellToFetch::Measured { waits, unmeasured } => (waits, unmeasured),
        DoorbellToFetch::Unknown(reason) => {
            return json!({ "unknown": reason.key(), "reason": reason.to_string() });
        }
    };
    let part =
        |part: LatenessPart| json!({ "p50": part.p50.0, "p99": part.p99.0, "max": part.max.0 });
    json!({
        "count": waits.count,
        "p50": waits.p50.0,
        "p99": waits.p99.0,
        "max": waits.max.0,
        "machine": part(waits.machine),
        "own": part(waits.own),
        "not_trusted": unmeasured.not_trusted,
        "deferred": unmeasured.deferred,
        "unstamped": unmeasured.unstamped,
    })
}

/// Inserts the results of a path's jobs and the counters of its FTL.
fn path_results(p: &PathOutcome, outcome: &SimOutcome, object: &mut Map<String, Value>) {
    let timeline = Timeline::new(outcome.elapsed);
    let processes = outcome.diagnostics.machine.as_ref().map(|m| m.processes(&p.name));
    let process = |job: usize| processes.and_then(|all| all.get(job).copied().flatten());
    let jobs = p.run.jobs.iter().enumerate();
    let jobs: Vec<Value> = jobs.filter_map(|(i, job)| job_extensions(job, process(i))).collect();
    if !jobs.is_empty() {
        object.insert("jobs".into(), jobs.into());
    }
    let jobs = p.run.reported_jobs();
    if !jobs.is_empty() {
        let jobs = jobs.iter().map(|job| job_over_time(job, &timeline));
        object.insert("jobs_over_time".into(), jobs.collect());
    }
    if let Some(over_time) = ftl_over_time(p, &timeline) {
        object.insert("over_time".into(), over_time);
    }
    if let Some(f) = &p.ftl {
        ftl_entries(f, p.free_lines, object);
    }
    if let Some(before) = &p.ftl_before {
        object.insert("ftl_before".into(), ftl(before));
        object.insert("gc_before".into(), gc(before));
    }
    if !p.targets.shards.is_empty() {
        object.insert("shards".into(), p.targets.shards.iter().map(shard).collect());
    }
    match &p.targets.rules[..] {
        [] => {}
        [one] => drop(object.insert("rules".into(), target_rule_counters(one))),
        several => {
            object.insert("rules".into(), several.iter().map(target_rule_counters).collect());
        }
    }
    if let Some(k) = &p.keys {
        object.insert("key_value".into(), key_value(k));
    }
    if let Some(steady) = &p.steady {
        object.insert("steady".into(), steady.to_json());
    }
    if let Some(c) = &p.capacity {
        object.insert(
            "capacity".into(),
            json!({
                "logical_bytes": c.logical_bytes(),
                "line_metadata_units": c.line_metadata_units,
                "over_provisioning": c.over_provisioning(),
                "over_provisioning_convention": "physical / logical - 1",
            }),
        );
    }
}

/// Inserts the counters of an FTL during the run.
fn ftl_entries(f: &FtlStats, free_lines: Option<f64>, object: &mut Map<String, Value>) {
    object.insert("write_amplification".into(), json!(f.write_amplification()));
    let mut ftl = ftl(f);
    ftl["free_lines"] = json!(free_lines);
    object.insert("ftl".into(), ftl);
    object.insert("gc".into(), gc(f));
}

/// Inserts the use of a drive: its resources, commands and interface.
fn drive_use(d: &DriveOutcome, outcome: &SimOutcome, object: &mut Map<String, Value>) {
    let elapsed = outcome.elapsed.0.max(1) as f64;
    let share = |t: time::Nanos| t.0 as f64 / elapsed;
    if let Some((f, free_lines)) = &d.shared_ftl {
        ftl_entries(f, Some(*free_lines), object);
    }
    if let Some((channels, pus)) = d.geometry {
        let per_pu: Vec<Value> = d
            .drive
            .pus
            .iter()
            .map(|p| {
                json!({
                    "read": share(p.read),
                    "program": share(p.program),
                    "erase": share(p.erase),
                })
            })
            .collect();
        let channel: Vec<f64> = d.drive.channels.iter().map(|t| share(*t)).collect();
        object.insert(
            "utilization".into(),
            json!({ "channels": channels, "pus": pus, "per_pu": per_pu, "per_channel": channel }),
        );
    }
    if let Some(sata) = &d.sata {
        object.insert(
            "commands".into(),
            json!({
                "reads": sata.drive.reads,
                "writes": sata.drive.writes,
                "other_commands": sata.drive.others,
                "errors": sata.drive.errors,
                "bytes_read": sata.drive.bytes_read,
                "bytes_written": sata.drive.bytes_written,
            }),
        );
        object.insert(
            "ahci".into(),
            json!({
                "port": sata.port,
                "link_utilization": share(sata.drive.link_busy),
                "uplink_utilization": share(sata.uplink_busy),
                "interrupts": sata.interrupts,
                "fatal_errors": sata.drive.fatal_errors,
                "dropped": sata.drive.dropped,
                "resets": sata.drive.resets,
            }),
        );
        return;
    }
    object.insert(
        "commands".into(),
        json!({
            "reads": d.drive.reads,
            "writes": d.drive.writes,
            "other_commands": d.drive.others,
            "errors": d.drive.errors,
            "bytes_read": d.drive.bytes_read,
            "bytes_written": d.drive.bytes_written,
            "page_register_hits": d.drive.register_hits,
        }),
    );
    if let Some(flush) = &d.drive.host_flush {
        // Not the time: results of virtual time have no real one.
        let counters = json!({ "flushes": flush.flushes, "failures": flush.failures });
        object.insert("host_flush".into(), counters);
    }
    if let Some(monitor) = &d.drive.latency_monitor {
        let counters = json!({
            "thresholds_ns": monitor.thresholds.map(|t| t.0),
            "reads": monitor.reads,
            "writes": monitor.writes,
            "deallocates": monitor.deallocates,
        });
        object.insert("latency_monitor".into(), counters);
    }
    if let Some(interface) = interface(&d.drive) {
        object.insert("interface".into(), interface);
    }
}

/// Returns the counters of an FTL.
fn ftl(f: &FtlStats) -> Value {
    let mut value = json!({
        "host_sectors_written": f.host_writes,
        "host_sectors_from_reserve": f.host_writes_from_reserve,
        "host_sectors_read": f.host_reads,
        "buffer_hits": f.buffer_hits,
        "unmapped_reads": f.unmapped_reads,
        "trimmed_sectors": f.trimmed,
        "padding_sectors": f.padding,
        "metadata_sectors": f.metadata,
        "trims_synced": f.trims_synced,
        "map_hits": f.map_hits,
        "map_misses": f.map_misses,
        "map_page_reads": f.map_page_reads,
        "map_page_writes": f.map_page_writes,
        "map_pages_lost": f.map_pages_lost,
        "map_pages_rebuilt": f.pages_rebuilt,
        "map_rebuild_sectors_read": f.rebuild_reads,
        "map_sectors_lost": f.map_sectors_lost,
        "map_read_errors": f.map_read_errors,
        "programs": f.programs,
        "checkpoints": f.checkpoints,
        "loss_checkpoints": f.loss_checkpoints,
        "flushes": f.flushes,
    });
    if f.atomic_padding > 0 {
        value["atomic_padding_sectors"] = json!(f.atomic_padding);
    }
    value
}

/// Returns the counters of an FTL's garbage collection.
fn gc(f: &FtlStats) -> Value {
    json!({
        "gc_sectors_relocated": f.gc_relocations,
        "lines_reclaimed": f.lines_reclaimed,
        "erases": f.erases,
        "program_failures": f.program_failures,
        "erase_failures": f.erase_failures,
        "retired_chunks": f.retired_chunks,
        "uncorrectable_sectors": f.uncorrectable_sectors,
        "lines_without_metadata": f.lines_without_metadata,
        "victims_read_by_metadata": f.victims_read_by_metadata,
        "victims_read_by_oob": f.victims_read_by_oob,
        "lines_refreshed": f.refreshed_lines,
        "lines_wear_leveled": f.wear_leveled_lines,
        "lines_finished": f.finished_lines,
        "sectors_refreshed": f.refresh_relocations,
        "offline_chunks": f.offline_chunks,
        "sectors_redispatched": f.redispatched_sectors,
    })
}

/// Returns the counters of a medium; wear and offline chunks are those at the end.
fn media(m: &MediaStats) -> Value {
    json!({
        "programs": m.programs,
        "erases": m.erases,
        "reads": m.reads,
        "corrected_bits": m.corrected_bits,
        "uncorrectable_reads": m.uncorrectable_reads,
        "offline_chunks": m.offline_chunks,
        "wear": { "min": m.wear.min, "mean": m.wear.mean, "max": m.wear.max },
    })
}

/// Returns the intervals of a run.
fn intervals(timeline: &Timeline) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("interval_ns".into(), json!(timeline.width.0));
    object.insert("last_interval_ns".into(), json!(timeline.last.0));
    object
}

/// Returns throughput, queue depth and latencies of a job in each interval.
fn job_over_time(job: &JobResult, timeline: &Timeline) -> Value {
    let mut object = intervals(timeline);
    object.insert("name".into(), json!(job.spec.name));
    let series = job.series.with_width(timeline.width);
    let mut done: Vec<workload::Interval> = series.intervals().collect();
    done.resize(timeline.count.max(done.len()), workload::Interval::default());
    let ns = |i: usize| timeline.length(i.min(timeline.count - 1)).0.max(1) as f64;
    let depth = done.iter().enumerate().map(|(i, d)| d.outstanding_ns as f64 / ns(i));
    object.insert("queue_depth".into(), depth.collect());
    for direction in [Direction::Read, Direction::Write, Direction::Trim] {
        if job.direction(direction).ios == 0 {
            continue;
        }
        let d = direction as usize;
        let latencies = job.series.latencies(direction).with_width(timeline.width);
        let mut latencies: Vec<workload::IntervalLatency> = latencies.intervals().collect();
        latencies.resize(done.len(), workload::IntervalLatency::default());
        let per_second = |of: &dyn Fn(&workload::Interval) -> u64| -> Vec<f64> {
            let rate = |(i, interval)| of(interval) as f64 * 1e9 / ns(i);
            done.iter().enumerate().map(rate).collect()
        };
        // An interval without requests has no latency.
        let of = |of: &dyn Fn(&workload::IntervalLatency) -> u64| -> Vec<Option<u64>> {
            latencies.iter().map(|l| (l.count > 0).then(|| of(l))).collect()
        };
        object.insert(
            direction.name().into(),
            json!({
                "iops": per_second(&|i| i.ios[d]),
                "bytes_per_sec": per_second(&|i| i.bytes[d]),
                "lat_p50_ns": of(&|l| l.p50.0),
                "lat_p99_ns": of(&|l| l.p99.0),
                "lat_max_ns": of(&|l| l.max.0),
            }),
        );
    }
    Value::Object(object)
}

/// Returns the state of the FTL in each interval.
fn ftl_over_time(p: &PathOutcome, timeline: &Timeline) -> Option<Value> {
    let found = p.ftl_time_series.as_ref()?.intervals(timeline);
    let mut object = intervals(timeline);
    let mut put = |key: &str, values: Value| object.insert(key.to_owned(), values);
    put("free_lines", found.iter().map(|i| i.free_lines).collect());
    put("host_sectors_written", found.iter().map(|i| i.host_sectors).collect());
    put("gc_sectors_relocated", found.iter().map(|i| i.relocated_sectors).collect());
    put("lines_reclaimed", found.iter().map(|i| i.lines_reclaimed).collect());
    put("write_amplification", found.iter().map(|i| i.write_amplification).collect());
    Some(Value::Object(object))
}

/// Returns the counters of a key-value target and its contents.
fn key_value(k: &KvStats) -> Value {
    json!({
        "puts": k.puts,
        "gets": k.gets,
        "deletes": k.deletes,
        "syncs": k.syncs,
        "errors": k.errors,
        "bytes_put": k.bytes_put,
        "bytes_got": k.bytes_got,
        "packed_bytes": k.packed_bytes,
        "relocated_bytes": k.relocated_bytes,
        "padded_bytes": k.padded_bytes,
        "units_written": k.units_written,
        "large_value_chunks_written": k.large_value_chunks_written,
        "chunks_compacted": k.chunks_compacted,
        "chunks_erased": k.chunks_erased,
        "keys": k.keys,
        "live_bytes": k.live_bytes,
        "free_chunks": k.free_chunks,
    })
}

/// Returns the counters of one shard; `ftl` and `gc` have the sums over all shards.
fn shard(s: &ShardCounts) -> Value {
    let (f, core, health) = (&s.ftl, &s.core, &s.health);
    json!({
        "host_sectors_written": f.host_writes,
        "host_sectors_read": f.host_reads,
        "buffer_hits": f.buffer_hits,
        "padding_sectors": f.padding,
        "metadata_sectors": f.metadata,
        "gc_sectors_relocated": f.gc_relocations,
        "lines_reclaimed": f.lines_reclaimed,
        "erases": f.erases,
        "uncorrectable_sectors": f.uncorrectable_sectors,
        "flushes": f.flushes,
        "free_lines": s.free_lines,
        "write_amplification": f.write_amplification(),
        "core": {
            "requests": core.requests,
            "split": core.split,
            "local": core.local,
            "sent": core.sent,
            "served": core.served,
            "aborted": core.aborted,
        },
        "media_events": health.events,
        "lines_relocated_for_media_events": health.relocations,
        "superblock": s.superblock.as_ref().map(superblock),
    })
}

/// Returns the superblock's state, from the shard that maintains it.
fn superblock(l: &SuperblockHealth) -> Value {
    json!({
        "generation": l.generation,
        "copies": l.copies,
        "copies_lost": l.copies_lost,
        "scrub_passes": l.scrub_passes,
        "sectors_read": l.reads,
        "rewrites": l.rewrites,
        "rewrites_blocked": l.rewrites_blocked,
        "erases": l.erases,
        "failures": l.failures,
    })
}

/// Returns the counters of interface features other than plain reads and writes; `None` if none was
/// used.
fn interface(d: &DriveStats) -> Option<Value> {
    let used = d.hints != HintStats::default()
        || d.notifications != NotificationStats::default()
        || d.read_retries + d.cmb_bytes > 0
        || d.device_l2p.is_some()
        || d.read_modify_write.is_some()
        || d.block_commands != BlockCommandStats::default()
        || d.formats + d.sanitizes > 0
        || d.protection_errors.is_some()
        || d.registers.is_some()
        || d.pmr.is_some()
        || d.scrub != MediaScrubStats::default();
    used.then(|| {
        let mut object = Map::new();
        object.insert("read_retries".into(), json!(d.read_retries));
        object.insert("cmb_bytes".into(), json!(d.cmb_bytes));
        object.insert(
            "hints".into(),
            json!({
                "plane_modes": d.hints.plane_modes,
                "suspend": d.hints.suspend,
                "suspend_ignored": d.hints.suspend_ignored,
                "suspensions": d.suspensions,
                "limited_retry": d.hints.limited_retry,
                "retries_forgone": d.hints.retries_forgone,
            }),
        );
        object.insert(
            "notifications".into(),
            json!({
                "logged": d.notifications.logged,
                "overwritten": d.notifications.overwritten,
                "media_events_sent": d.notifications.events_sent,
            }),
        );
        if d.scrub != MediaScrubStats::default() {
            object.insert(
                "scrub".into(),
                json!({
                    "media_events": d.scrub.media_events,
                    "media_events_ignored": d.scrub.ignored,
                    "lines_relocated": d.scrub.refreshes,
                    "sectors_read": d.scrub.sectors_read,
                    "passes": d.scrub.passes,
                }),
            );
        }
        if let Some(partial) = &d.read_modify_write {
            object.insert(
                "read_modify_write".into(),
                json!({
                    "units": partial.units,
                    "sectors_read": partial.sectors_read,
                    "waits": partial.waits,
                    "failures": partial.failures,
                }),
            );
        }
        if d.block_commands != BlockCommandStats::default() {
            object.insert("block_commands".into(), json!(d.block_commands));
        }
        if let Some(errors) = d.protection_errors {
            object.insert("protection_errors".into(), json!(errors));
        }
        if d.formats > 0 {
            object.insert("formats".into(), json!(d.formats));
        }
        if d.sanitizes > 0 {
            object.insert("sanitizes".into(), json!(d.sanitizes));
        }
        if let Some(r) = &d.registers {
            object.insert(
                "registers".into(),
                json!({
                    "starts": r.starts,
                    "resets": r.resets,
                    "shutdowns": r.shutdowns,
                    "failures": r.failures,
                    "unknown_doorbells": r.unknown_doorbells,
                }),
            );
        }
        if let Some(pmr) = d.pmr {
            object.insert("pmr".into(), json!(pmr));
        }
        if let Some(m) = &d.device_l2p {
            object.insert(
                "device_l2p".into(),
                json!({
                    "updates": m.updates,
                    "stale": m.stale,
                    "out_of_range": m.out_of_range,
                    "resets": m.resets,
                    "trims": m.trims,
                }),
            );
        }
        Value::Object(object)
    })
}
