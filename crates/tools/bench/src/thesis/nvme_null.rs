//! Random writes to the NVMe null device, from 4 KB to 512 KB ([Thesis15 ch. 6 §6.1.1], figure 7):
//! IOPS and bandwidth in virtual time, and the host's CPU time in real time.
//!
//! **Virtual time.** Without the target the drive is the preset `nvme-null`: 35 us per 4 KB, at
//! most 380 MB/s. That drive has no physical addresses. With the target (`rrpc`) it is an
//! open-channel drive without media times that has the preset's latency and bandwidth. Eight
//! requests are outstanding. The bandwidth of both is bounded by the paper's 380 MB/s, within 2 %:
//! a run ends when its last write is in the target's write buffer, so that its bandwidth is
//! slightly above the device's.
//!
//! **Real time.** CPU time per request is the host's over an echo drive, as in
//! [`null_device`](super::null_device): the null device does not touch data either. `cpu_share` is
//! this time multiplied by the IOPS above, in percent of a core; `cpu_added` is the difference of
//! the shares, which the paper gives as 6 % for 4 KB. For 512 KB it gives 0.3 % in the figure's
//! caption, which is the reference, and 1.3 % in the text. The machines differ: this row has no
//! bound. A drive in real time would need a core of its own and add its lateness to the results.

use event::AllowedCpus;

use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave, on_first_cpu};
use super::echo_path::{EchoLoad, EchoPath, EchoPaths};
use super::null_device::SIZES;
use super::{BENCH, LightnvmHarness, OPENSSD, nvme_null_with_addresses, run_logged, sector_target};

/// Bandwidth of the device in MB/s.
const PAPER_BANDWIDTH: f64 = 380.0;
/// Maximum relative difference of a bandwidth from the paper's.
const TOLERANCE: f64 = 0.02;
/// Bytes written per size.
const BYTES: u64 = 128 << 20;

/// Measures every size.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let iops = virtual_time(length, sink)?;
    let rows = on_first_cpu(&AllowedCpus::allowed(), || cpu_time(length, &iops))?;
    rows.into_iter().try_for_each(|row| sink.push(row))
}

const SIDES: [&str; 2] = ["without target", "with target"];

fn case(sectors: u64, side: &str) -> String {
    format!("nvme-null, {} KB random writes, {side}", sectors * 4)
}

/// Measures IOPS and bandwidth; returns the IOPS of both sides by size.
pub(super) fn virtual_time(
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<Vec<[f64; 2]>, BenchError> {
    let with_target = sector_target(OPENSSD, &nvme_null_with_addresses()?);
    let drives = ["[drive]\npreset = \"nvme-null\"\n", with_target.as_str()];
    let mut all = Vec::new();
    for sectors in SIZES {
        let mut both = [0.0; 2];
        for (which, scenario) in drives.into_iter().enumerate() {
            let mut harness = LightnvmHarness::new(scenario)?;
            let options = format!(
                "rw=randwrite bs={}k iodepth=8 size={BYTES} io_size={}",
                sectors * 4,
                length.choose(BYTES, BYTES / 4)
            );
            let iops = run_logged(&mut harness, &options)?.iops();
            let case = case(sectors, SIDES[which]);
            sink.push(Measurement::new(BENCH, &case, "iops", iops, "1/s"))?;
            let bandwidth = iops * (sectors * 4096) as f64 / 1e6;
            let row = Measurement::new(BENCH, case, "bandwidth", bandwidth, "MB/s");
            let row = row.with_reference("paper", PAPER_BANDWIDTH);
            sink.push(row.within(TOLERANCE, PAPER_BANDWIDTH))?;
            both[which] = iops;
        }
        all.push(both);
    }
    Ok(all)
}

fn cpu_time(length: RunLength, iops: &[[f64; 2]]) -> Result<Vec<Measurement>, BenchError> {
    let mut paths = EchoPaths::new(length)?;
    let mut rows = Vec::new();
    for (sectors, iops) in SIZES.into_iter().zip(iops) {
        let load = EchoLoad { sectors, write_percent: 100 };
        let sides = [EchoPath::WithoutTarget, EchoPath::WithTarget];
        let taken = interleave(length.choose(101, 3), sides.len(), |which| {
            Ok(paths.sample(sides[which], load)?.total_ns())
        })?;
        let mut shares = [0.0; 2];
        for (which, samples) in taken.into_iter().enumerate() {
            let case = case(sectors, SIDES[which]);
            let none = || BenchError::NoValue { case: case.clone(), metric: "cpu_per_io" };
            let samples = Samples::new(samples).ok_or_else(none)?;
            rows.push(Measurement::median(BENCH, &case, "cpu_per_io", &samples, "ns"));
            shares[which] = 100.0 * samples.median() * iops[which] / 1e9;
            rows.push(Measurement::new(BENCH, case, "cpu_share", shares[which], "%"));
        }
        let added = shares[1] - shares[0];
        let row = Measurement::new(BENCH, case(sectors, SIDES[1]), "cpu_added", added, "%");
        rows.push(match sectors {
            1 => row.with_reference("paper", 6.0),
            128 => row.with_reference("paper", 0.3),
            _ => row,
        });
    }
    Ok(rows)
}
