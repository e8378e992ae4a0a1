//! A stack on a partition of its drive; the rest of the drive belongs to other clients
//! (`docs/sharing.md`).

use block::Raw;
use controller::{AccessPolicy, AccessScope, AttachError};
use driver::ControllerHandle;
use mem::AddressSpace;
use time::{Component, Nanos};
use transport::Port;

use super::{ADMIN_POLL_LIMIT, CoreQueues, DEPTH, DevicePort, Stack, StackError};

impl Stack {
    /// Confines the host's side to a partition of a drive that manages its own media; the drive
    /// checks every command against it.
    ///
    /// Nothing may be outstanding; the state of the media is preserved. `vector` is as for
    /// [`build`](Stack::build).
    ///
    /// # Errors
    /// [`StackError::Confined`] if the partition does not exist on the drive, or if the host
    /// manages the flash.
    pub fn confine_to_partition(
        self,
        part: AccessScope,
        vector: Option<u16>,
    ) -> Result<Stack, StackError> {
        let Stack { mut drive, device, port: whole, steady, .. } = self;
        let name = drive.config().name.clone();
        let wrong = |source: AttachError| StackError::Confined { name: name.clone(), source };
        if device.only::<Raw>().is_none() {
            return Err(wrong(AttachError::Port));
        }
        drop(device);
        let DevicePort::Nvme(whole) = whole else { return Err(wrong(AttachError::Port)) };
        drive.detach(&whole).map_err(|_| wrong(AttachError::Port))?;
        let space = AddressSpace::default();
        let port = match drive.config().controller.registers {
            Some(_) => Port::with_registers(space),
            None => Port::in_space(space),
        };
        let port = port.map_err(|source| StackError::Memory { name: name.clone(), source })?;
        drive.attach_as(&port, AccessPolicy::for_scope(part)).map_err(wrong)?;
        let depth = DEPTH.min(drive.config().controller.queue_depth);
        drive.set_zero_latency(true);
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let mut bring_up = || {
            let failed = |source| StackError::Driver { name: name.clone(), source };
            let mut controller =
                ControllerHandle::connect(port.clone(), &mut progress, ADMIN_POLL_LIMIT)
                    .map_err(failed)?;
            let pair =
                controller.create_queue_pair(depth, vector, &mut progress).map_err(failed)?;
            let raw = Raw::from_pair(controller.info(), pair, port.clone())
                .map_err(|source| StackError::Raw { name: name.clone(), source })?;
            let features = controller.info().features;
            Ok((raw, features, controller))
        };
        let made: Result<_, StackError> = bring_up();
        drive.set_zero_latency(false);
        drive.reset_stats();
        let (raw, features, controller) = made?;
        let (device, controller) = (CoreQueues::single(raw, features), Some(controller));
        let port = DevicePort::Nvme(port);
        Ok(Stack { drive, device, port, controller, steady })
    }
}
