//! [`SimProfile`]: where the processor time of a run goes, layer by layer.
//!
//! The run's thread is sampled ([`profile::ThreadSampler`]), which costs the layers nothing. A sample
//! belongs to the layer of the innermost function on its line that is in a layer: a vector that the
//! FTL grows inline is the FTL's, but a function of the standard library that was not inlined is
//! nobody's, and is in the rest.

use std::time::Duration;

use ::profile::{SampleError, SourceLines, SourceLinesError, ThreadSampler, ThreadSamples};
use serde_json::{Map, Value, json};

/// Interval of samples; the tick of the kernel may be longer.
const INTERVAL: Duration = Duration::from_millis(1);

/// A layer of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimLayer {
    /// The jobs: which request is next, and what became of it.
    Workload,
    /// Block layer and targets on the host.
    Host,
    /// The queue pair: entries, doorbells, host memory.
    QueuePair,
    /// The controller and the command's way through the drive.
    Controller,
    /// The translation layer, of the drive or of a target.
    Ftl,
    /// Parallel units, channels and cells.
    FlashArray,
    /// Timers and the event loop.
    Timers,
    /// Latencies, traces and explanations.
    Recorder,
    /// Everything else: building, the standard library, the kernel.
    Rest,
}

/// Crates by layer: the folder in the repository, and the package in a registry.
const CRATES: [(&str, &str, SimLayer); 15] = [
    ("apps/workload/", "sluice-workload-", SimLayer::Workload),
    ("host/block/", "sluice-block-", SimLayer::Host),
    ("host/pblk/", "sluice-pblk-", SimLayer::Host),
    ("host/lnvm/", "sluice-lnvm-", SimLayer::Host),
    ("host/ocssd/", "sluice-ocssd-", SimLayer::Host),
    ("host/kv/", "sluice-kv-", SimLayer::Host),
    ("host/driver/", "sluice-driver-", SimLayer::QueuePair),
    ("wire/transport/", "sluice-transport-", SimLayer::QueuePair),
    ("wire/nvme/", "sluice-nvme-", SimLayer::QueuePair),
    ("device/controller/", "sluice-controller-", SimLayer::Controller),
    ("device/ftl/", "sluice-ftl-", SimLayer::Ftl),
    ("device/media/", "sluice-media-", SimLayer::FlashArray),
    ("base/time/", "sluice-time-", SimLayer::Timers),
    ("base/tracepoint/", "sluice-tracepoint-", SimLayer::Recorder),
    ("tools/report/", "sluice-report-", SimLayer::Recorder),
];

/// Parts of crates that belong to another layer than their crate.
const PARTS: [(&str, SimLayer); 4] = [
    ("/src/nand_array/", SimLayer::FlashArray),
    ("/src/co_simulate.rs", SimLayer::Timers),
    ("/src/recording/", SimLayer::Recorder),
    ("/hdrhistogram-", SimLayer::Recorder),
];

impl SimLayer {
    /// All layers, from the jobs down; the rest is last.
    pub const ALL: [SimLayer; 9] = [
        SimLayer::Workload,
        SimLayer::Host,
        SimLayer::QueuePair,
        SimLayer::Controller,
        SimLayer::Ftl,
        SimLayer::FlashArray,
        SimLayer::Timers,
        SimLayer::Recorder,
        SimLayer::Rest,
    ];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            SimLayer::Workload => "workload",
            SimLayer::Host => "block layer and target",
            SimLayer::QueuePair => "queue pair",
            SimLayer::Controller => "controller",
            SimLayer::Ftl => "FTL",
            SimLayer::FlashArray => "flash array",
            SimLayer::Timers => "timers",
            SimLayer::Recorder => "recorder",
            SimLayer::Rest => "rest",
        }
    }

    /// Returns the key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            SimLayer::Host => "host",
            SimLayer::QueuePair => "queue_pair",
            SimLayer::Ftl => "ftl",
            SimLayer::FlashArray => "flash_array",
            other => other.name(),
        }
    }

    /// Returns the layer of a source file, if it is in one.
    fn of_file(file: &str) -> Option<SimLayer> {
        let part = PARTS.iter().find(|(part, _)| file.contains(part)).map(|(_, layer)| *layer);
        part.or_else(|| {
            let found = CRATES.iter().find(|(folder, package, _)| {
                file.contains(&format!("crates/{folder}")) || file.contains(package)
            });
            found.map(|(_, _, layer)| *layer)
        })
    }
}

/// ThreadSamples by layer, in the order of [`SimLayer::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerSamples([u64; SimLayer::ALL.len()]);

impl LayerSamples {
    /// Returns the samples of a layer.
    pub fn of(&self, layer: SimLayer) -> u64 {
        self.0[layer as usize]
    }

    /// Returns the number of samples.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the share of a layer in percent; 0 without samples.
    pub fn percent(&self, layer: SimLayer) -> f64 {
        100.0 * self.of(layer) as f64 / self.total().max(1) as f64
    }

