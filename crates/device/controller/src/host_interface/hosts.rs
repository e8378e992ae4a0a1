//! [`HostPort`]: the drive's state of one host, from attach to detach.
//!
//! A host may detach with commands in flight. They complete, because their media operations
//! complete. The drive does not write to the host's memory or rings any more, but it still fetches
//! outstanding write data. The drive releases the host's index, memory and descriptors with the
//! last command. Invariants: indexes of other hosts stay valid, and repeated attach and detach leak
//! nothing.

use std::io;
use std::sync::Arc;

use ftl::Ftl;
use mem::AddressSpace;
use rules::AppId;
use transport::{CqProducer, Port, ShadowDoorbells, SqConsumer};

use crate::DriveRulesError;
use crate::controller::{Controller, Personality};
use crate::host_interface::access::{
    AccessCheck, AccessPolicy, AccessScope, AttachError, PortStats,
};
use crate::host_interface::registers::{self, RegisterFile};
use crate::namespaces::{identify, management};
use crate::personality::sanitize;

/// The state of an index in the host table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostState {
    Attached,
    /// The host is detached, and commands of it are in flight.
    Detaching,
    /// The index is free.
    Vacant,
}

/// The state of one host.
#[derive(Debug)]
pub(crate) struct HostPort {
    pub(crate) port: Arc<Port>,
    /// Rights of the host; `None` for all rights.
    pub(crate) access: Option<Box<AccessCheck>>,
    pub(crate) state: HostState,
    pub(crate) stats: PortStats,
    /// The host's doorbell buffer, if it has configured one.
    pub(crate) shadow_doorbells: Option<ShadowDoorbells>,
    /// The registers, if the host initializes the drive by them.
    pub(crate) registers: Option<Box<RegisterFile>>,
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
            registers: None,
        }
    }
}

/// The error for a port that is not attached to this drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the port is not attached to this drive")]
pub struct NotAttached;

