//! [`HostPort`]: a host, as the drive knows it; how hosts come and go.
//!
//! A host that goes may have commands under way. They end, because what they have begun on the media
//! ends; but nothing is written to its memory or its rings any more, and what data of its writes has
//! still to be fetched is fetched. Its number, its memory and its descriptors go with the last of
//! them. Guarantees: numbers of other hosts stay valid; a host that comes and goes leaves nothing
//! behind, however often.

use std::io;
use std::sync::Arc;

use ring::{CqProducer, Port, ShadowDoorbells, SqConsumer};

use crate::access::{AccessCheck, AccessPolicy, AttachError, PortStats};
use crate::controller::Controller;

/// Whether a host is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostState {
    Attached,
    /// Commands of its own are under way.
    Detaching,
    /// The number is free.
    Vacant,
}

/// A host.
#[derive(Debug)]
pub(crate) struct HostPort {
    pub(crate) port: Arc<Port>,
    /// What it may do; `None` for everything.
    pub(crate) access: Option<Box<AccessCheck>>,
    pub(crate) state: HostState,
    pub(crate) stats: PortStats,
    /// Its doorbells in memory, if it has set them up.
    pub(crate) shadow_doorbells: Option<ShadowDoorbells>,
}

impl HostPort {
    pub(crate) fn vacant(nobody: Arc<Port>) -> HostPort {
        let stats = PortStats::default();
        HostPort {
            port: nobody,
            access: None,
            state: HostState::Vacant,
            stats,
            shadow_doorbells: None,
        }
    }
}

/// The port is not attached to this drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the port is not attached to this drive")]
pub struct NotAttached;

impl Controller {
    /// Connects a host in this process that may do everything: a port with its admin queues ready.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn attach(&mut self) -> io::Result<Arc<Port>> {
        let port = Port::new()?;
        self.attach_port(port.clone(), None)?;
        Ok(port)
    }

    /// Connects a host that may do what `access` says, through a port of this process
    /// ([`Port::new`]) or of two ([`Port::shared`]).
    ///
    /// A restricted host has its own number of queues and its own error log. It may change nothing
    /// that others notice, hears of no chunk that is another's, and does not get the controller
    /// memory buffer.
    ///
    /// # Errors
    /// [`AttachError`]; nothing has changed.
    pub fn attach_as(&mut self, port: &Arc<Port>, access: AccessPolicy) -> Result<(), AttachError> {
        let attached = |p: &HostPort| Arc::ptr_eq(&p.port, port);
        if !port.has_drive() || self.queues.ports.iter().any(attached) {
            return Err(AttachError::Port);
        }
        let rights = AccessCheck::new(access, self.admin.identity())?;
        Ok(self.attach_port(port.clone(), Some(Box::new(rights)))?)
    }

    fn attach_port(&mut self, port: Arc<Port>, rights: Option<Box<AccessCheck>>) -> io::Result<()> {
        let (sq, sq_depth) = port.admin_submission();
        let (cq, cq_depth) = port.admin_completion();
        let submission = SqConsumer::open(&port, 0, sq, sq_depth).map_err(io::Error::other)?;
        let completion =
            CqProducer::open(&port, 0, cq, cq_depth, Some(0)).map_err(io::Error::other)?;
        let index = self.queues.ports.iter().position(|p| p.state == HostState::Vacant);
        let index = index.unwrap_or(self.queues.ports.len());
        if let Some(cmb) = &mut self.cmb
            && rights.is_none()
        {
            cmb.attach(&port, index)?;
        }
        self.async_events.attach(index, rights.is_none());
        let stats = PortStats::default();
        let presence = HostState::Attached;
        let state =
            HostPort { port, access: rights, state: presence, stats, shadow_doorbells: None };
        match self.queues.ports.get_mut(index) {
            Some(place) => *place = state,
            None => self.queues.ports.push(state),
        }
        let completion = self.queues.add_completion(completion, index, 0);
        let urgent = nvme::QueuePriority::Urgent;
        self.queues.add_submission(submission, index, completion, urgent);
        Ok(())
    }

    /// A host is gone, whether it said so or not: its queues are, and its commands end without it.
    /// From the return on, its memory is not written to. What it had flushed stays; a write that was
    /// under way may be carried out or not.
    ///
    /// # Errors
    /// [`NotAttached`].
    pub fn detach(&mut self, port: &Arc<Port>) -> Result<(), NotAttached> {
        let index = self.index_of(port).ok_or(NotAttached)?;
        for queue in self.async_events.detach(index) {
            if let Some(queue) = &mut self.queues.submissions[queue] {
                queue.outstanding -= 1;
            }
        }
        if let Some(cmb) = &mut self.cmb {
            cmb.detach(index);
        }
        self.commands.detach_commands(port, &self.queues.placeholder_port);
        self.queues.detach(index);
        port.close();
        Ok(())
    }

    /// What a host has done since it was attached; `None` for one that is not.
    pub fn port_stats(&self, port: &Arc<Port>) -> Option<PortStats> {
        let index = self.index_of(port)?;
        let (queues, outstanding, stalled) = self.queues.port_counts(index);
        Some(PortStats { queues, outstanding, stalled, ..self.queues.ports[index].stats })
    }

    /// Hosts that are attached.
    pub fn host_count(&self) -> usize {
        self.queues.ports.iter().filter(|p| p.state == HostState::Attached).count()
    }

    fn index_of(&self, port: &Arc<Port>) -> Option<usize> {
        let attached = |p: &HostPort| p.state == HostState::Attached && Arc::ptr_eq(&p.port, port);
        self.queues.ports.iter().position(attached)
    }
}
