//! Rendering of explanations for the report and as JSON.

use scenario::format::bytes_binary;
use serde_json::{Value, json};
use tracepoint::{Cause, RequestOp};

use super::text::{Names, group_waits, op_name};
use super::{Band, Breakdown, Explained, WaitKind, cause_name};
use crate::{BreakdownBar, BreakdownGroup, BreakdownWait};

/// Returns the color group of a reason.
fn group(kind: WaitKind) -> BreakdownGroup {
    let by_cause = |cause: Cause| match cause {
        Cause::Host => BreakdownGroup::Others,
        Cause::Gc => BreakdownGroup::Gc,
        Cause::Map | Cause::Metadata | Cause::Journal | Cause::Scrub | Cause::Sanitize => {
            BreakdownGroup::Background
        }
    };
    match kind {
        WaitKind::PuBusy(_, user) | WaitKind::RegisterBusy(user) | WaitKind::ChannelBusy(user) => {
            by_cause(user.cause)
        }
        WaitKind::ProgramDataInTransfer | WaitKind::Suspended | WaitKind::UnitChange => {
            BreakdownGroup::Others
        }
        WaitKind::Array(_) | WaitKind::Transfer => BreakdownGroup::Own,
        WaitKind::MapPage => BreakdownGroup::Background,
        WaitKind::GcLimiter => BreakdownGroup::Gc,
        WaitKind::WriteBufferFull | WaitKind::Placement | WaitKind::Durability => {
            BreakdownGroup::Buffer
        }
        WaitKind::SubmissionQueue
        | WaitKind::StationBusy(_)
        | WaitKind::Station(_)
        | WaitKind::CompletionQueue => BreakdownGroup::Controller,
        WaitKind::HostSubmit
        | WaitKind::DeviceFull
        | WaitKind::BlockLayer
        | WaitKind::Target
        | WaitKind::HostComplete => BreakdownGroup::Host,
        WaitKind::Unexplained => BreakdownGroup::Unexplained,
    }
}

/// Renders a band as a bar of mean times.
pub fn band_bar(band: &Band) -> BreakdownBar {
    let mean = |ns: u64| ns / band.requests.max(1);
    let waits = band.waits.iter().map(|(kind, time)| BreakdownWait {
        text: kind.to_string(),
        group: group(*kind),
        ns: mean(time.0),
    });
    BreakdownBar { label: band.label(), total_ns: mean(band.total.0), waits: waits.collect() }
}

/// Returns the title of a breakdown: `reads of job db`.
pub fn breakdown_title(breakdown: &Breakdown, names: Names<'_>) -> String {
    let plural = match breakdown.op {
        RequestOp::Flush => "flushes",
        RequestOp::Read => "reads",
        RequestOp::Write => "writes",
        RequestOp::Trim => "trims",
    };
    format!("{plural} of job {}", names.job(breakdown.job))
}

/// Renders a request as a bar of its waits.
pub fn request_bar(request: &Explained, names: Names<'_>) -> BreakdownBar {
    let waits = group_waits(&request.waits).into_iter().map(|g| BreakdownWait {
        text: names.reason(g.kind, g.pu),
        group: group(g.kind),
        ns: g.time.0,
    });
    let place = match request.op {
        RequestOp::Flush => String::new(),
        _ => {
            let bytes = u64::from(request.sectors) * u64::from(names.sector_bytes);
            format!(" {} at LBA {}", bytes_binary(bytes), request.lba)
        }
    };
    let label = format!("{}{place}, job {}", op_name(request.op), names.job(request.job));
    BreakdownBar { label, total_ns: request.latency.0, waits: waits.collect() }
}

/// Returns a request as JSON. Times are in nanoseconds; the waits are in order and add up to
/// `latency_ns`.
pub fn request_json(request: &Explained, names: Names<'_>) -> Value {
    let waits = request.waits.iter().map(|wait| {
        let mut value = json!({
            "reason": wait.kind.code(),
            "text": names.reason(wait.kind, wait.pu),
            "start_ns": wait.start.0,
            "time_ns": wait.time.0,
        });
        if let Some(pu) = wait.pu {
            value["pu"] = json!(pu);
        }
        if let Some(job) = wait.kind.job() {
            value["behind_job"] = json!(names.job(job));
        }
        if let WaitKind::PuBusy(_, user)
        | WaitKind::RegisterBusy(user)
        | WaitKind::ChannelBusy(user) = wait.kind
        {
            value["behind"] = json!(cause_name(user.cause));
        }
        value
    });
    json!({
        "request": request.serial,
        "job": names.job(request.job),
        "op": op_name(request.op),
        "lba": request.lba,
        "sectors": request.sectors,
        "start_ns": request.start.0,
        "latency_ns": request.latency.0,
        "waits": waits.collect::<Vec<_>>(),
    })
}

/// Returns a breakdown as JSON: sums in nanoseconds by reason, adding up to `total_ns`.
pub fn breakdown_json(breakdown: &Breakdown, names: Names<'_>) -> Value {
    let bands = breakdown.bands.iter().map(|band| {
        let waits = band.waits.iter().map(|(kind, time)| (kind.code(), json!(time.0)));
        json!({
            "from_percentile": band.from,
            "to_percentile": band.to,
            "requests": band.requests,
            "min_ns": band.min.0,
            "max_ns": band.max.0,
            "total_ns": band.total.0,
            "waits_ns": waits.collect::<serde_json::Map<_, _>>(),
        })
    });
    json!({
        "job": names.job(breakdown.job),
        "op": op_name(breakdown.op),
        "bands": bands.collect::<Vec<_>>(),
    })
}
