//! The block layer over an echo drive, with and without the sector target, in real time.
//!
//! Both paths begin with `mq` on one core. Beneath it is the driver of the queue pair, or the
//! target and then the driver. The target is pblk with the settings of `rrpc` and with its tracking
//! of requests in flight ([`OverlapSerializer`]); `rrpc` itself needs a drive that stores data. No
//! data is transferred, as on the null block device of [Thesis15 ch. 6 §5], and no garbage
//! collection runs.

use block::{BlockDevice, BlockLayer, BlockLayerConfig, DeviceDriver, DeviceQueue, Payload};
use block::{Queue, Raw, Request};
use driver::Features;
use pblk::{OverlapSerializer, Pblk, Rrpc};
use rng::Rng;

use super::super::echo::EchoController;
use super::super::lightnvm::overhead::{self, Batches};
use super::super::{BenchError, RunLength};
use super::setup;

/// Requests of a batch.
const BATCH: u64 = 32;
/// Maximum number of sectors of a transfer. The load splits longer requests on both paths, as the
/// block layer of [Thesis15 ch. 6 §6.1.1] does.
const TRANSFER_SECTORS: u64 = 32;
/// Sectors of a sample, at about which it is shorter than a time slice of the scheduler.
const SAMPLE_SECTORS: u64 = 8192;

/// Requests through the block layer to a device over an echo drive.
type Layered<D> = Batches<Queue<DeviceQueue<D>>>;

/// Random requests of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EchoLoad {
    /// Sectors (4 KB) of a request.
    pub sectors: u64,
    /// Percentage of writes.
    pub write_percent: u64,
}

/// Host time per request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HostCost {
    /// Nanoseconds from submission to the doorbell.
    pub submission_ns: f64,
    /// Nanoseconds for the completion.
    pub completion_ns: f64,
}

impl HostCost {
    /// Returns the sum in nanoseconds.
    pub(super) fn total_ns(self) -> f64 {
        self.submission_ns + self.completion_ns
    }
}

/// The compared paths.
pub(super) struct EchoPaths {
    raw: Batches<Raw>,
    layer: Layered<Raw>,
    target: Layered<OverlapSerializer<Pblk>>,
    rng: Rng,
    area: u64,
}

/// A path of [`EchoPaths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EchoPath {
    /// The driver alone.
    Driver,
    /// The block layer over the driver.
    WithoutTarget,
    /// The block layer over the target.
    WithTarget,
}

impl EchoPaths {
    /// Creates the paths. The area of the requests has been written through the target: 4 GiB, or
    /// 256 MiB in a quick run.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn new(length: RunLength) -> Result<EchoPaths, BenchError> {
        let area = length.choose(1 << 20, 1 << 16);
        let (raw, echo) = overhead::raw()?;
        let raw = Batches::new(raw, echo, area, 0);
        let (device, echo) = overhead::raw()?;
        let layer = layered(device, echo, area)?;
        let (device, echo) = overhead::pblk_with(Rrpc::config())?;
        let mut target = layered(OverlapSerializer::new(device), echo, area)?;
        target.fill()?;
        Ok(EchoPaths { raw, layer, target, rng: Rng::new(1), area })
    }

    /// Returns the mean cost of a request of one sample.
    ///
    /// # Errors
    /// If a request fails.
    pub(super) fn sample(
        &mut self,
        path: EchoPath,
        load: EchoLoad,
    ) -> Result<HostCost, BenchError> {
        let EchoPaths { raw, layer, target, rng, area } = self;
        match path {
            EchoPath::Driver => sample(raw, rng, *area, load),
            EchoPath::WithoutTarget => sample(layer, rng, *area, load),
            EchoPath::WithTarget => sample(target, rng, *area, load),
        }
    }
}

fn layered<D: BlockDevice + Send>(
    device: D,
    echo: EchoController,
    area: u64,
) -> Result<Layered<D>, BenchError> {
    let mut driver = DeviceDriver::new(vec![device], Features::default()).map_err(setup)?;
    let (_, queues) = BlockLayer::open(&mut driver, &BlockLayerConfig::default())?;
    let queue = queues.into_iter().next().ok_or(BenchError::Thread("a queue"))?;
    Ok(Batches::new(queue, echo, area, 0))
}

fn sample<D: BlockDevice>(
    batches: &mut Batches<D>,
    rng: &mut Rng,
    area: u64,
    load: EchoLoad,
) -> Result<HostCost, BenchError> {
    let rounds = (SAMPLE_SECTORS / (BATCH * load.sectors)).max(1);
    let mut fragments = Vec::new();
    let mut cost = HostCost::default();
    for _ in 0..rounds {
        fragments.clear();
        for _ in 0..BATCH {
            split(rng.below(area / load.sectors) * load.sectors, load, rng, &mut fragments);
        }
        let time = batches.batch(fragments.len() as u64, |i| fragments[i as usize])?;
        cost.submission_ns += time.submission.as_nanos() as f64;
        cost.completion_ns += time.completion.as_nanos() as f64;
    }
    let requests = (rounds * BATCH) as f64;
    let per_request = |ns: f64| ns / requests;
    Ok(HostCost {
        submission_ns: per_request(cost.submission_ns),
        completion_ns: per_request(cost.completion_ns),
    })
}

/// Appends the transfers of a request at sector `lba`.
fn split(lba: u64, load: EchoLoad, rng: &mut Rng, fragments: &mut Vec<Request>) {
    let writes = rng.below(100) < load.write_percent;
    for at in (0..load.sectors).step_by(TRANSFER_SECTORS as usize) {
        let sectors = TRANSFER_SECTORS.min(load.sectors - at) as u32;
        let tag = fragments.len() as u64;
        fragments.push(match writes {
            true => Request::write(lba + at, sectors, Payload::BitBucket, tag),
            false => Request::read(lba + at, sectors, Payload::BitBucket, tag),
        });
    }
}

#[cfg(test)]
mod tests {
    use block::Op;

    use super::*;

    #[test]
    fn every_path_completes_every_load() {
        let mut paths = EchoPaths::new(RunLength::Quick).unwrap();
        for (sectors, write_percent) in [(1, 0), (1, 100), (128, 50)] {
            for path in [EchoPath::Driver, EchoPath::WithoutTarget, EchoPath::WithTarget] {
                let cost = paths.sample(path, EchoLoad { sectors, write_percent }).unwrap();
                assert!(cost.submission_ns > 0.0 && cost.completion_ns > 0.0, "{cost:?}");
                assert_eq!(cost.total_ns(), cost.submission_ns + cost.completion_ns);
            }
        }
    }

    #[test]
    fn a_long_request_is_split_without_a_gap() {
        let (mut rng, mut fragments) = (Rng::new(1), Vec::new());
        split(1000, EchoLoad { sectors: 128, write_percent: 100 }, &mut rng, &mut fragments);
        split(7, EchoLoad { sectors: 1, write_percent: 0 }, &mut rng, &mut fragments);
        let shape: Vec<(u64, u32)> = fragments.iter().map(|r| (r.lba, r.sectors)).collect();
        assert_eq!(shape, [(1000, 32), (1032, 32), (1064, 32), (1096, 32), (7, 1)]);
        assert!(fragments[..4].iter().all(|request| request.op == Op::Write));
        assert_eq!((fragments[4].op, fragments[4].tag), (Op::Read, 4));
    }
}