    fn new(samples: &ThreadSamples, lines: &SourceLines) -> LayerSamples {
        let mut layers = LayerSamples::default();
        for sampled in &samples.addresses {
            let files = lines.files_at(sampled.address);
            let layer = files.iter().find_map(|file| SimLayer::of_file(file));
            layers.0[layer.unwrap_or(SimLayer::Rest) as usize] += u64::from(sampled.count);
        }
        layers.0[SimLayer::Rest as usize] += samples.lost;
        layers
    }

    fn to_json(self) -> Value {
        let percent = |layer: SimLayer| (layer.key().to_owned(), self.percent(layer).into());
        let percent: Map<String, Value> = SimLayer::ALL.into_iter().map(percent).collect();
        json!({ "samples": self.total(), "percent": percent })
    }
}

/// Where the processor time of a run went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimProfile {
    /// Building and preconditioning of the drives.
    pub preparation: LayerSamples,
    /// The jobs.
    pub run: LayerSamples,
}

impl SimProfile {
    /// Returns a table of both parts in percent.
    pub fn table(&self) -> String {
        let mut table = format!("{:<24}{:>12}{:>12}\n", "processor time, %", "preparation", "jobs");
        for layer in SimLayer::ALL {
            let (preparation, run) = (self.preparation.percent(layer), self.run.percent(layer));
            table += &format!("{:<24}{preparation:>12.1}{run:>12.1}\n", layer.name());
        }
        let (preparation, run) = (self.preparation.total(), self.run.total());
        table + &format!("{:<24}{preparation:>12}{run:>12}\n", "samples")
    }

    /// Returns both parts in JSON.
    pub fn to_json(&self) -> Value {
        json!({ "preparation": self.preparation.to_json(), "run": self.run.to_json() })
    }
}

/// Reasons why a run cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The thread cannot be sampled.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// ThreadSamples cannot be attributed to source files.
    #[error(transparent)]
    Lines(#[from] SourceLinesError),
}

/// Profiles the run of this thread.
#[derive(Debug)]
pub(super) struct SimProfiler {
    lines: SourceLines,
    sampler: ThreadSampler,
    preparation: ThreadSamples,
}

impl SimProfiler {
    pub(super) fn start() -> Result<SimProfiler, ProfileError> {
        // Reading the tables takes time of its own.
        let lines = SourceLines::open()?;
        let sampler = ThreadSampler::start(INTERVAL)?;
        Ok(SimProfiler { lines, sampler, preparation: ThreadSamples::default() })
    }

    /// Records that the jobs begin.
    pub(super) fn begin_jobs(&mut self) {
        self.preparation = self.sampler.take();
    }

    /// Returns the profile when the jobs have ended.
    pub(super) fn finish(self) -> SimProfile {
        let run = self.sampler.take();
        drop(self.sampler);
        SimProfile {
            preparation: LayerSamples::new(&self.preparation, &self.lines),
            run: LayerSamples::new(&run, &self.lines),
        }
    }
}

#[cfg(test)]
mod tests {
    // guarantee: B-49

    use super::*;

    #[test]
    fn files_belong_to_layers_in_the_repository_and_in_a_registry() {
        for (file, layer) in [
            ("crates/device/ftl/src/gc/mod.rs", Some(SimLayer::Ftl)),
            ("/build/crates/device/controller/src/nand_array/pu.rs", Some(SimLayer::FlashArray)),
            ("crates/device/controller/src/command/stage.rs", Some(SimLayer::Controller)),
            ("crates/tools/stack/src/co_simulate.rs", Some(SimLayer::Timers)),
            ("crates/tools/stack/src/builder.rs", None),
            ("/registry/src/index/sluice-workload-0.1.0/src/lib.rs", Some(SimLayer::Workload)),
            ("/registry/src/index/hdrhistogram-7.6.0/src/lib.rs", Some(SimLayer::Recorder)),
            ("/rustc/0/library/core/src/ptr/mod.rs", None),
        ] {
            assert_eq!(SimLayer::of_file(file), layer, "{file}");
        }
        for (index, layer) in SimLayer::ALL.into_iter().enumerate() {
            assert_eq!(layer as usize, index);
        }
    }

    #[test]
    fn shares_add_up_and_an_empty_part_is_zero() {
        let run = LayerSamples([1, 0, 2, 3, 0, 0, 0, 0, 4]);
        let sum: f64 = SimLayer::ALL.into_iter().map(|layer| run.percent(layer)).sum();
        assert!((sum - 100.0).abs() < 1e-9, "{sum}");
        let profile = SimProfile { run, ..SimProfile::default() };
        assert_eq!(profile.to_json()["run"]["percent"]["controller"], 30.0);
        assert_eq!(profile.to_json()["preparation"]["percent"]["rest"], 0.0);
        let table = profile.table();
        assert!(table.contains("queue pair                       0.0        20.0\n"), "{table}");
        assert_eq!(table.lines().count(), 11);
    }
}
