//! [`Admin`]: administration of the access-control list, by the server's own user and by root.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nvme::{RuleTableAction, RuleTableEntry};
use time::Nanos;

use super::error::RemoteDeviceError;
use super::open::RemoteDeviceConfig;
use super::rpc_client::RpcClient;
use share_proto::IntervalStats;
use share_proto::ResourceName;
use share_proto::{AclRule, Principal};
use share_proto::{Code, ProtocolError};
use share_proto::{KickTarget, ListEntry, Message};
use share_proto::{NamespaceAction, NamespaceEntry, ValuePart};
use share_proto::{SettingChange, SettingsEntry};

/// A connection to a server for administration.
#[derive(Debug)]
pub struct Admin {
    client: RpcClient,
}

impl Admin {
    /// Connects to the server at `path`; each reply may take
    /// [`RemoteDeviceConfig::REPLY_TIMEOUT_DEFAULT`].
    ///
    /// # Errors
    /// [`RemoteDeviceError::Connect`], [`RemoteDeviceError::Timeout`];
    /// [`RemoteDeviceError::Refused`] with [`Code::NotAdmin`] if the user may not administrate.
    pub fn connect(path: impl AsRef<Path>) -> Result<Admin, RemoteDeviceError> {
        Admin::connect_timeout(path, RemoteDeviceConfig::REPLY_TIMEOUT_DEFAULT)
    }

    /// Connects to the server at `path`; each reply may take `timeout`.
    ///
    /// # Errors
    /// As for [`connect`](Admin::connect).
    pub fn connect_timeout(
        path: impl AsRef<Path>,
        timeout: Nanos,
    ) -> Result<Admin, RemoteDeviceError> {
        let asker = RpcClient::connect(path.as_ref(), timeout)?;
        if !asker.admin {
            let text = "only the user who runs the server, and root, may administrate it";
            return Err(ProtocolError::new(Code::NotAdmin, text).into());
        }
        Ok(Admin { client: asker })
    }

