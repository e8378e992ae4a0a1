//! Four back ends of one host FTL ([Thesis15 ch. 5], figure 2): IOPS of 4 KB random writes, in
//! virtual time.
//!
//! | case | back end |
//! |---|---|
//! | OpenSSD | preset `openssd-jasmine` |
//! | NVMe null device | no media times; latency and bandwidth of the preset `nvme-null` |
//! | simulated NAND | 8 channels of `mqsim-default-small`, one parallel unit each, no link limit |
//! | memory | no media times, no link limit |
//!
//! With one parallel unit, a channel of the simulated NAND serves one operation at a time, as in
//! the paper. The host FTL is the sector target (`rrpc`) on a drive of 1 or 2 GB. The host's CPU
//! time per request is that of [Thesis15 ch. 6 table 2]: block layer and target, 641 ns per write.
//! It alone limits the case *memory*, to 1.56 million requests per second.
//!
//! The text has no numbers of the figure, and the values of FRP and Moneta-D in it are other
//! papers'. The rows have no references.

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::request::PAPER;
use super::{
    BENCH, LightnvmHarness, NO_MEDIA_TIME, OPENSSD, nvme_null_with_addresses, run_logged,
    sector_target,
};

/// Bytes written on each back end.
const BYTES: u64 = 128 << 20;

/// Measures every back end.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let no_link = "controller.dma_bandwidth = 0\n";
    for (name, preset, drive) in [
        ("OpenSSD", OPENSSD, String::new()),
        ("NVMe null device", OPENSSD, nvme_null_with_addresses()?),
        ("simulated NAND", "mqsim-default-small", format!("geometry.pus = 1\n{no_link}")),
        ("memory", OPENSSD, format!("{NO_MEDIA_TIME}{no_link}")),
    ] {
        let (submit, complete) = (PAPER.write_submission(), PAPER.write_completion());
        let host =
            format!("[host]\nsubmit_cost = \"{submit}ns\"\ncomplete_cost = \"{complete}ns\"\n");
        let mut harness = LightnvmHarness::new(&(host + &sector_target(preset, &drive)))?;
        let bytes = length.choose(BYTES, BYTES / 16);
        let options = format!("rw=randwrite bs=4k iodepth=32 size={BYTES} io_size={bytes}");
        let iops = run_logged(&mut harness, &options)?.iops();
        let case = format!("host FTL on {name}, 4 KB random writes, QD 32");
        sink.push(Measurement::new(BENCH, case, "iops", iops, "1/s"))?;
    }
    Ok(())
}
