//! Executes one message of a client.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use controller::{AccessPolicy, AccessScope, PortStats};
use mem::{RegisterError, SharedMemoryError, SharedRegion};
use share_proto::{
    AclRule, Code, Grant, KickTarget, ListEntry, Message, Packet, PartitionSpan, ProtocolError,
    ResourceName, SessionGrant, SettingChange, ValuePart,
};
use transport::{Port, PortLimits};

use super::client::OpenDevice;
use super::namespace_control::NamedNamespaces;
use super::partition_table::PartitionTable;
use super::rule_control::NamedRules;
use super::server::{AfterReply, ControlThread, NamedStats};

/// Maximum number of I/O queues of a connection: each needs an interrupt vector, as does the admin
/// queue.
const CONNECTION_QUEUES_MAX: u16 = PortLimits::MAX_VECTORS - 1;

/// Maximum number of entries of a list.
const LIST_ENTRIES_MAX: usize = 1 << 16;

type HandleResult = Result<(Message, Vec<OwnedFd>), ProtocolError>;

/// Returns the refusal of a name that is not served, with the names that are.
fn unknown(
    what: &str,
    device: ResourceName,
    names: impl Iterator<Item = ResourceName>,
) -> ProtocolError {
    let names: Vec<String> = names.map(|name| name.to_string()).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    let text = format!("no {what} {device} is served; there are: {names}");
    ProtocolError::new(Code::Unknown, text)
}

fn reply_done(count: u64) -> HandleResult {
    Ok((Message::Done { count }, Vec::new()))
}

/// Returns a connection's grant with its share of the rates of a rule: that of its queues among
/// `of_user`, the queues of the user.
fn with_rates(grant: Grant, rule: &AclRule, of_user: u32) -> Grant {
    let share = |rate: u64| {
        let part = u128::from(rate) * u128::from(grant.queues) / u128::from(of_user.max(1));
        (part as u64).max(1)
    };
    let (iops, bytes_per_sec) = (rule.grant.iops.map(share), rule.grant.bytes_per_sec.map(share));
    Grant { iops, bytes_per_sec, ..grant }
}

impl ControlThread {
    pub(super) fn handle_message(
        &mut self,
        client: u64,
        packet: Packet,
        descriptors: Vec<OwnedFd>,
    ) -> AfterReply {
        let Packet { serial, message } = packet;
        let expected = usize::from(matches!(message, Message::Register { .. }));
        let answer = if descriptors.len() == expected {
            self.dispatch(client, message, descriptors)
        } else {
            let (title, found) = (message.title(), descriptors.len());
            let text = format!("{title} with {found} descriptors, where {expected} belong");
            Err(ProtocolError::new(Code::Malformed, text))
        };
        let Some(connection) = self.connections.get(&client) else { return AfterReply::Keep };
        let (message, descriptors, ends) = match answer {
            Ok((message, descriptors)) => (message, descriptors, false),
            Err(refusal) => {
                tracing::warn!(client, code = ?refusal.code, "request refused: {}", refusal.text);
                let ends = matches!(refusal.code, Code::Malformed | Code::Order);
                let message = match ends {
                    true => Message::Disconnect(refusal),
                    false => Message::Refused(refusal),
                };
                (message, Vec::new(), ends)
            }
        };
        match connection.send(serial, message, &descriptors) && !ends {
            true => AfterReply::Keep,
            false => AfterReply::Close,
        }
    }

