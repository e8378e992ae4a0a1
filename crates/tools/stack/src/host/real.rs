//! Opens the drives of a scenario that are devices of this machine.

use std::fmt::Debug;
use std::num::NonZeroU16;
use std::sync::Arc;

use block::{BlockError, Raw};
use driver::pci::{OpenedController, SysfsPci, open_controller};
use driver::{ConnectOptions, LowLevelDriver, NvmeDevice, Passthrough, Uring, UringConfig};
use mem::AddressSpace;
use scenario::choice::Impossible;
use scenario::{DriveKind, DriveSpec};

use super::StackHost;
use super::device::{DevicePort, KeepOpen};
use crate::{CoreQueues, DEPTH, StackError};

/// Opens a real device with `queues` hardware queues, each a core's. Payloads are in `memory`,
/// unless the device is a controller, whose memory is mapped for it.
///
/// # Errors
/// [`StackError::File`], [`StackError::Pci`], [`StackError::Raw`].
pub(crate) fn open(
    plan: &DriveSpec,
    queues: NonZeroU16,
    memory: AddressSpace,
) -> Result<StackHost, StackError> {
    let name = &plan.config.name;
    let failed = |source| StackError::File { name: name.clone(), source };
    let queues = queues.get();
    match &plan.kind {
        DriveKind::File(file) => {
            let config = UringConfig {
                queues,
                depth: file.queue_depth,
                sector_bytes: file.sector_bytes,
                direct: file.direct,
                ..UringConfig::default()
            };
            let opened = Uring::open_with(&file.path, config, memory).map_err(failed)?;
            host(name, opened, None)
        }
        DriveKind::Kernel(kernel) => {
            let depth = kernel.queue_depth;
            let config = UringConfig { queues, depth, ..UringConfig::default() };
            let opened = Passthrough::open_with(&kernel.path, config, memory).map_err(failed)?;
            host(name, opened, None)
        }
        DriveKind::Pci(pci) => {
            let options = ConnectOptions {
                nsid: pci.namespace,
                queues: Some(queues),
                ..ConnectOptions::default()
            };
            let opened = open_controller(&SysfsPci::default(), pci.address, options)
                .map_err(|source| StackError::Pci { name: name.clone(), source })?;
            let OpenedController { controller, guard, .. } = opened;
            let queues = queues.min(controller.info().io_queues);
            let entries =
                u16::try_from(controller.max_entries()).map_or(DEPTH, |max| DEPTH.min(max));
            let mut progress = driver::pci::progress;
            let opened = NvmeDevice::open(controller, queues, entries, true, &mut progress)
                .map_err(|source| StackError::Raw { name: name.clone(), source })?;
            host(name, opened, Some(Arc::new(guard)))
        }
        DriveKind::Nvme | DriveKind::Ahci(_) => {
            let (user, drive, kind) = ("a real device", name.clone(), plan.kind.word());
            Err(Impossible::NoNvmeQueues { user, drive, kind }.into())
        }
    }
}

/// Returns the host of a driver with all of its queues.
fn host<D: LowLevelDriver>(
    name: &str,
    mut driver: D,
    guard: Option<Arc<dyn KeepOpen>>,
) -> Result<StackHost, StackError>
where
    D::Queue: Debug + 'static,
{
    let (limits, features, memory) = (driver.limits(), driver.features(), driver.memory().clone());
    let queues: Vec<_> = (0..driver.queues())
        .filter_map(|index| driver.take_queue(index))
        .map(|queue| Raw::new(queue, limits))
        .collect();
    let device = CoreQueues::new(queues, features).ok_or_else(|| StackError::BlockLayer {
        name: name.to_owned(),
        source: BlockError::NoQueues,
    })?;
    let port = DevicePort::Real { memory, guard };
    Ok(StackHost { device, port, controller: None, steady: None })
}