impl Controller {
    /// Attaches a host in this process with all rights, and returns its port. Its admin queues are
    /// ready; if the drive has [registers](crate::RegisterConfig), the host creates them by these.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub fn attach(&mut self) -> io::Result<Arc<Port>> {
        self.attach_in(AddressSpace::default())
    }

    /// Attaches a host as [`attach`](Controller::attach) does, whose memory is `space`. Hosts of
    /// several drives that share a space give all of them the same payloads.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub fn attach_in(&mut self, space: AddressSpace) -> io::Result<Arc<Port>> {
        let port = match self.config.controller.registers {
            Some(_) => Port::with_registers(space)?,
            None => Port::in_space(space)?,
        };
        self.attach_port(port.clone(), None)?;
        Ok(port)
    }

    /// Attaches a host with the rights in `access`, through a port within this process
    /// ([`Port::new`]) or between two processes ([`Port::shared`]). If the drive has
    /// [registers](crate::RegisterConfig), so has the port, and the host controls its own queues by
    /// them alone ([`Port::with_registers`], [`Port::shared_with_registers`]).
    ///
    /// A restricted host has its own queue limit and its own error log. It cannot change settings
    /// that affect other hosts. It receives no events about chunks of other hosts, and has no
    /// access to the controller memory buffer. It has the persistent memory region if the policy says
    /// so.
    ///
    /// # Errors
    /// [`AttachError`]; the drive does not change on error.
    pub fn attach_as(&mut self, port: &Arc<Port>, access: AccessPolicy) -> Result<(), AttachError> {
        let attached = |p: &HostPort| Arc::ptr_eq(&p.port, port);
        if !port.has_drive() || self.queues.ports.iter().any(attached) {
            return Err(AttachError::Port);
        }
        if port.has_registers() != self.config.controller.registers.is_some() {
            return Err(AttachError::Registers);
        }
        let nsid = access.namespace;
        let mut identity =
            identify::host_identity(self, nsid).ok_or(AttachError::Namespace { nsid })?;
        match (access.scope, &self.personality) {
            (AccessScope::Application { app }, Personality::Block(drive)) => {
                let apps = drive.spaces.count();
                let what = || match self.commands.rules {
                    Some(_) => format!("{apps} applications"),
                    None => "no rules".into(),
                };
                if self.commands.rules.is_none() || app as usize >= apps {
                    return Err(AttachError::Scope { part: access.scope, what: what() });
                }
                identity.namespace.sectors = drive.blocks_of(AppId::from_index(app as usize));
            }
            (AccessScope::Application { .. }, _) => {
                return Err(AttachError::Scope { part: access.scope, what: "no rules".into() });
            }
            (scope, _) if self.has_several_apps() => {
                let what = "several applications: attach it to one".into();
                return Err(AttachError::Scope { part: scope, what });
            }
            _ => {}
        }
        let rights = AccessCheck::new(access, &identity)?;
        if rights.has_persistent_region() && port.is_shared() && !self.memory.can_share_region() {
            return Err(AttachError::RegionInFile);
        }
        self.attach_port(port.clone(), Some(Box::new(rights)))?;
        management::update_checks(self);
        Ok(())
    }

    /// Returns the FTL of an application of the drive's rules, by its number in the program; `None` if there
    /// is none. Applications that share their parallel units have one FTL.
    pub fn application_ftl(&self, app: u32) -> Option<&Ftl> {
        match &self.personality {
            Personality::Block(d) => {
                let app = d.spaces.apps().nth(app as usize)?;
                Some(d.spaces.of(d.spaces.space_of(app)))
            }
            _ => None,
        }
    }

    /// Returns the logical blocks of an application of the drive's rules, by its number in the program; `None`
    /// if there is none.
    pub fn application_blocks(&self, app: u32) -> Option<u64> {
        match &self.personality {
            Personality::Block(d) => Some(d.blocks_of(d.spaces.apps().nth(app as usize)?)),
            _ => None,
        }
    }

    /// Returns the number of the application of the drive's rules that has this name.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`], [`DriveRulesError::UnknownApp`].
    pub fn application(&self, name: &str) -> Result<u32, DriveRulesError> {
        self.commands.rules.as_ref().ok_or(DriveRulesError::NoRules)?.application(name)
    }

    /// Whether the drive has rules of several applications.
    #[inline]
    pub(crate) fn has_several_apps(&self) -> bool {
        matches!(&self.personality, Personality::Block(d) if d.spaces.are_several())
    }

    fn attach_port(&mut self, port: Arc<Port>, rights: Option<Box<AccessCheck>>) -> io::Result<()> {
        let queues = match port.has_registers() {
            true => None,
            false => {
                let ((sq, sq_depth), (cq, cq_depth)) =
                    (port.admin_submission(), port.admin_completion());
                let submission =
                    SqConsumer::open(&port, 0, sq, sq_depth).map_err(io::Error::other)?;
                let completion =
                    CqProducer::open(&port, 0, cq, cq_depth, Some(0)).map_err(io::Error::other)?;
                Some((submission, completion))
            }
        };
        let index = self.queues.ports.iter().position(|p| p.state == HostState::Vacant);
        let index = index.unwrap_or(self.queues.ports.len());
        match &rights {
            None => self.memory.attach(&port, index)?,
            Some(rights) if rights.has_persistent_region() => self.memory.attach_region(&port),
            Some(_) => {}
        }
        self.async_events.attach(index, rights.is_none());
        let queue_depth = self.config.controller.queue_depth;
        let entries = rights.as_ref().map_or(queue_depth, |r| r.admin.identity().queue_depth);
        let registers =
            port.has_registers().then(|| Box::new(RegisterFile::new(self, &port, entries)));
        let state = HostPort {
            port,
            access: rights,
            state: HostState::Attached,
            stats: PortStats::default(),
            shadow_doorbells: None,
            registers,
        };
        match self.queues.ports.get_mut(index) {
            Some(place) => *place = state,
            None => self.queues.ports.push(state),
        }
        self.queues.update_registers();
        tracing::info!(host = index, "host attached");
        if let Some((submission, completion)) = queues {
            self.queues.add_admin_queues(index, submission, completion);
        }
        Ok(())
    }

    /// Changes the rates of a host that was attached with a policy; `None` for no limit. Commands
    /// that have been fetched are not counted again. The drive must be polled afterwards.
    ///
    /// # Errors
    /// [`AttachError::Port`] if no such host is attached, [`AttachError::Limit`] for a rate of 0;
    /// nothing changes.
    pub fn set_rates(
        &mut self,
        port: &Arc<Port>,
        iops: Option<u64>,
        bytes_per_sec: Option<u64>,
    ) -> Result<(), AttachError> {
        let hosts = &mut self.queues.ports;
        let is_host = |p: &HostPort| p.state == HostState::Attached && Arc::ptr_eq(&p.port, port);
        let index = hosts.iter().position(is_host).ok_or(AttachError::Port)?;
        let rights = hosts[index].access.as_mut().ok_or(AttachError::Port)?;
        rights.set_rates(iops, bytes_per_sec)?;
        self.queues.update_rate_limits(index);
        Ok(())
    }

    /// Detaches a host, whether or not it announced it: deletes its queues; its commands complete
    /// without it. After the return, the drive does not write to its memory. Flushed data stays; a
    /// write in flight may or may not be executed. Registers read as ones, as those of a controller
    /// that was pulled out of its slot.
    ///
    /// # Errors
    /// [`NotAttached`].
    pub fn detach(&mut self, port: &Arc<Port>) -> Result<(), NotAttached> {
        let index = self.index_of(port).ok_or(NotAttached)?;
        tracing::info!(host = index, "host detached");
        for queue in self.async_events.detach(index) {
            if let Some(queue) = &mut self.queues.submissions[queue] {
                queue.outstanding -= 1;
            }
        }
        if let Personality::Block(drive) = &mut self.personality
            && let Some(queue) = drive.take_format_command(index)
            && let Some(queue) = &mut self.queues.submissions[queue]
        {
            queue.outstanding -= 1;
        }
        sanitize::forget_host(self, index);
        self.memory.detach(port, index);
        self.commands.detach_commands(port, &self.queues.placeholder_port);
        registers::remove(port);
        self.queues.detach(index);
        port.close();
        Ok(())
    }

    /// Returns the counters of a host since it was attached; `None` if the port is not attached.
    pub fn port_stats(&self, port: &Arc<Port>) -> Option<PortStats> {
        let index = self.index_of(port)?;
        let (queues, outstanding, stalled) = self.queues.port_counts(index);
        Some(PortStats { queues, outstanding, stalled, ..self.queues.ports[index].stats })
    }

    /// Returns the number of attached hosts.
    pub fn host_count(&self) -> usize {
        self.queues.ports.iter().filter(|p| p.state == HostState::Attached).count()
    }

    fn index_of(&self, port: &Arc<Port>) -> Option<usize> {
        let attached = |p: &HostPort| p.state == HostState::Attached && Arc::ptr_eq(&p.port, port);
        self.queues.ports.iter().position(attached)
    }
}