    fn dispatch(
        &mut self,
        client: u64,
        message: Message,
        mut descriptors: Vec<OwnedFd>,
    ) -> HandleResult {
        let order = |text: &str| Err(ProtocolError::new(Code::Order, text));
        let Some(connection) = self.connections.get_mut(&client) else { return reply_done(0) };
        let (peer, is_open) = (connection.peer, connection.device.is_some());
        let admin = peer.uid == 0 || peer.uid == self.table.owner();
        match message {
            Message::Hello if connection.greeted => order("Hello, for the second time"),
            Message::Hello => {
                connection.greeted = true;
                let (uid, pid) = (peer.uid, std::process::id());
                Ok((Message::Welcome { admin, uid, pid }, Vec::new()))
            }
            _ if !connection.greeted => order("the first message is Hello"),
            Message::Open { .. } if is_open => order("Open, for the second time"),
            Message::Open { device, partition, queues } => {
                self.open(client, device, partition, queues)
            }
            Message::Register { .. } if !is_open => order("Register, with nothing open"),
            Message::Register { slot, bytes } => match descriptors.pop() {
                Some(memory) => self.register(client, slot, bytes, memory),
                None => order("Register without memory"),
            },
            Message::Allow(_)
            | Message::Deny { .. }
            | Message::Kick(_)
            | Message::List { .. }
            | Message::Stats { .. }
            | Message::Set { .. }
            | Message::Fault { .. }
            | Message::ChangeNamespaces { .. }
            | Message::ListNamespaces { .. }
            | Message::UploadRules { .. }
            | Message::InstallRules { .. }
            | Message::RejectMisses { .. }
            | Message::ReadRules { .. }
            | Message::EditRuleTable { .. }
            | Message::ReadRuleTable { .. }
                if !admin =>
            {
                let text = format!(
                    "uid {} may not administrate; uid {} and root may",
                    peer.uid,
                    self.table.owner()
                );
                Err(ProtocolError::new(Code::NotAdmin, text))
            }
            Message::Allow(rule) => {
                let mut table = self.table.clone();
                let replaced = table.allow(rule)?;
                self.set_table(table)?;
                self.update_rates(&rule);
                reply_done(replaced.into())
            }
            Message::Deny { subject, device, partition } => {
                let mut table = self.table.clone();
                let rules = table.deny(subject, device, partition)?;
                self.set_table(table)?;
                self.disconnect_revoked(&rules);
                reply_done(rules.len() as u64)
            }
            Message::Kick(whom) => self.kick(whom),
            Message::List { index: 0 } => {
                let listing = self.list();
                if let Some(connection) = self.connections.get_mut(&client) {
                    connection.listing = listing;
                }
                self.list_entry(client, 0)
            }
            Message::List { index } => self.list_entry(client, index),
            Message::Stats { index } => self.interval(client, index as usize),
            Message::Set { device, change } => self.set(device, change),
            Message::Fault { device, fault } => self.inject_fault(device, &fault),
            Message::ChangeNamespaces { device, action } => {
                reply_done(self.namespaces_of(device)?.change(action)?.into())
            }
            Message::ListNamespaces { device, index } => {
                self.namespace_entry(client, device, index as usize)
            }
            Message::UploadRules { device, offset, part } => {
                let drive = self.rules_of(device)?;
                let added = drive.control.upload(offset, part.bytes().to_vec());
                added.map_err(|error| drive.error(error)).and_then(|()| reply_done(0))
            }
            Message::InstallRules { device } => {
                let drive = self.rules_of(device)?;
                drive.control.install_uploaded().map_err(|e| drive.error(e)).and_then(reply_done)
            }
            Message::RejectMisses { device, op } => {
                let drive = self.rules_of(device)?;
                let op = (!op.is_none()).then(|| op.as_str().to_owned());
                drive.control.reject(op).map_err(|error| drive.error(error)).and_then(reply_done)
            }
            Message::ReadRules { device, offset } => self.rule_report(client, device, offset),
            Message::EditRuleTable { device, table, action, entries } => {
                self.rules_of(device)?.edit_table(table, action, &entries).and_then(reply_done)
            }
            Message::ReadRuleTable { device, table, first, count } => {
                let values = self.rules_of(device)?.table_values(table, first, count)?;
                Ok((Message::RuleTableValues { values }, Vec::new()))
            }
            answer => order(&format!("{} is for the server to say", answer.title())),
        }
    }

