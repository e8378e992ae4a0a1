//! [`NamespaceAdmin`]: changes of a controller's namespaces.

use nvme::{
    AdminCommand, ControllerList, IdentifyController, IdentifyNamespace, NamespaceChange,
    NamespaceList, NewNamespace, cns,
};

use super::ControllerHandle;
use crate::DriverError;
use crate::controller::admin::ProgressFn;

/// A namespace of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedNamespace {
    /// Namespace identifier.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Whether it is attached to this controller.
    pub is_attached: bool,
    /// Globally unique identifier; zeros if the controller gives it none.
    pub nguid: [u8; 16],
}

/// The namespaces of a controller, for its administrator [NVMe1.4 §5.19, §5.20]. A handle keeps the
/// namespace that it is connected to, also if that is deleted: its commands then fail.
#[derive(Debug)]
pub struct NamespaceAdmin<'a> {
    controller: &'a mut ControllerHandle,
}

impl<'a> NamespaceAdmin<'a> {
    /// Returns the namespaces of a controller.
    pub fn of(controller: &'a mut ControllerHandle) -> NamespaceAdmin<'a> {
        NamespaceAdmin { controller }
    }

    fn identify(
        &mut self,
        cns: u8,
        nsid: u32,
        progress: ProgressFn<'_>,
    ) -> Result<[u8; 4096], DriverError> {
        self.controller.admin.identify(AdminCommand::Identify { cns, nsid }, progress)
    }

    /// Lists up to 1024 namespaces, in the order of their identifiers.
    ///
    /// # Errors
    /// [`DriverError::Command`] of a controller without Namespace Management.
    pub fn list(
        &mut self,
        progress: ProgressFn<'_>,
    ) -> Result<Vec<AllocatedNamespace>, DriverError> {
        let mut ids = |cns| {
            let list = NamespaceList::from_bytes(self.identify(cns, 0, progress)?);
            Ok::<Vec<u32>, DriverError>(list.iter().collect())
        };
        let (allocated, active) = (ids(cns::ALLOCATED_NAMESPACES)?, ids(cns::ACTIVE_NAMESPACES)?);
        let mut namespaces = Vec::with_capacity(allocated.len());
        for nsid in allocated {
            let data = self.identify(cns::ALLOCATED_NAMESPACE, nsid, progress)?;
            let data = IdentifyNamespace::from_bytes(data);
            let (blocks, is_attached) = (data.nsze.get(), active.contains(&nsid));
            namespaces.push(AllocatedNamespace { nsid, blocks, is_attached, nguid: data.nguid });
        }
        Ok(namespaces)
    }

    /// Returns the capacity in bytes that no namespace has.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn unallocated_bytes(&mut self, progress: ProgressFn<'_>) -> Result<u128, DriverError> {
        let data = self.identify(cns::CONTROLLER, 0, progress)?;
        Ok(IdentifyController::from_bytes(data).unvmcap.get())
    }

    /// Creates a namespace of `blocks` logical blocks in LBA format 0, with protection information of type
    /// 1 if the format has it. Returns its identifier. It is not attached.
    ///
    /// # Errors
    /// [`DriverError::Command`] with the status of the controller, such as *namespace insufficient
    /// capacity*.
    pub fn create(&mut self, blocks: u64, progress: ProgressFn<'_>) -> Result<u32, DriverError> {
        let change = NamespaceChange::Create;
        let command = AdminCommand::NamespaceManagement { change, nsid: 0 };
        // The properties that all namespaces have in common.
        let common = self.identify(cns::NAMESPACE, u32::MAX, progress)?;
        let dps = IdentifyNamespace::from_bytes(common).protection_of_new();
        let data = NewNamespace { dps, ..NewNamespace::with_blocks(blocks) }.to_bytes();
        Ok(self.controller.admin.run_with_data(command, &data, progress)? as u32)
    }

    /// Deletes a namespace with its contents; all namespaces for `0xffff_ffff`.
    ///
    /// # Errors
    /// [`DriverError::Command`] with the status of the controller.
    pub fn delete(&mut self, nsid: u32, progress: ProgressFn<'_>) -> Result<(), DriverError> {
        let change = NamespaceChange::Delete;
        let command = AdminCommand::NamespaceManagement { change, nsid };
        self.controller.admin.run(command, 0, progress).map(|_| ())
    }

    /// Attaches a namespace to this controller, or detaches it.
    ///
    /// # Errors
    /// [`DriverError::Command`] with the status of the controller, such as *namespace already
    /// attached*.
    pub fn set_attached(
        &mut self,
        nsid: u32,
        attach: bool,
        progress: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        let identity =
            IdentifyController::from_bytes(self.identify(cns::CONTROLLER, 0, progress)?);
        let list = ControllerList::of(&[identity.cntlid.get()]).to_bytes();
        let command = AdminCommand::NamespaceAttachment { nsid, attach };
        self.controller.admin.run_with_data(command, &list, progress).map(|_| ())
    }
}
