//! An outcome as JSON: fio's result format, with Sluice's own section beside it.

use drive::{CareStats, DriveStats, HintStats, NotificationStats};
use lightnvm::LabelHealth;
use serde_json::{Map, Value, json};
use workload::RunResult;

use super::{DriveOutcome, Outcome};
use crate::stack::ShardCounts;

/// What fio would have written, with a `sluice` section. Equal outcomes give equal bytes: the
/// timestamp is zero.
pub fn to_json(outcome: &Outcome) -> Value {
    // fio knows no drives: the jobs of all are in one list, each drive's in its own place again.
    let all = RunResult {
        seed: outcome.seed,
        elapsed: outcome.elapsed,
        jobs: outcome.drives.iter().flat_map(|d| d.run.jobs.iter().cloned()).collect(),
    };
    let mut value = workload::to_fio_json(&all, 0);
    let section = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "title": outcome.title,
        "seed": outcome.seed,
        "clock": "virtual",
        "elapsed_ns": outcome.elapsed.0,
        "host": {
            "submit_ns": outcome.costs.submit.0,
            "complete_ns": outcome.costs.complete.0,
        },
        "ignored_options": outcome.ignored,
        "failures": outcome.failures(),
        "drives": outcome.drives.iter().map(|d| drive(d, outcome)).collect::<Vec<_>>(),
    });
    if let Value::Object(object) = &mut value {
        object.insert("sluice".into(), section);
    }
    value
}

fn drive(d: &DriveOutcome, outcome: &Outcome) -> Value {
    let elapsed = outcome.elapsed.0.max(1) as f64;
    let share = |t: clock::Nanos| t.0 as f64 / elapsed;
    let mut object = Map::new();
    object.insert("name".into(), json!(d.name));
    if let Some(f) = &d.ftl {
        object.insert("write_amplification".into(), json!(f.write_amplification()));
        object.insert(
            "ftl".into(),
            json!({
                "user_sectors_written": f.user_writes,
                "sectors_written_from_reserve": f.reserve_writes,
                "user_sectors_read": f.user_reads,
                "buffer_hits": f.buffer_hits,
                "unmapped_reads": f.unmapped_reads,
                "trimmed_sectors": f.trimmed,
                "padding_sectors": f.padding,
                "metadata_sectors": f.metadata,
                "trims_told": f.trims_told,
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
                "checkpoints_for_losses": f.loss_checkpoints,
                "flushes": f.flushes,
                "free_lines": d.free_lines,
            }),
        );
        object.insert(
            "gc".into(),
            json!({
                "moved_sectors": f.gc_moves,
                "lines_reclaimed": f.lines_reclaimed,
                "erases": f.erases,
                "program_failures": f.program_failures,
                "erase_failures": f.erase_failures,
                "retired_chunks": f.retired_chunks,
                "lost_sectors": f.lost,
                "lines_without_metadata": f.lines_without_metadata,
                "victims_read_by_metadata": f.victims_by_metadata,
                "victims_read_by_oob": f.victims_by_oob,
                "lines_refreshed": f.refreshed_lines,
                "lines_levelled": f.levelled_lines,
                "lines_ended": f.ended_lines,
                "sectors_refreshed": f.refresh_moves,
                "offline_chunks": f.offline_chunks,
                "sectors_written_again": f.rescued,
            }),
        );
    }
    if !d.shards.is_empty() {
        object.insert("shards".into(), d.shards.iter().map(shard).collect());
    }
    if let Some(steady) = &d.steady {
        object.insert("steady".into(), steady.to_json());
    }
    if let Some(c) = &d.capacity {
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
    if let Some((channels, pus)) = d.shape {
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
            "utilisation".into(),
            json!({ "channels": channels, "pus": pus, "per_pu": per_pu, "per_channel": channel }),
        );
    }
    object.insert(
        "commands".into(),
        json!({
            "reads": d.drive.reads,
            "writes": d.drive.writes,
            "others": d.drive.others,
            "errors": d.drive.errors,
            "bytes_read": d.drive.bytes_read,
            "bytes_written": d.drive.bytes_written,
            "page_register_hits": d.drive.register_hits,
        }),
    );
    if let Some(interface) = interface(&d.drive) {
        object.insert("interface".into(), interface);
    }
    if let Some(layer) = &d.layer {
        object.insert("block_layer".into(), layer.to_json());
    }
    if let Some(m) = &d.drive.media {
        object.insert(
            "media".into(),
            json!({
                "programs": m.programs,
                "erases": m.erases,
                "reads": m.reads,
                "corrected_bits": m.corrected_bits,
                "uncorrectable_reads": m.uncorrectable_reads,
                "offline_chunks": m.offline_chunks,
                "wear": { "min": m.wear.min, "mean": m.wear.mean, "max": m.wear.max },
            }),
        );
    }
    object.insert(
        "lateness_ns".into(),
        json!({
            "count": d.drive.late.count,
            "late_p50": d.drive.late.p50.0,
            "late_p99": d.drive.late.p99.0,
            "late_max": d.drive.late.max.0,
        }),
    );
    Value::Object(object)
}

/// What one shard did; all of them together are in `ftl` and `gc`.
fn shard(s: &ShardCounts) -> Value {
    let (f, core, health) = (&s.ftl, &s.core, &s.health);
    json!({
        "user_sectors_written": f.user_writes,
        "user_sectors_read": f.user_reads,
        "buffer_hits": f.buffer_hits,
        "padding_sectors": f.padding,
        "metadata_sectors": f.metadata,
        "moved_sectors": f.gc_moves,
        "lines_reclaimed": f.lines_reclaimed,
        "erases": f.erases,
        "lost_sectors": f.lost,
        "flushes": f.flushes,
        "free_lines": s.free_lines,
        "write_amplification": f.write_amplification(),
        "core": {
            "requests": core.requests,
            "split": core.split,
            "local": core.local,
            "sent": core.sent,
            "served": core.served,
            "lost": core.lost,
        },
        "media_events": health.events,
        "lines_moved_for_events": health.moves,
        "label": s.label.as_ref().map(label),
    })
}

/// What the shard that looks after the label of all of them found and did.
fn label(l: &LabelHealth) -> Value {
    json!({
        "generation": l.generation,
        "copies": l.copies,
        "copies_lost": l.lost,
        "rounds": l.rounds,
        "sectors_read": l.reads,
        "renewals": l.renewals,
        "renewals_without_room": l.stuck,
        "erases": l.erases,
        "failures": l.failures,
    })
}

/// What commands made of the drive's interface beyond plain reads and writes; nothing if they did not.
fn interface(d: &DriveStats) -> Option<Value> {
    let used = d.hints != HintStats::default()
        || d.notifications != NotificationStats::default()
        || d.read_retries + d.cmb_bytes > 0
        || d.map.is_some()
        || d.care != CareStats::default();
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
                "lost": d.notifications.lost,
                "announced": d.notifications.announced,
            }),
        );
        if d.care != CareStats::default() {
            object.insert(
                "care".into(),
                json!({
                    "notices": d.care.notices,
                    "ignored": d.care.ignored,
                    "lines_moved": d.care.moves,
                    "patrol_sectors_read": d.care.sectors_read,
                    "patrol_rounds": d.care.rounds,
                }),
            );
        }
        if let Some(m) = &d.map {
            object.insert(
                "dual_map".into(),
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
