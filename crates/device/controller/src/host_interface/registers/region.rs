//! [`RegionRegisters`]: how a host enables the persistent memory region by its registers ([NVMe1.4
//! §3.1.14, §3.1.15]).
//!
//! Invariants: the region is ready while it is enabled, except during Sanitize, which clears it.
//! Neither a controller reset nor a shutdown changes PMRCTL or the contents.

use nvme::register::PMRCTL;
use nvme::{PmrControl, PmrStatus};
use transport::Port;

use crate::host_interface::pmr;

/// The registers of the region of one host.
#[derive(Debug)]
pub(super) struct RegionRegisters {
    ready: bool,
}

impl RegionRegisters {
    /// Returns the registers of a disabled region, if the host of the port has one.
    pub(super) fn new(port: &Port) -> Option<RegionRegisters> {
        port.persistent_region().map(|_| RegionRegisters { ready: false })
    }

    /// Does what PMRCTL asks for.
    pub(super) fn step(&mut self, port: &Port, is_sanitizing: bool) {
        let control = PmrControl::from_value(port.register(PMRCTL));
        self.ready = control.enabled && !is_sanitizing;
    }

    /// Writes the registers that only the controller may write, if they differ. Returns whether any
    /// did.
    pub(super) fn publish(&self, port: &Port) -> bool {
        pmr::publish(port, PmrStatus { not_ready: !self.ready, ..PmrStatus::default() })
    }
}
