//! Group `thesis`: the experiments of [Thesis15 ch. 6] on open-channel drives, of [Thesis15 ch. 5] on
//! the back ends of its host FTL, and the statements of its chapter 2, [CIDR13 §2.3].
//!
//! Measurements in virtual time are the same on every machine; those in real time measure the
//! host's side on this machine. A row with the reference `paper` is compared with a number of the
//! text. Most figures have no numbers in the text, and their rows have no reference.
//!
//! | part | figure or table | clock |
//! |---|---|---|
//! | [`ssds`] | ch. 6 figure 1: response times of two drives | virtual |
//! | [`openssd`] | ch. 6 figure 8 and table 3: OpenSSD, managed by drive and by host | virtual |
//! | [`null_device`] | ch. 6 figure 6: throughput with and without the target | real |
//! | [`nvme_null`] | ch. 6 figure 7: the NVMe null device and CPU time | virtual, real |
//! | [`request`] | ch. 6 table 2: time per request by component | real |
//! | [`backends`] | ch. 5 figure 2: four back ends of the host FTL | virtual |
//! | [`chips`] | [CIDR13 fig. 1]: channels and chips | virtual |
//! | [`myths`] | [CIDR13 §2.3]: three myths about SSDs | virtual |
//!
//! Table 4 of chapter 6, the key-value target, is `sluice kv bench`.

pub mod backends;
pub mod chips;
mod echo_path;
pub mod myths;
pub mod null_device;
pub mod nvme_null;
pub mod openssd;
pub mod request;
mod request_log;
pub mod ssds;

use super::lightnvm::harness::{BenchJob, LightnvmHarness};
use super::lightnvm::setup;
use super::{BenchError, BenchFn, RunLength, Sink, ThesisPart};
use request_log::{LoggedDevice, RequestLog};

pub(super) const BENCH: &str = "thesis";

/// The parts in the order of measurement.
const PARTS: &[(ThesisPart, BenchFn)] = &[
    (ThesisPart::Ssds, ssds::run),
    (ThesisPart::Openssd, openssd::run),
    (ThesisPart::NullDevice, null_device::run),
    (ThesisPart::NvmeNull, nvme_null::run),
    (ThesisPart::Request, request::run),
    (ThesisPart::Backends, backends::run),
    (ThesisPart::Chips, chips::run),
    (ThesisPart::Myths, myths::run),
];

/// Measures these parts of the group, or all of them if the list is empty.
///
/// # Errors
/// When the system refuses memory or threads, a request fails, or the output fails.
pub fn run_parts(
    parts: &[ThesisPart],
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(PARTS, parts, length, sink)
}

/// Returns a preset as an open-channel drive with these lines of `[drive]`, under the sector target
/// of [Thesis15 ch. 6 §4.3]. The drive has 64 chunks per parallel unit.
fn sector_target(preset: &str, drive: &str) -> String {
    format!(
        "[drive]\npreset = \"{preset}\"\npersonality = \"open-channel\"\ndevice_l2p = true\n\
         geometry.chunks = 64\n{drive}\n[target]\nkind = \"rrpc\"\n"
    )
}

/// The preset of OpenSSD; with 64 chunks per parallel unit, the drive has 1 GB.
const OPENSSD: &str = "openssd-jasmine";

/// Lines of `[drive]` for media that take no time.
const NO_MEDIA_TIME: &str = "timing = { read = 0, program = 0, erase = 0, channel = 0 }\n";

/// Returns lines of `[drive]` that give an open-channel drive without media times the latency and
/// the bandwidth of the preset `nvme-null`, which has no physical addresses itself.
///
/// # Errors
/// If the preset has no null media.
fn nvme_null_with_addresses() -> Result<String, BenchError> {
    let harness = LightnvmHarness::new("[drive]\npreset = \"nvme-null\"\n")?;
    let null = harness.spec.config.null;
    Ok(format!(
        "{NO_MEDIA_TIME}controller = {{ completion_latency = \"{}ns\", dma_bandwidth = {} }}\n",
        null.latency.0, null.bytes_per_sec,
    ))
}

/// Runs a job and records each of its requests.
fn run_logged(harness: &mut LightnvmHarness, options: &str) -> Result<RequestLog, BenchError> {
    let mut log = RequestLog::default();
    harness
        .run_wrapped(&[BenchJob("job", options)], |device| LoggedDevice::new(device, &mut log))?;
    Ok(log)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::Format;
    use super::*;

    /// Returns the rows of a quick run.
    fn rows(part: impl Fn(RunLength, &mut Sink<'_>) -> Result<(), BenchError>) -> Vec<Value> {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        part(RunLength::Quick, &mut sink).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn virtual_parts_repeat_their_results_within_their_bounds() {
        let nvme_null = |length, sink: &mut Sink<'_>| {
            nvme_null::virtual_time(length, sink).map(|iops| assert_eq!(iops.len(), 8))
        };
        let parts: [(BenchFn, usize); 6] = [
            (ssds::run, 40),
            (openssd::run, 36),
            (nvme_null, 32),
            (backends::run, 4),
            (chips::run, 16),
            (myths::run, 24),
        ];
        for (part, count) in parts {
            let first = rows(part);
            assert_eq!(first, rows(part));
            assert_eq!(first.len(), count);
            assert!(first.iter().all(|row| row["verdict"] != "fail"), "{first:?}");
        }
    }

    #[test]
    fn the_null_device_with_addresses_has_the_presets_latency_and_bandwidth() {
        let drive = nvme_null_with_addresses().unwrap();
        let harness = LightnvmHarness::new(&sector_target(OPENSSD, &drive)).unwrap();
        let controller = &harness.spec.config.controller;
        assert_eq!(controller.dma_bytes_per_sec, 380_000_000);
        assert_eq!(controller.completion_latency.0, 24_220);
    }
}
