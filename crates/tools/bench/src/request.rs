//! [`BenchRequest`]: the benchmarks to run, as `sluice bench` asks for them.

use machine::Variation;

use super::groups::{
    BenchGroup, BenchPart, BlockPart, CostSource, HiopsPart, LightnvmPart, NamedValue,
};
use super::{BenchError, RunLength, Sink};
use super::{
    appnvm, block, device, direct, exec, hiops, lightnvm, real_time, ring, scale, sim, speculate,
    thesis, uring,
};
use crate::multicore::Machine;

/// Benchmarks to run.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    /// The group.
    pub group: BenchGroup,
    /// Parts of the group; all if empty, and the curves of a modeled machine.
    pub parts: Vec<BenchPart>,
    /// Machine to model, for the group `block`.
    pub machine: Option<Machine>,
    /// Source of the costs of that machine.
    pub costs: CostSource,
    /// Number of a modeled machine that is multiplied.
    pub vary: Option<Variation>,
    /// Device of this machine to measure, instead of emulated ones.
    pub device: Option<String>,
    /// Whether the data on the device may be overwritten.
    pub may_overwrite: bool,
    /// Length of each measurement.
    pub length: RunLength,
}

/// Measures a device of this machine.
type DeviceBenchFn = fn(&str, RunLength, &mut Sink<'_>) -> Result<(), BenchError>;

impl BenchRequest {
    /// Checks that the parts and the device fit the group.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn check(&self) -> Result<(), BenchError> {
        let asked = self.group.name();
        if self.machine.is_some() && self.group != BenchGroup::Block {
            return Err(BenchError::Usage(format!(
                "--machine is for the group `block`, not `{asked}`"
            )));
        }
        let is_modeled =
            self.machine.is_some() || self.parts == [BenchPart::Hiops(HiopsPart::Machine)];
        if self.vary.is_some() && !is_modeled {
            return Err(BenchError::Usage(
                "--vary is for modelled machines: `block --machine` and `hiops --part machine`"
                    .to_owned(),
            ));
        }
        if let Some(part) = self.parts.iter().find(|part| part.group() != self.group) {
            let (part, of) = (part.name(), part.group().name());
            return Err(BenchError::Usage(format!(
                "--part {part} is a part of the group `{of}`, not of `{asked}`"
            )));
        }
        if let Some(part) = self.parts.iter().find_map(|part| part.block())
            && self.machine.is_none()
        {
            return Err(BenchError::Usage(format!(
                "--part {} needs --machine: it is a part of the group on a modelled machine",
                part.name()
            )));
        }
        let Some(device) = &self.device else { return Ok(()) };
        if self.device_bench().is_none() {
            return Err(BenchError::Usage(format!(
                "--device is for the groups `block` and `hiops`, and for `lightnvm` with `--part \
                 overhead`, not for `{asked}`{}",
                if self.parts.is_empty() { "" } else { " with these parts" }
            )));
        }
        if self.group == BenchGroup::Lightnvm && !self.may_overwrite {
            return Err(BenchError::Usage(format!(
                "pblk writes to {device}, and what is there is lost: --destroy says that it may be"
            )));
        }
        Ok(())
    }

    /// Runs the benchmarks.
    ///
    /// # Errors
    /// As [`check`](BenchRequest::check), and when something cannot be measured.
    pub fn run(&self, sink: &mut Sink<'_>) -> Result<(), BenchError> {
        self.check()?;
        if let Some(machine) = self.machine {
            let parts: Vec<_> = self.parts.iter().filter_map(|part| part.block()).collect();
            let parts = if parts.is_empty() { &[BlockPart::Curves][..] } else { &parts };
            return block::modeled_machine::run(
                machine,
                parts,
                self.costs,
                self.vary.as_ref(),
                self.length,
                sink,
            );
        }
        if let Some(vary) = &self.vary {
            return hiops::run_varied(vary, self.length, sink);
        }
        if let (Some(device), Some(measure)) = (&self.device, self.device_bench()) {
            return measure(device, self.length, sink);
        }
        let of_exec: Vec<_> = self.parts.iter().filter_map(|part| part.exec()).collect();
        let of_lightnvm: Vec<_> = self.parts.iter().filter_map(|part| part.lightnvm()).collect();
        let of_direct: Vec<_> = self.parts.iter().filter_map(|part| part.direct()).collect();
        let of_hiops: Vec<_> = self.parts.iter().filter_map(|part| part.hiops()).collect();
        let of_scale: Vec<_> = self.parts.iter().filter_map(|part| part.scale()).collect();
        let of_thesis: Vec<_> = self.parts.iter().filter_map(|part| part.thesis()).collect();
        let of_speculate: Vec<_> = self.parts.iter().filter_map(|part| part.speculate()).collect();
        let of_appnvm: Vec<_> = self.parts.iter().filter_map(|part| part.appnvm()).collect();
        match self.group {
            BenchGroup::Appnvm => appnvm::run_parts(&of_appnvm, self.length, sink),
            BenchGroup::Thesis => thesis::run_parts(&of_thesis, self.length, sink),
            BenchGroup::Speculate => speculate::run_parts(&of_speculate, self.length, sink),
            BenchGroup::Scale => scale::run_parts(&of_scale, self.length, sink),
            BenchGroup::Exec => exec::run_parts(&of_exec, self.length, sink),
            BenchGroup::Lightnvm => lightnvm::run_parts(&of_lightnvm, self.length, sink),
            BenchGroup::Direct => direct::run_parts(&of_direct, self.length, sink),
            BenchGroup::Sim => sim::run(self.length, sink),
            BenchGroup::Live => real_time::run(self.length, sink),
            BenchGroup::Ring => ring::run(self.length, sink),
            BenchGroup::Uring => uring::run(self.length, sink),
            BenchGroup::Block => block::run(self.length, sink),
            BenchGroup::Hiops => hiops::run_parts(&of_hiops, self.length, sink),
        }
    }

    /// Returns the measurement of a device, if these benchmarks have one.
    fn device_bench(&self) -> Option<DeviceBenchFn> {
        let overhead = [BenchPart::Lightnvm(LightnvmPart::Overhead)];
        match self.group {
            BenchGroup::Block if self.parts.is_empty() => Some(device::block),
            BenchGroup::Hiops if self.parts.is_empty() => Some(device::strategies),
            BenchGroup::Lightnvm if self.parts == overhead => Some(lightnvm::overhead::device::run),
            _ => None,
        }
    }
}
