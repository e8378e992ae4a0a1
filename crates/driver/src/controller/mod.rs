//! [`Controller`]: a drive that has been brought up over a port.
//!
//! | file | noun |
//! |---|---|
//! | `attach` | bring-up: what the drive says of itself, and what is agreed on |
//! | `queues` | queue pairs: made, deleted, made again |
//! | `logs` | what the drive tells: log pages, events, features |

mod connect;
mod logs;
mod queues;

use std::sync::Arc;

use nvme::AdminCommand;
use ring::{Port, ShadowDoorbells};

use crate::admin::AdminQueue;
use crate::data::PrpLists;
use crate::events::EventSubscription;
use crate::memory::{QueueMemory, RangeMemory};
use crate::reset::{ControllerGeneration, ControllerReset};
use crate::{Cmb, ControllerInfo, DataPointers, DriverError};

/// What of a drive is used, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The namespace; `None` for the drive's first.
    pub nsid: Option<u32>,
    /// How commands say where their data is; `None` for SGLs where the drive takes them, else PRPs.
    pub data: Option<DataPointers>,
    /// I/O queue pairs to ask for; `None` for as many as the connection has doorbells and
    /// interrupt vectors for.
    pub queues: Option<u16>,
    /// Where its queues have their doorbells.
    pub doorbells: DoorbellUse,
}

/// Where the doorbells of a drive's I/O queues are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellUse {
    /// In memory, if the drive offers that (NVMe section 5.7); else as `Registers`.
    #[default]
    Memory,
    /// In the drive's registers.
    Registers,
}

/// A drive that has been brought up. It owns the admin queue of its port: one controller per port.
///
/// Calls that talk to the drive take a `pump`, called between two looks at the completion queue,
/// and fail with [`DriverError::Timeout`] after as many of them as [`attach`](ControllerHandle::connect)
/// was told. After a timeout every further call fails until the late answer has come; queue pairs
/// that exist go on, and what a late answer was about is put in order by
/// [`reclaim`](Controller::reclaim).
#[derive(Debug)]
pub struct ControllerHandle {
    port: Arc<Port>,
    admin: AdminQueue,
    info: ControllerInfo,
    cmb: Option<Cmb>,
    event_subscription: Option<EventSubscription>,
    /// A request for an event is outstanding that is not the watch's.
    event_requested: bool,
    /// By queue identifier minus one: the memory of the queue, if it exists.
    queues: Vec<Option<QueueMemory>>,
    /// Memory of deleted queues.
    spare: Vec<QueueMemory>,
    /// Queues that the drive may know or not, since it did not answer in time.
    indeterminate_queues: Vec<u16>,
    spare_ranges: Vec<RangeMemory>,
    spare_lists: Vec<PrpLists>,
    /// Doorbells in memory, if they are used, and the command that tells the drive of their two pages.
    shadows: Option<(ShadowDoorbells, AdminCommand)>,
    /// Entries of a queue at most.
    max_entries: u32,
    /// A reset under way.
    pub(crate) reset_in_progress: Option<ControllerReset>,
    /// The controller has agreed on its queues since it was started last.
    pub(crate) queues_negotiated: bool,
    pub(crate) generation: ControllerGeneration,
    pub(crate) resets: u64,
}

impl ControllerHandle {
    /// Entries of a queue at most.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// What the drive says about itself.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// Memory of the drive that the host reaches into, if it has some.
    pub fn cmb(&self) -> Option<Cmb> {
        self.cmb.clone()
    }

    /// Whether its I/O queues have their doorbells in memory.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadows.is_some()
    }

    /// The connection to the drive.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// The admin queue, for who cannot wait.
    pub(crate) fn admin(&mut self) -> &mut AdminQueue {
        &mut self.admin
    }

    /// The admin queue begins anew, on a controller that has been stopped.
    pub(crate) fn reinit_admin(&mut self) -> Result<(), DriverError> {
        self.admin.reinit(&self.port)
    }

    /// The command by which a controller that was reset has its doorbells in memory again, if it had.
    /// Each queue clears its own when it is made.
    pub(crate) fn doorbell_buffer_config(&self) -> Option<AdminCommand> {
        self.shadows.as_ref().map(|(_, command)| *command)
    }

    /// What was asked to be told of before a reset is asked again.
    pub(crate) fn resubscribe_events(&mut self) -> Result<(), DriverError> {
        if self.event_requested || self.event_subscription.is_some() {
            self.admin.request_event()?;
        }
        Ok(())
    }
}
