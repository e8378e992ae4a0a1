//! Output of `sluice target`: aligned tables for people, JSON for programs.

use std::borrow::Cow;
use std::fmt::Write as _;

use lnvm::{
    DriveHealth, Endurance, MediaManager, NewTarget, Sharing, TargetEntry, WEAR_BINS, Warranty,
};
use nvme::HealthLog;
use scenario::format::{bytes_binary, bytes_decimal, count};
use serde_json::{Value, json};

/// Formats rows of equal length as columns; columns from `numbers` on are right aligned.
fn columns(rows: &[Vec<String>], numbers: usize) -> String {
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if i == 0 { "" } else { "  " };
            // Writing to a string cannot fail.
            let _ = match i < numbers {
                true => write!(line, "{gap}{cell:<width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Formats pairs of a name and a value.
fn pairs<'a>(pairs: impl IntoIterator<Item = (Cow<'a, str>, String)>) -> String {
    let rows: Vec<Vec<String>> = pairs.into_iter().map(|(n, v)| vec![n.into(), v]).collect();
    columns(&rows, 2)
}

fn named((name, value): (&str, String)) -> (Cow<'_, str>, String) {
    (name.into(), value)
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn sharing(spec: &NewTarget) -> &'static str {
    match spec.sharing {
        Sharing::Exclusive => "exclusive",
        Sharing::Shared => "shared",
    }
}

fn limits(spec: &NewTarget) -> String {
    let most = spec.limits.max_chunks.map(|n| format!("{} chunks", count(n.into())));
    let parts: Vec<String> =
        most.into_iter().chain(spec.limits.rate.map(|rate| rate.to_string())).collect();
    if parts.is_empty() { "none".into() } else { parts.join("; ") }
}

fn options(spec: &NewTarget) -> String {
    let o = &spec.options;
    let mut parts = Vec::new();
    parts.extend(o.over_provisioning.map(|op| format!("over-provisioning {op}")));
    parts.extend(o.active_pus.map(|n| format!("{n} active PUs")));
    parts.extend(o.hot_cold.map(|yes| format!("hot and cold data apart: {yes}")));
    if parts.is_empty() { "defaults".into() } else { parts.join("; ") }
}

fn chunk_bytes(s: &MediaManager) -> u64 {
    u64::from(s.geometry().sectors) * u64::from(s.geometry().sector_bytes)
}

fn blank(s: &MediaManager) -> String {
    format!("drive {} has no partition table: no target was ever made on it\n", s.serial())
}

/// Formats `sluice target list`.
pub(super) fn list_text(s: &MediaManager) -> String {
    if !s.is_registered() {
        return blank(s);
    }
    if s.table().targets().is_empty() {
        return format!("drive {} has no targets\n", s.serial());
    }
    let headings =
        ["name", "id", "type", "units", "sharing", "limits", "chunks", "bad", "capacity"];
    let mut rows: Vec<Vec<String>> = vec![headings.map(str::to_owned).to_vec()];
    for target in s.table().targets() {
        let held = s.holdings(target.id);
        rows.push(vec![
            target.spec.name.clone(),
            target.id.to_string(),
            target.spec.kind.to_string(),
            target.spec.pus.to_string(),
            sharing(&target.spec).into(),
            limits(&target.spec),
            count(held.owned.into()),
            count(held.bad.into()),
            bytes_binary(u64::from(held.owned) * chunk_bytes(s)),
        ]);
    }
    columns(&rows, 6)
}

fn target_value(s: &MediaManager, target: &TargetEntry) -> Value {
    let held = s.holdings(target.id);
    let NewTarget { name, kind, pus, options, limits, .. } = &target.spec;
    let rate = limits.rate;
    json!({
        "drive": s.serial(),
        "name": name,
        "id": target.id.0,
        "uid": target.uid.to_string(),
        "type": kind.as_str(),
        "pus": pus.to_string(),
        "pu_count": pus.len(),
        "sharing": sharing(&target.spec),
        "created_at": target.created_at,
        "options": {
            "over_provisioning": options.over_provisioning,
            "active_pus": options.active_pus,
            "hot_cold": options.hot_cold,
        },
        "limits": {
            "max_chunks": limits.max_chunks,
            "chunks_per_second": rate.map(|r| f64::from(r.millichunks_per_sec()) / 1000.0),
            "burst_chunks": rate.map(|r| r.burst_chunks()),
        },
        "chunks": held.owned,
        "chunks_bad": held.bad,
        "capacity_bytes": u64::from(held.owned) * chunk_bytes(s),
    })
}

/// Formats `sluice target list --json`.
pub(super) fn list_json(s: &MediaManager) -> String {
    let targets: Vec<Value> = s.table().targets().iter().map(|t| target_value(s, t)).collect();
    pretty(&json!({
        "drive": s.serial(),
        "registered": s.is_registered(),
        "targets": targets,
    }))
}

/// Formats `sluice target info --name`, and `create`.
pub(super) fn target_text(s: &MediaManager, target: &TargetEntry) -> String {
    let held = s.holdings(target.id);
    let spec = &target.spec;
    let capacity = bytes_binary(u64::from(held.owned) * chunk_bytes(s));
    let rows = [
        ("target", format!("{} of drive {}", spec.name, s.serial())),
        ("id", format!("{} ({})", target.id, target.uid)),
        ("type", spec.kind.to_string()),
        ("options", options(spec)),
        ("parallel units", format!("{} ({} of {})", spec.pus, spec.pus.len(), s.table().pus())),
        ("sharing", sharing(spec).into()),
        ("limits", limits(spec)),
        ("chunks", format!("{} ({capacity}), {} bad", count(held.owned.into()), held.bad)),
    ];
    pairs(rows.map(named))
}

/// Formats `sluice target info --name --json`, and `create --json`.
pub(super) fn target_json(s: &MediaManager, target: &TargetEntry) -> String {
    pretty(&target_value(s, target))
}

/// Formats `sluice target remove`.
pub(super) fn removed(
    s: &MediaManager,
    name: &str,
    chunks: u32,
    factory: bool,
    as_json: bool,
) -> String {
    let drive = s.serial();
    if as_json {
        return pretty(&json!({
            "drive": drive, "removed": name, "chunks": chunks, "erased": factory,
        }));
    }
    let chunks = count(chunks.into());
    match factory {
        true => format!("removed target {name} of drive {drive}; its {chunks} chunks are erased\n"),
        false => format!(
            "removed target {name} of drive {drive}; its {chunks} chunks will be erased before they \
             are used again\n"
        ),
    }
}

/// Formats `sluice target info`.
pub(super) fn drive_text(s: &MediaManager, log: &HealthLog, warranty: &Warranty) -> String {
    let health = s.health(Some(log));
    let (chunks, wear) = (&health.chunks, &health.wear);
    let n = |n: u32| count(n.into());
    let left = health.endurance(warranty);
    let table = match s.is_registered() {
        true => format!(
            "{}, {} changes, on {} reserved chunks",
            s.table().uid(),
            count(s.table().sequence()),
            s.table_window().chunks.len()
        ),
        false => "none: no target was ever made".into(),
    };
    let rows = [
        ("drive", s.serial().to_owned()),
        ("partition table", table),
        ("targets", count(s.table().targets().len() as u64)),
        ("chunks", format!("{} of {}", n(chunks.total), bytes_binary(health.chunk_bytes))),
        ("  of targets", n(chunks.owned)),
        ("  free", n(chunks.free)),
        ("  to be erased", n(chunks.dirty)),
        ("  reserved", n(chunks.reserved)),
        ("  bad from the factory", n(chunks.factory_bad)),
        ("  gone bad since", n(chunks.grown_bad)),
        ("  nobody's, with data", n(chunks.orphaned)),
        (
            "wear",
            format!(
                "{} to {} cycles, {:.1} on average; spread {}",
                n(wear.min),
                n(wear.max),
                wear.mean,
                n(health.wear_range())
            ),
        ),
        ("rated cycles", n(health.rated_cycles)),
    ];
    let mut rows: Vec<(Cow<'_, str>, String)> = rows.map(named).into();
    for (i, bin) in wear.bins.iter().enumerate().filter(|(_, bin)| **bin > 0) {
        let upper = (i + 1) * 100 / WEAR_BINS;
        let name =
            if i + 1 == WEAR_BINS { "  more worn".into() } else { format!("  up to {upper} %") };
        rows.push((name.into(), format!("{} chunks", n(*bin))));
    }
    rows.extend(endurance_pairs(&left, warranty).map(named));
    if let Some(drive) = &health.drive {
        rows.push((
            "the drive says".into(),
            format!(
                "{} % used, {} % spare left, {} errors, {} power losses",
                drive.percentage_used,
                drive.available_spare,
                count(drive.media_errors),
                count(drive.unsafe_shutdowns)
            ),
        ));
    }
    pairs(rows)
}

fn endurance_pairs(left: &Endurance, warranty: &Warranty) -> [(&'static str, String); 3] {
    [
        (
            "budget left",
            format!(
                "{:.1} %: {} to the media, {} of users' at {} times the writes",
                left.remaining_ratio * 100.0,
                bytes_decimal(left.media_bytes_remaining as u64),
                bytes_decimal(left.host_bytes_remaining as u64),
                warranty.write_amplification
            ),
        ),
        ("warranty", format!("{} years, {:.0} days left", warranty.years, left.days_remaining)),
        (
            "drive writes per day",
            format!("{:.2} left, {:.2} when new", left.dwpd_remaining, left.dwpd),
        ),
    ]
}

/// Formats `sluice target info --json`.
pub(super) fn drive_json(s: &MediaManager, log: &HealthLog, warranty: &Warranty) -> String {
    let health: DriveHealth = s.health(Some(log));
    let (chunks, wear) = (&health.chunks, &health.wear);
    let left = health.endurance(warranty);
    let drive = health.drive.map(|d| {
        json!({
            "percentage_used": d.percentage_used,
            "available_spare": d.available_spare,
            "critical_warning": d.critical_warning,
            "media_errors": d.media_errors,
            "bytes_written": d.bytes_written.to_string(),
            "unsafe_shutdowns": d.unsafe_shutdowns,
        })
    });
    pretty(&json!({
        "drive": s.serial(),
        "registered": s.is_registered(),
        "table": {
            "uid": s.table().uid().to_string(),
            "sequence": s.table().sequence(),
            "reserved_chunks": s.table_window().chunks,
        },
        "targets": s.table().targets().len(),
        "chunks": {
            "total": chunks.total,
            "good": chunks.good(),
            "owned": chunks.owned,
            "free": chunks.free,
            "dirty": chunks.dirty,
            "reserved": chunks.reserved,
            "factory_bad": chunks.factory_bad,
            "grown_bad": chunks.grown_bad,
            "strays": chunks.orphaned,
            "chunk_bytes": health.chunk_bytes,
        },
        "wear": {
            "rated_cycles": health.rated_cycles,
            "min_cycles": wear.min,
            "mean_cycles": wear.mean,
            "max_cycles": wear.max,
            "spread_cycles": health.wear_range(),
            "histogram_sixteenths_of_rated": wear.bins,
        },
        "endurance": {
            "media_bytes": left.media_bytes,
            "media_bytes_left": left.media_bytes_remaining,
            "user_bytes_left": left.host_bytes_remaining,
            "left": left.remaining_ratio,
            "warranty_years": warranty.years,
            "days_left": left.days_remaining,
            "drive_writes_per_day": left.dwpd,
            "drive_writes_per_day_left": left.dwpd_remaining,
        },
        "health_log": drive,
    }))
}
