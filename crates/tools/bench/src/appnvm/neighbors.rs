//! An application beside another one that writes: each has parallel units of its own, on channels of their
//! own, so that the writes cost the reads of the other application nothing but the host's interface.

use std::fmt::Write as _;

use sim::SimOutcome;

use super::{BENCH, iops_of, outcome_of, p99_of};
use crate::{BenchError, Measurement, RunLength, Sink};

/// Share of its latency that a neighbor may cost a job.
const COST: f64 = 0.02;

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"none\"\n\
    geometry = { channels = 4, pus = 2, chunks = 64, pages = 64 }\n\
    ftl.over_provisioning = 0.25\npersonality = \"rules\"\nrules.program = \"bench.rules\"\n\
    rules.engines = 4\nrules.op = \"1ns\"\n\
    [precondition]\nfill = \"sequential\"\n\
    [path]\nqueue_model = \"mq\"\ncores = 2\n";

/// Two applications, each with two of the four channels.
const APPS: &str = "app db { units = 0-3, spare = 0.25 }\napp log { units = 4-7, spare = 0.25 }\n";

/// Returns the rules of an application: writes and reads at the block that the host names, and collection.
fn rules_of(app: &str) -> String {
    format!(
        "table {app}.{app}_map: addr[{app}.sectors] durable\n\
         rule {app}_store when channel.app == {app} and header.write\n  \
         set {app}_map[header.lba] = next_addr({app}.host)\n  \
         do header.addr = {app}_map[header.lba]; insert lun\n\
         rule {app}_load when channel.app == {app} and header.read\n  \
         do header.addr = {app}_map[header.lba]; insert lun\n\
         rule {app}_reclaim when {app}.free_lines < 4\n  \
         set v = best line of {app} by line.sectors - line.valid where line.valid < line.sectors\n  \
         do move valid of v to {app}.gc; erase v\n"
    )
}

/// Runs reads and writes of `db`, beside random writes of `log` if `beside` is true.
fn run_jobs(beside: bool, length: RunLength) -> Result<SimOutcome, BenchError> {
    let program = format!("{APPS}{}{}", rules_of("db"), rules_of("log"));
    let runtime = length.choose("400ms", "20ms");
    let mut text = DRIVE.to_owned();
    let job = |name: &str, app: &str, rw: &str, depth: u32| {
        format!(
            "[[job]]\nname = \"{name}\"\napp = \"{app}\"\nrw = \"{rw}\"\nbs = \"4k\"\n\
             iodepth = {depth}\nnorandommap = true\ntime_based = true\nruntime = \"{runtime}\"\n"
        )
    };
    let _ = write!(text, "{}", job("reads", "db", "randread", 4));
    if beside {
        let _ = write!(text, "{}", job("writes", "log", "randwrite", 16));
    }
    outcome_of(&text, &program)
}

/// Measures the job alone, and beside the writes of the other application.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let alone = run_jobs(false, length)?;
    let (iops, p99) = (iops_of(&alone, "reads"), p99_of(&alone, "reads"));
    let case = "reads of an application, QD 4, alone";
    sink.push(Measurement::new(BENCH, case, "iops", iops, "1/s"))?;
    sink.push(Measurement::new(BENCH, case, "latency_p99", p99, "ns"))?;
    let beside = run_jobs(true, length)?;
    let case = "reads of an application, QD 4, beside writes of another one";
    sink.push(Measurement::new(BENCH, case, "writes", iops_of(&beside, "writes"), "1/s"))?;
    let collected = beside.drives[0].drive.ftl.map_or(0, |ftl| ftl.gc_relocations);
    sink.push(Measurement::new(BENCH, case, "sectors_moved", collected as f64, ""))?;
    let row = Measurement::new(BENCH, case, "iops", iops_of(&beside, "reads"), "1/s");
    sink.push(row.with_reference("alone", iops).at_least((1.0 - COST) * iops))?;
    let row = Measurement::new(BENCH, case, "latency_p99", p99_of(&beside, "reads"), "ns");
    sink.push(row.with_reference("alone", p99).at_most((1.0 + COST) * p99))
}
