//! [`ControllerHandle`]: an initialized NVMe drive behind a port, with its queue pairs, logs,
//! events and features.

pub(crate) mod admin;
pub(crate) mod cmb;
mod connect;
pub(crate) mod events;
pub(crate) mod info;
pub(crate) mod init;
mod logs;
mod queues;
pub(crate) mod reset;

use std::sync::Arc;

use nvme::AdminCommand;
use transport::{Port, ShadowDoorbells};

use crate::controller::admin::AdminQueue;
use crate::controller::events::EventSubscription;
use crate::controller::reset::{ControllerGeneration, ControllerReset};
use crate::data::PrpLists;
use crate::queue_pair::memory::{QueueMemory, RangeMemory};
use crate::{Cmb, ControllerInfo, DataPointers, DriverError};

/// Options of a connection to a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The namespace; `None` for the drive's first.
    pub nsid: Option<u32>,
    /// Kind of the commands' data pointers; `None` for SGLs if the drive supports them, else PRPs.
    pub data: Option<DataPointers>,
    /// Number of I/O queue pairs to request; `None` for as many as the port has doorbells and
    /// interrupt vectors.
    pub queues: Option<u16>,
    /// Location of the queues' doorbells.
    pub doorbells: DoorbellUse,
}

/// The location of the doorbells of a drive's I/O queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellUse {
    /// In host memory, if the drive supports that (Doorbell Buffer Config, [NVMe1.4 §5.7]); else as
    /// `Registers`.
    #[default]
    Memory,
    /// In the drive's registers.
    Registers,
}

/// An initialized drive. The handle owns the admin queue of its port, so there is one per port.
///
/// Calls that send admin commands take a `progress`, which they call between polls of the completion
/// queue. They fail with [`DriverError::Timeout`] after the number of polls passed to
/// [`connect`](ControllerHandle::connect). After a timeout every further call fails until the late
/// answer arrives. Existing queue pairs continue. [`reclaim`](ControllerHandle::reclaim) deletes
/// the queues that a late answer was about.
#[derive(Debug)]
pub struct ControllerHandle {
    port: Arc<Port>,
    admin: AdminQueue,
    info: ControllerInfo,
    cmb: Option<Cmb>,
    event_subscription: Option<EventSubscription>,
    /// Whether an Asynchronous Event Request is outstanding that is not the subscription's.
    event_requested: bool,
    /// Memory of each existing queue, by queue identifier minus one.
    queues: Vec<Option<QueueMemory>>,
    /// Memory of deleted queues.
    spare: Vec<QueueMemory>,
    /// Queues that the drive may or may not have, since it did not answer in time.
    indeterminate_queues: Vec<u16>,
    spare_ranges: Vec<RangeMemory>,
    spare_lists: Vec<PrpLists>,
    /// Doorbells in memory, if they are used, and the Doorbell Buffer Config command for their two
    /// pages.
    shadows: Option<(ShadowDoorbells, AdminCommand)>,
    /// Maximum number of entries of a queue.
    max_entries: u32,
    /// The controller reset in progress, if any.
    pub(crate) reset_in_progress: Option<ControllerReset>,
    /// Whether the number of queues has been negotiated since the controller was last enabled.
    pub(crate) queues_negotiated: bool,
    pub(crate) generation: ControllerGeneration,
    pub(crate) resets: u64,
}

impl ControllerHandle {
    /// Returns the maximum number of entries of a queue.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Returns the description of the drive.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// Returns the drive's controller memory buffer, if it has one.
    pub fn cmb(&self) -> Option<Cmb> {
        self.cmb.clone()
    }

    /// Returns whether the I/O queues have their doorbells in memory.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadows.is_some()
    }

    /// Returns the port to the drive.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Returns the admin queue, for callers that cannot wait.
    pub(crate) fn admin(&mut self) -> &mut AdminQueue {
        &mut self.admin
    }

    /// Restarts the admin queue of a controller that has been disabled.
    pub(crate) fn reinit_admin(&mut self) -> Result<(), DriverError> {
        self.admin.reinit(&self.port)
    }

    /// Returns the command that restores doorbells in memory after a reset, if they are used. Each
    /// queue clears its own doorbells when it is created.
    pub(crate) fn doorbell_buffer_config(&self) -> Option<AdminCommand> {
        self.shadows.as_ref().map(|(_, command)| *command)
    }

    /// Renews the event subscriptions that existed before a reset.
    pub(crate) fn resubscribe_events(&mut self) -> Result<(), DriverError> {
        if self.event_requested || self.event_subscription.is_some() {
            self.admin.request_event()?;
        }
        Ok(())
    }
}
