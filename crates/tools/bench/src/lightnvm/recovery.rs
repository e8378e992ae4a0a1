//! Cost of recovery after a power cut by the size of the drive ([LightNVM17 §4.2.2]), in virtual
//! time.
//!
//! Drives of several sizes are filled, and then overwritten at random until several checkpoints
//! have been written. Power is cut, and pblk is opened again with all parallel units active. The
//! checkpoint interval is equal on all drives. Two counts are made: scanned sectors (the read returns
//! only their out-of-band bytes), and sectors that are read with their data. The latter are the
//! journal and the map's pages, one sector in a thousand of the drive.
//!
//! The bound on scanned sectors covers the sectors written since the base of the last checkpoint,
//! in lines that were open then or have been opened since. The interval counts relocated sectors
//! too, and a checkpoint is durable at most half an interval after its start. The bound is
//! therefore one and a half intervals, the map's pages of two checkpoints, in-flight writes, and
//! the open lines (two streams, two each). It is equal for all sizes except for the pages, one
//! sector in 984 of the drive per checkpoint.

use std::cell::Cell;

use driver::ControllerHandle;
use pblk::Pblk;
use scenario::HostTarget;
use stack::Stack;
use time::{Component, Nanos};

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::harness::{BenchJob, LightnvmHarness};
use super::{BENCH, setup};

/// Chunks per parallel unit.
const SIZES: [u32; 3] = [32, 128, 512];

/// Bytes between the starts of two checkpoints.
const CHECKPOINT: u64 = 16 << 20;

/// Maximum number of polls for an answer of the drive.
const POLL_LIMIT: u64 = 10_000_000;

fn scenario(chunks: u32) -> String {
    format!(
        "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"memory\"\n\
         geometry = {{ channels = 2, pus = 4, planes = 1, pages = 16, chunks = {chunks} }}\n\
         [target]\nkind = \"pblk\"\nover_provisioning = 0.25\ncheckpoint_interval = \"{CHECKPOINT}\"\n"
    )
}

/// Reads of one recovery, and its time.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    bytes: u64,
    sectors_searched: u64,
    with_data: u64,
    /// Maximum number of scanned sectors.
    bound: f64,
    duration: Nanos,
}

/// Measures recoveries.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let sizes = &SIZES[..effort.choose(SIZES.len(), 1)];
    let mut smallest = None;
    for &chunks in sizes {
        let r = recovery(chunks)?;
        let case = |what: &str| format!("recovery of {} MiB, {what}", r.bytes >> 20);
        let row = |what: &str, metric, value, unit| {
            Measurement::new(BENCH, case(what), metric, value, unit)
        };
        let first = *smallest.get_or_insert(r.sectors_searched);
        sink.push(
            row("looked for", "sectors", r.sectors_searched as f64, "sectors").at_most(r.bound),
        )?;
        let against = row("looked for", "against_smallest", r.sectors_searched as f64, "sectors");
        sink.push(against.with_reference("the smallest drive", first as f64))?;
        sink.push(row("journal and map", "sectors", r.with_data as f64, "sectors"))?;
        sink.push(row("from the first command", "time", r.duration.0 as f64 / 1e6, "ms"))?;
    }
    Ok(())
}

fn recovery(chunks: u32) -> Result<Recovery, BenchError> {
    let mut harness = LightnvmHarness::new(&scenario(chunks))?;
    harness.run_in_zero_time(&[BenchJob("fill", "rw=write bs=64k iodepth=8")])?;
    let writes =
        format!("rw=randwrite bs=4k iodepth=32 norandommap=1 io_size={}", 7 * CHECKPOINT / 2);
    harness.run(&[BenchJob("overwrite", &writes)])?;
    let LightnvmHarness { stack, spec: plan, .. } = harness;
    let ftl = stack.ftl().ok_or_else(|| setup("no translation layer"))?;
    let (layout, unit) = (*ftl.capacity_plan(), ftl.geometry().ws_opt);
    let under_way = (layout.host_buffer_units + layout.gc_buffer_units) * unit;
    let beside = under_way + 2 * layout.map_pages + 4 * layout.line_sectors;
    let bound = 1.5 * layout.checkpoint_sectors as f64 + f64::from(beside);
    let HostTarget::Pblk(config) = plan.target else { return Err(setup("no pblk")) };
    let Stack { drive, device, .. } = stack;
    drop(device);
    let mut drive = drive.power_cut().power_on().map_err(setup)?;
    let port = drive.attach()?;
    // Advance time whenever the drive is idle.
    let now = Cell::new(Nanos::ZERO);
    let mut progress = || {
        if !drive.poll(now.get()) && drive.deadline() != Nanos::MAX {
            now.set(drive.deadline().max(now.get()));
        }
    };
    let mut controller =
        ControllerHandle::connect(port.clone(), &mut progress, POLL_LIMIT).map_err(setup)?;
    let queue = controller.create_queue_pair(1024, None, &mut progress).map_err(setup)?;
    let info = controller.info().clone();
    let total = info.open_channel.as_ref().map_or(0, |oc| oc.geometry.total_chunks());
    let descriptors = controller.chunks(0, total, &mut progress).map_err(setup)?;
    let begin = now.get();
    let pblk = Pblk::open(&info, &descriptors, queue, port, config, &mut progress, true);
    let pblk = pblk.map_err(setup)?;
    let read = *pblk.recovery_stats().ok_or_else(|| setup("nothing was recovered"))?;
    if !read.from_checkpoint || read.map_mismatches > 0 {
        return Err(setup(format_args!("the recovery found no checkpoint: {read:?}")));
    }
    Ok(Recovery {
        bytes: u64::from(layout.logical) * u64::from(info.sector_bytes),
        sectors_searched: read.oob_sectors,
        with_data: read.data_sectors,
        bound,
        duration: now.get().since(begin),
    })
}