    fn call_for_count(&mut self, message: Message) -> Result<u64, RemoteDeviceError> {
        match self.client.call(message, &[], 0)? {
            (Message::Done { count }, _) => Ok(count),
            (answer, _) => Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() }),
        }
    }

    /// Sets a rule, which replaces the rule of its principal for that partition. Returns whether it
    /// replaced one. Of existing connections that rely on it, only the rates change.
    ///
    /// # Errors
    /// [`RemoteDeviceError`].
    pub fn allow(&mut self, rule: AclRule) -> Result<bool, RemoteDeviceError> {
        Ok(self.call_for_count(Message::Allow(rule))? > 0)
    }

    /// Removes the rules of a principal, for one partition or, without one, for all of a drive, and
    /// closes the connections that rely on them. Returns the number of rules removed.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] if there was none.
    pub fn deny(
        &mut self,
        subject: Principal,
        device: ResourceName,
        partition: Option<ResourceName>,
    ) -> Result<u64, RemoteDeviceError> {
        let partition = partition.unwrap_or_default();
        self.call_for_count(Message::Deny { subject, device, partition })
    }

    /// Closes connections, and returns their number. Their users may connect again.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] if there was none.
    pub fn kick(&mut self, whom: KickTarget) -> Result<u64, RemoteDeviceError> {
        self.call_for_count(Message::Kick(whom))
    }

    /// Returns all partitions, rules, clients and settings of FTLs, in this order.
    ///
    /// # Errors
    /// [`RemoteDeviceError`].
    pub fn list(&mut self) -> Result<Vec<ListEntry>, RemoteDeviceError> {
        let mut entries = Vec::new();
        loop {
            let index = entries.len() as u32;
            match self.client.call(Message::List { index }, &[], 0)? {
                (Message::Entry(entry), _) => entries.push(entry),
                (Message::Done { .. }, _) => return Ok(entries),
                (answer, _) => {
                    return Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() });
                }
            }
        }
    }

    /// Changes a setting of the FTL of a drive or target, and returns the settings in force.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] for an unknown name, [`Code::Setting`] if the FTL
    /// refuses the change. Nothing has changed then.
    pub fn set(
        &mut self,
        device: ResourceName,
        change: SettingChange,
    ) -> Result<SettingsEntry, RemoteDeviceError> {
        match self.client.call(Message::Set { device, change }, &[], 0)? {
            (Message::Entry(ListEntry::Settings(settings)), _) => Ok(settings),
            (answer, _) => Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() }),
        }
    }

    /// Injects a fault into a drive: its kind, then `key=value` for each of its keys, separated by
    /// spaces.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] for an unknown name, [`Code::Fault`] if the drive
    /// cannot have the fault. Nothing has changed then.
    pub fn inject_fault(
        &mut self,
        device: ResourceName,
        fault: &str,
    ) -> Result<(), RemoteDeviceError> {
        let message = Message::Fault { device, fault: fault.to_owned() };
        match self.client.call(message, &[], 0)? {
            (Message::Done { .. }, _) => Ok(()),
            (answer, _) => Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() }),
        }
    }

    /// Changes the namespaces of a drive, and waits for the end of the change. Returns the identifier
    /// of a created namespace, and 0 for other changes.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] for an unknown name, [`Code::Namespace`] if the drive
    /// refuses the change.
    pub fn change_namespaces(
        &mut self,
        device: ResourceName,
        action: NamespaceAction,
    ) -> Result<u32, RemoteDeviceError> {
        let nsid = self.call_for_count(Message::ChangeNamespaces { device, action })?;
        // Identifiers of namespaces have 32 bits.
        Ok(u32::try_from(nsid).unwrap_or(0))
    }

    /// Returns the namespaces of a drive, in the order of their identifiers, and the capacity in
    /// bytes that none of them has.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] for an unknown name.
    pub fn namespaces(
        &mut self,
        device: ResourceName,
    ) -> Result<(Vec<NamespaceEntry>, u64), RemoteDeviceError> {
        let mut entries = Vec::new();
        loop {
            let index = entries.len() as u32;
            match self.client.call(Message::ListNamespaces { device, index }, &[], 0)? {
                (Message::Namespace(entry), _) => entries.push(entry),
                (Message::Done { count }, _) => return Ok((entries, count)),
                (answer, _) => {
                    return Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() });
                }
            }
        }
    }

    /// Installs a rule program, in its encoded form (`docs/format/rule-program.md`), in a drive. Returns
    /// the number of commands that no rule of it matches, which stay parked.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] for an unknown name, [`Code::RuleProgram`] if the drive
    /// does not take the program or has no rules. The rules are then as before.
    pub fn install_rules(
        &mut self,
        device: ResourceName,
        program: &[u8],
    ) -> Result<u64, RemoteDeviceError> {
        let mut offset = 0;
        loop {
            let part = ValuePart::of(program, offset);
            let len = part.bytes().len();
            self.call_for_count(Message::UploadRules { device, offset: offset as u64, part })?;
            offset += len;
            if offset >= program.len() {
                return self.call_for_count(Message::InstallRules { device });
            }
        }
    }

    /// Ends commands that no rule of a drive matches: those of an operation (`read`, `write` …), or all
    /// of them. Returns their number.
    ///
    /// # Errors
    /// As [`install_rules`](Admin::install_rules).
    pub fn reject_misses(
        &mut self,
        device: ResourceName,
        op: Option<ResourceName>,
    ) -> Result<u64, RemoteDeviceError> {
        let op = op.unwrap_or_default();
        self.call_for_count(Message::RejectMisses { device, op })
    }

    /// Returns what rule programs of a drive may use, and the counters of its rules, as JSON
    /// (`docs/sharing.md`).
    ///
    /// # Errors
    /// As [`install_rules`](Admin::install_rules).
    pub fn rule_report(&mut self, device: ResourceName) -> Result<Vec<u8>, RemoteDeviceError> {
        let mut report = Vec::new();
        loop {
            let offset = report.len() as u64;
            match self.client.call(Message::ReadRules { device, offset }, &[], 0)? {
                (Message::Rules { total, part }, _) => {
                    report.extend_from_slice(part.bytes());
                    if report.len() as u64 >= total || part.bytes().is_empty() {
                        return Ok(report);
                    }
                }
                (answer, _) => {
                    return Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() });
                }
            }
        }
    }

    /// Changes entries of a table of the rules of a drive, in order. `table` is its number in the
    /// program.
    ///
    /// # Errors
    /// [`RemoteDeviceError`]; [`Code::Unknown`] for an unknown name, [`Code::RuleProgram`] if the drive has
    /// no rules or the table does not take an entry. Those before it are stored.
    pub fn edit_rule_table(
        &mut self,
        device: ResourceName,
        table: u8,
        action: RuleTableAction,
        entries: &[RuleTableEntry],
    ) -> Result<(), RemoteDeviceError> {
        for entries in entries.chunks(ValuePart::LEN_MAX / RuleTableEntry::BYTES) {
            let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
            let entries = ValuePart::of(&bytes, 0);
            self.call_for_count(Message::EditRuleTable { device, table, action, entries })?;
        }
        Ok(())
    }

    /// Returns the values of `count` consecutive keys of a table of the rules of a drive, from `first`
    /// on: 1 for each key that a set has.
    ///
    /// # Errors
    /// As [`edit_rule_table`](Admin::edit_rule_table); also for indices past the end of an array.
    pub fn rule_table_values(
        &mut self,
        device: ResourceName,
        table: u8,
        first: u64,
        count: u32,
    ) -> Result<Vec<u64>, RemoteDeviceError> {
        let mut values = Vec::new();
        while values.len() < count as usize {
            let done = values.len();
            let first = first.saturating_add(done as u64);
            let count = count - done as u32;
            let message = Message::ReadRuleTable { device, table, first, count };
            match self.client.call(message, &[], 0)? {
                (Message::RuleTableValues { values: part }, _) if !part.bytes().is_empty() => {
                    let (words, _) = part.bytes().as_chunks();
                    values.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
                }
                (answer, _) => {
                    return Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() });
                }
            }
        }
        Ok(values)
    }

    /// Returns the statistics of each drive since the previous call on this connection. The first
    /// call covers the time since the server began to serve the drive.
    ///
    /// # Errors
    /// [`RemoteDeviceError`].
    pub fn stats(&mut self) -> Result<Vec<(ResourceName, IntervalStats)>, RemoteDeviceError> {
        let mut drives = Vec::new();
        loop {
            let index = drives.len() as u32;
            match self.client.call(Message::Stats { index }, &[], 0)? {
                (Message::Interval { device, stats }, _) => drives.push((device, *stats)),
                (Message::Done { .. }, _) => return Ok(drives),
                (answer, _) => {
                    return Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() });
                }
            }
        }
    }
}

impl AsFd for Admin {
    /// Returns a descriptor that becomes readable between calls when the server has closed the
    /// connection. The next call returns the reason.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }
}
