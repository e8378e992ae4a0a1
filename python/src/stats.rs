//! Counters as dictionaries.

use pyo3::prelude::*;
use serde_json::{Value, json};
use sluice::controller::{DriveStats, NamespaceInfo};
use sluice::open::{NamespaceListing, RuleReport};
use sluice::time::Nanos;

use crate::requests::RequestCounters;

fn to_python(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    let loads = py.import("json")?.getattr("loads")?;
    Ok(loads.call1((value.to_string(),))?.unbind())
}

/// Returns the counters of a queue.
pub(crate) fn queue_stats(
    py: Python<'_>,
    counters: RequestCounters,
    outstanding: u32,
    sleeps: u64,
    slept: Nanos,
) -> PyResult<Py<PyAny>> {
    let RequestCounters { submitted, completed, errors } = counters;
    to_python(
        py,
        &json!({
            "submitted": submitted,
            "completed": completed,
            "errors": errors,
            "outstanding": outstanding,
            "sleeps": sleeps,
            "slept_ns": slept.0,
        }),
    )
}

/// Returns the counters of an emulated drive.
pub(crate) fn one_drive(name: &str, stats: &DriveStats) -> Value {
    let ftl = stats.ftl.as_ref().map(|ftl| {
        json!({
            "host_sectors_written": ftl.host_writes,
            "host_sectors_read": ftl.host_reads,
            "gc_sectors_relocated": ftl.gc_relocations,
            "lines_reclaimed": ftl.lines_reclaimed,
            "uncorrectable_sectors": ftl.uncorrectable_sectors,
            "write_amplification": ftl.write_amplification(),
            "free_lines": stats.free_lines,
        })
    });
    let media = stats.media.as_ref().map(|media| {
        json!({
            "programs": media.programs,
            "erases": media.erases,
            "reads": media.reads,
            "corrected_bits": media.corrected_bits,
            "uncorrectable_reads": media.uncorrectable_reads,
            "program_failures": media.program_failures,
            "erase_failures": media.erase_failures,
            "offline_chunks": media.offline_chunks,
        })
    });
    json!({
        "name": name,
        "reads": stats.reads,
        "writes": stats.writes,
        "other_commands": stats.others,
        "errors": stats.errors,
        "bytes_read": stats.bytes_read,
        "bytes_written": stats.bytes_written,
        "ftl": ftl,
        "media": media,
        "pmr": stats.pmr,
    })
}

/// Returns the counters of the emulated drives of a device, and its registered memory in bytes.
pub(crate) fn drive_stats(
    py: Python<'_>,
    drives: &[Value],
    buffer_bytes: u64,
    buffer_bytes_free: u64,
) -> PyResult<Py<PyAny>> {
    let stats = json!({
        "drives": drives,
        "buffer_bytes": buffer_bytes,
        "buffer_bytes_free": buffer_bytes_free,
    });
    to_python(py, &stats)
}

/// Returns the rules of a drive.
pub(crate) fn rule_report(py: Python<'_>, report: &RuleReport) -> PyResult<Py<PyAny>> {
    // Numbers and names only: this does not fail.
    to_python(py, &serde_json::to_value(report).unwrap_or_default())
}

/// Returns the namespaces of a drive.
pub(crate) fn namespace_listing(py: Python<'_>, listing: &NamespaceListing) -> PyResult<Py<PyAny>> {
    let entry = |info: &NamespaceInfo| {
        let bytes = |blocks: u64| blocks * u64::from(info.block_bytes);
        let nguid: String = info.nguid.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({
            "namespace": info.nsid, "blocks": info.blocks, "block_bytes": info.block_bytes,
            "bytes": bytes(info.blocks), "capacity_bytes": info.allocated_bytes,
            "used_bytes": bytes(info.used_blocks), "attached": info.is_attached, "nguid": nguid,
        })
    };
    let namespaces: Vec<Value> = listing.namespaces.iter().map(entry).collect();
    let listing = json!({
        "unallocated_bytes": listing.unallocated_bytes, "namespaces": namespaces,
    });
    to_python(py, &listing)
}