    // ---- Clients.

    /// Returns the queues of all of a user's connections to the partition of a rule.
    fn queues_of_user(&self, uid: u32, rule: &AclRule) -> u32 {
        let of_user = self.connections.values().filter(|c| c.peer.uid == uid);
        of_user
            .filter_map(|c| c.device.as_ref())
            .filter(|o| (o.grant.device, o.grant.partition) == (rule.device, rule.partition))
            .map(|o| u32::from(o.grant.grant.queues))
            .sum()
    }

    /// Returns how many of the requested queues a user gets.
    fn grant_queues(
        &self,
        uid: u32,
        rule: &AclRule,
        has: u16,
        wanted: u16,
    ) -> Result<u16, ProtocolError> {
        let used = self.queues_of_user(uid, rule);
        let left = u32::from(rule.grant.queues).saturating_sub(used) as u16;
        let most = left.min(CONNECTION_QUEUES_MAX).min(has);
        let granted = if wanted == 0 { most.min(Grant::QUEUES_DEFAULT) } else { wanted };
        if granted == 0 || granted > most {
            let all = rule.grant.queues;
            let (device, partition) = (rule.device, rule.partition);
            let wanted = wanted.max(1);
            let text = format!(
                "{wanted} queues on {device}/{partition}: uid {uid} may have {all} there and has \
                 {used}; a connection may have {} of this drive; allowed now: {most}",
                CONNECTION_QUEUES_MAX.min(has)
            );
            return Err(ProtocolError::new(Code::Queues, text));
        }
        Ok(granted)
    }

    fn open(
        &mut self,
        client: u64,
        device: ResourceName,
        partition: ResourceName,
        queues: u16,
    ) -> HandleResult {
        let gone = || ProtocolError::new(Code::Drive, "the drive is being shut down");
        let connection = self.connections.get(&client).ok_or_else(gone)?;
        let peer = connection.peer;
        let (partition, rule) = self.table.find(peer.user(), device, partition)?;
        let place = self.parts.drives.iter().position(|d| d.name == partition.device);
        let (index, drive) =
            place.and_then(|i| Some((i, self.parts.drives.get(i)?))).ok_or_else(gone)?;
        let queues = self.grant_queues(peer.uid, &rule, drive.io_queues, queues)?;
        let of_user = rule.grant.queues.into();
        let grant = with_rates(Grant { queues, ..rule.grant }, &rule, of_user);
        let access = AccessPolicy {
            // Partitions are parts of the first namespace.
            namespace: 1,
            scope: match partition.span {
                PartitionSpan::Sectors { first, count } => AccessScope::Sectors { first, count },
                PartitionSpan::ParallelUnits { first, count } => {
                    AccessScope::ParallelUnits { first, count }
                }
            },
            write: grant.write,
            // A drive that manages its own media accepts no vector commands anyway.
            vector_commands: true,
            queues,
            queue_depth: grant.depth,
            iops: grant.iops,
            bytes_per_sec: grant.bytes_per_sec,
            // It has no parts.
            persistent_region: false,
        };
        let (regions, bytes) = (self.limits.regions, self.limits.bytes);
        let resources = |what: &str, error: std::io::Error| {
            ProtocolError::new(Code::Resources, format!("no {what} for another client: {error}"))
        };
        let limits = PortLimits { vectors: queues + 1, regions, bytes };
        let port = match drive.has_registers {
            true => Port::shared_with_registers(limits),
            false => Port::shared(limits),
        };
        let port = port.map_err(|e| resources("port", e))?;
        port.set_drive_waker(drive.owner.waker.clone()).map_err(|e| resources("wire", e))?;
        let attaching = port.clone();
        let attached = drive.owner.call(move |drive| {
            drive.attach_as(&attaching, access).map_err(|error| error.to_string())
        });
        match attached {
            Ok(Ok(())) => {}
            Ok(Err(text)) => return Err(ProtocolError::new(Code::Drive, text)),
            Err(error) => return Err(ProtocolError::new(Code::Drive, error.to_string())),
        }
        let (header, descriptors) = match port.take_descriptor() {
            Ok(parts) => parts.into_message(),
            Err(error) => {
                self.detach(index, port);
                return Err(resources("descriptor", error));
            }
        };
        let granted = SessionGrant {
            client,
            device: partition.device,
            partition: partition.name,
            span: partition.span,
            grant,
            regions: regions as u32,
            bytes,
            port: header,
        };
        let (subject, since) = (rule.principal, Instant::now());
        let open = OpenDevice {
            port,
            drive: index,
            grant: granted,
            principal: subject,
            registered: 0,
            opened_at: since,
        };
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.device = Some(open);
        }
        Ok((Message::Granted(granted), descriptors))
    }

    fn register(&mut self, client: u64, slot: u32, bytes: u64, memory: OwnedFd) -> HandleResult {
        let nothing = || ProtocolError::new(Code::Order, "nothing is open");
        let uid = self.connections.get(&client).ok_or_else(nothing)?.peer.uid;
        let of_user = self.connections.values().filter(|c| c.peer.uid == uid);
        let used: u64 = of_user.filter_map(|c| c.device.as_ref()).map(|o| o.registered).sum();
        let limits = self.limits;
        let open = self.connections.get_mut(&client).and_then(|c| c.device.as_mut());
        let open = open.ok_or_else(nothing)?;
        let space = open.port.memory();
        let room = space.remaining_bytes().min(limits.bytes_per_user.saturating_sub(used));
        let too_much = || {
            let text = format!(
                "{bytes} bytes of memory: a connection may register {} bytes in {} regions, and \
                 uid {uid} {} bytes; {room} are left",
                limits.bytes, limits.regions, limits.bytes_per_user
            );
            ProtocolError::new(Code::Memory, text)
        };
        let region = SharedRegion::import(memory, room).map_err(|error| match error {
            SharedMemoryError::Length { bytes, .. } if bytes > 0 => too_much(),
            SharedMemoryError::Io(error) => ProtocolError::new(Code::Resources, error.to_string()),
            error => ProtocolError::new(Code::BadMemory, error.to_string()),
        })?;
        if region.len() as u64 != bytes {
            let text = format!("a region of {bytes} bytes in memory of {}", region.len());
            return Err(ProtocolError::new(Code::BadMemory, text));
        }
        space.register_at(slot as usize, &region).map_err(|error| match error {
            RegisterError::Limit { .. } => too_much(),
            error => ProtocolError::new(Code::BadMemory, error.to_string()),
        })?;
        open.registered += bytes;
        reply_done(0)
    }

    // ---- Administrators.

    /// Replaces the table, after its rules were saved to the file, if there is one.
    fn set_table(&mut self, table: PartitionTable) -> Result<(), ProtocolError> {
        if let Some(file) = &self.acl_file {
            file.save(table.rules()).map_err(|error| {
                ProtocolError::new(Code::Resources, format!("nothing has changed: {error}"))
            })?;
        }
        self.table = table;
        Ok(())
    }

    /// Changes the rates of the connections that rely on a rule. Their other permissions stay.
    fn update_rates(&mut self, rule: &AclRule) {
        let key = (rule.principal, rule.device, rule.partition);
        let relies =
            |open: &OpenDevice| (open.principal, open.grant.device, open.grant.partition) == key;
        for client in self.clients(relies) {
            let uid = self.connections.get(&client).map_or(0, |c| c.peer.uid);
            // A user may have more queues than a rule that was made narrower.
            let of_user = self.queues_of_user(uid, rule).max(rule.grant.queues.into());
            let connection = self.connections.get_mut(&client);
            let Some(open) = connection.and_then(|c| c.device.as_mut()) else { continue };
            open.grant.grant = with_rates(open.grant.grant, rule, of_user);
            let (Grant { iops, bytes_per_sec, .. }, port) = (open.grant.grant, open.port.clone());
            if let Some(drive) = self.parts.drives.get(open.drive) {
                // A drive that is shutting down detaches every port; others have this one.
                let _ = drive
                    .owner
                    .call(move |drive| drive.set_rates(&port, iops, bytes_per_sec).is_ok());
            }
        }
    }

    /// Closes the connections that rely on removed rules.
    fn disconnect_revoked(&mut self, rules: &[AclRule]) {
        let lives_by = |open: &OpenDevice| {
            let key = (open.principal, open.grant.device, open.grant.partition);
            rules.iter().any(|r| (r.principal, r.device, r.partition) == key)
        };
        let these = self.clients(lives_by);
        for client in these {
            let text = "the permission to use this partition was taken back";
            self.disconnect(client, Some(ProtocolError::new(Code::Denied, text)));
        }
    }

    fn clients(&self, which: impl Fn(&OpenDevice) -> bool) -> Vec<u64> {
        let open = |(number, c): (&u64, &super::client::ClientConnection)| {
            c.device.as_ref().is_some_and(&which).then_some(*number)
        };
        self.connections.iter().filter_map(open).collect()
    }

    fn kick(&mut self, whom: KickTarget) -> HandleResult {
        let these: Vec<_> = match whom {
            KickTarget::Client(number) => self.clients(|open| open.grant.client == number),
            KickTarget::Subject(subject) => {
                let mut these = self.clients(|_| true);
                these.retain(|client| {
                    let peer = self.connections.get(client).map(|c| c.peer.user());
                    peer.is_some_and(|user| subject.matches(user.uid, user.gid))
                });
                these
            }
        };
        if these.is_empty() {
            let open: Vec<_> = self.clients(|_| true).iter().map(u64::to_string).collect();
            let open = if open.is_empty() { "none".into() } else { open.join(", ") };
            let text = format!("no such client is there; there are: {open}");
            return Err(ProtocolError::new(Code::Unknown, text));
        }
        for client in &these {
            let text = "an administrator has ended this connection";
            self.disconnect(*client, Some(ProtocolError::new(Code::Kicked, text)));
        }
        reply_done(these.len() as u64)
    }

    fn list_entry(&self, client: u64, index: u32) -> HandleResult {
        let listing = self.connections.get(&client).map(|c| &c.listing);
        match listing.and_then(|listing| listing.get(index as usize)) {
            Some(entry) => Ok((Message::Entry(entry.clone()), Vec::new())),
            None => reply_done(index.into()),
        }
    }

    fn interval(&mut self, client: u64, index: usize) -> HandleResult {
        let Some(NamedStats { name, source }) = self.parts.stats.get(index) else {
            return reply_done(index as u64);
        };
        let connection = self.connections.get_mut(&client);
        let stats = connection.and_then(|connection| connection.interval(index, source));
        let device = *name;
        let stats = stats.ok_or_else(|| {
            ProtocolError::new(Code::Drive, format!("{device} does not tell what it does"))
        })?;
        Ok((Message::Interval { device, stats: Box::new(stats) }, Vec::new()))
    }

    /// Changes a setting of the FTL of a drive or target.
    fn set(&self, device: ResourceName, change: SettingChange) -> HandleResult {
        let ftls = &self.parts.ftls;
        let Some(ftl) = ftls.iter().find(|ftl| ftl.name == device) else {
            let names = ftls.iter().map(|ftl| ftl.name);
            return Err(unknown("drive or target", device, names));
        };
        let settings = ftl.change(change)?;
        Ok((Message::Entry(ListEntry::Settings(settings)), Vec::new()))
    }

    /// Injects a fault into a drive.
    fn inject_fault(&self, device: ResourceName, fault: &str) -> HandleResult {
        let injectors = &self.parts.injectors;
        let Some(injector) = injectors.iter().find(|injector| injector.name == device) else {
            let names = injectors.iter().map(|injector| injector.name);
            return Err(unknown("emulated NVMe drive", device, names));
        };
        injector.inject(fault)?;
        reply_done(1)
    }

    /// Returns the access to the namespaces of a drive.
    fn namespaces_of(&self, device: ResourceName) -> Result<&NamedNamespaces, ProtocolError> {
        let drives = &self.parts.namespaces;
        drives.iter().find(|drive| drive.name == device).ok_or_else(|| {
            unknown("emulated NVMe drive", device, drives.iter().map(|drive| drive.name))
        })
    }

    /// Returns an entry of the snapshot of a drive's namespaces, which the first entry takes.
    fn namespace_entry(&mut self, client: u64, device: ResourceName, index: usize) -> HandleResult {
        let drive = self.namespaces_of(device)?;
        let taken = if index == 0 { Some(drive.entries()?) } else { None };
        let Some(connection) = self.connections.get_mut(&client) else { return reply_done(0) };
        if let Some(taken) = taken {
            connection.namespaces = taken;
        }
        let (entries, unallocated) = &connection.namespaces;
        match entries.get(index) {
            Some(entry) => Ok((Message::Namespace(*entry), Vec::new())),
            None => reply_done(*unallocated),
        }
    }

    /// Returns the access to the rules of a drive.
    fn rules_of(&self, device: ResourceName) -> Result<&NamedRules, ProtocolError> {
        let drives = &self.parts.rules;
        drives.iter().find(|drive| drive.name == device).ok_or_else(|| {
            unknown("emulated NVMe drive", device, drives.iter().map(|drive| drive.name))
        })
    }

    /// Returns a part of the snapshot of the report about a drive's rules, which the first part takes.
    fn rule_report(&mut self, client: u64, device: ResourceName, offset: u64) -> HandleResult {
        let drive = self.rules_of(device)?;
        let taken = if offset == 0 { Some(drive.report_text()?) } else { None };
        let Some(connection) = self.connections.get_mut(&client) else { return reply_done(0) };
        if let Some(taken) = taken {
            connection.rules = taken;
        }
        let total = connection.rules.len() as u64;
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok((Message::Rules { total, part: ValuePart::of(&connection.rules, at) }, Vec::new()))
    }

    fn list(&self) -> Vec<ListEntry> {
        let clients = |partition: &super::partition_table::Partition| {
            let key = (partition.device, partition.name);
            self.clients(|o| (o.grant.device, o.grant.partition) == key).len() as u32
        };
        let partitions = self.table.partitions().iter().map(|p| ListEntry::Partition {
            device: p.device,
            name: p.name,
            span: p.span,
            in_use: p.in_use,
            clients: clients(p),
        });
        let rules = self.table.rules().iter().copied().map(ListEntry::Rule);
        let mut entries: Vec<_> = partitions.chain(rules).collect();
        for (index, drive) in self.parts.drives.iter().enumerate() {
            let here = self.connections.values();
            let here = here.filter(|c| c.device.as_ref().is_some_and(|o| o.drive == index));
            let ports: Vec<Arc<Port>> =
                here.clone().filter_map(|c| Some(c.device.as_ref()?.port.clone())).collect();
            let asked = drive.owner.call(move |drive| -> Vec<PortStats> {
                ports.iter().map(|port| drive.port_stats(port).unwrap_or_default()).collect()
            });
            // A drive that is shutting down returns no statistics.
            let stats = asked.unwrap_or_default();
            let lines = here.zip(stats).filter_map(|(connection, stats)| connection.entry(stats));
            entries.extend(lines);
        }
        // An FTL whose thread does not answer has no entry.
        let settings = self.parts.ftls.iter().filter_map(|ftl| ftl.settings().ok());
        entries.extend(settings.map(ListEntry::Settings));
        entries.truncate(LIST_ENTRIES_MAX);
        entries
    }
}
