//! Log pages, events and features of a [`ControllerHandle`], and the tables of rules of its drive.

use mem::PAGE_BYTES;
use nvme::{
    Address, AdminCommand, AsyncEvent, ChunkDescriptor, DeviceL2pLog, FeatureSelect,
    FoundNameEntry, HealthLog, Ppa, RuleEventLog, RuleTableAction, RuleTableEntry, Status,
    VendorExtensions, log_page,
};

use super::ControllerHandle;
use crate::controller::events::EventSubscription;
use crate::{DriverError, MediaEvent, OpenChannelInfo};

/// Entries of a command that changes a table: those of a page.
const ENTRIES: usize = PAGE_BYTES / RuleTableEntry::BYTES;

/// The namespace identifier of all namespaces.
const ALL_NAMESPACES: u32 = u32::MAX;

impl ControllerHandle {
    /// Reads a log page from byte `offset` on. Both `offset` and the length of `into` are multiples
    /// of 4.
    ///
    /// # Errors
    /// [`DriverError::Command`] with [`Status::INVALID_LOG_PAGE`] for a page that the drive does
    /// not have, [`Status::INVALID_FIELD`] for an offset past its end, or one that is not a
    /// multiple of 4.
    pub fn log_page(
        &mut self,
        lid: u8,
        offset: u64,
        into: &mut [u8],
        progress: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        if !offset.is_multiple_of(4) || !into.len().is_multiple_of(4) {
            let command = "Get Log Page";
            return Err(DriverError::Command { command, queue: 0, status: Status::INVALID_FIELD });
        }
        let nsid = match lid {
            log_page::CHUNK_INFORMATION
            | log_page::CHUNK_NOTIFICATION
            | log_page::DEVICE_L2P
            | log_page::DEVICE_L2P_TOTALS => self.info.nsid,
            _ => ALL_NAMESPACES,
        };
        self.admin.log_page(lid, nsid, offset, into, progress)
    }

    /// Reads the health log.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn health(&mut self, progress: &mut dyn FnMut()) -> Result<HealthLog, DriverError> {
        let mut bytes = [0; HealthLog::BYTES];
        self.log_page(log_page::HEALTH, 0, &mut bytes, progress)?;
        Ok(HealthLog::from_bytes(bytes))
    }

    /// Reads the descriptors of `count` chunks from `first` on, in the order of their addresses
    /// (chunk within parallel unit within group).
    ///
    /// # Errors
    /// [`DriverError::NoSuchChunks`], or an error of [`log_page`](ControllerHandle::log_page).
    pub fn chunks(
        &mut self,
        first: u64,
        count: u64,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<ChunkDescriptor>, DriverError> {
        let chunks = self.info.open_channel.map_or(0, |o| o.geometry.total_chunks());
        if first.checked_add(count).is_none_or(|end| end > chunks) {
            return Err(DriverError::NoSuchChunks { first, count, chunks });
        }
        let mut bytes = vec![0; count as usize * ChunkDescriptor::BYTES];
        let offset = first * ChunkDescriptor::BYTES as u64;
        self.log_page(log_page::CHUNK_INFORMATION, offset, &mut bytes, progress)?;
        let (chunks, _) = bytes.as_chunks::<{ ChunkDescriptor::BYTES }>();
        Ok(chunks.iter().map(|c| ChunkDescriptor::from_bytes(*c)).collect())
    }

    /// Reads from the device L2P the locations of the latest versions of `count` logical addresses
    /// from `first` on; `None` for an unmapped address.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] if the drive has no device L2P or a smaller one,
    /// [`DriverError::Implausible`] for impossible locations, or an error of
    /// [`log_page`](ControllerHandle::log_page).
    pub fn dual_map(
        &mut self,
        first: u64,
        count: u64,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<Option<Address>>, DriverError> {
        let media = self.open_channel()?;
        if !media.extensions.has(VendorExtensions::DEVICE_L2P) {
            return Err(DriverError::Unsupported { what: "device L2P" });
        }
        let entries = media.extensions.l2p_entries.get();
        if first.checked_add(count).is_none_or(|end| end > entries) {
            return Err(DriverError::Unsupported { what: "device L2P of so many addresses" });
        }
        let mut bytes = vec![0; count as usize * 8];
        self.log_page(log_page::DEVICE_L2P, first * 8, &mut bytes, progress)?;
        let (words, _) = bytes.as_chunks::<8>();
        let place = |(lba, word): (u64, &[u8; 8])| match u64::from_le_bytes(*word) {
            log_page::UNMAPPED => Ok(None),
            ppa => media.geometry.address(&media.format, Ppa(ppa)).map(Some).map_err(|e| {
                DriverError::Implausible {
                    what: format!("an invalid location of logical address {lba}: {e}"),
                }
            }),
        };
        (first..).zip(words).map(place).collect()
    }

    /// Reads the totals of the device L2P.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] if the drive has no device L2P, or an error of
    /// [`log_page`](ControllerHandle::log_page).
    pub fn map_totals(&mut self, progress: &mut dyn FnMut()) -> Result<DeviceL2pLog, DriverError> {
        if !self.open_channel()?.extensions.has(VendorExtensions::DEVICE_L2P) {
            return Err(DriverError::Unsupported { what: "device L2P" });
        }
        let mut bytes = [0; DeviceL2pLog::BYTES];
        self.log_page(log_page::DEVICE_L2P_TOTALS, 0, &mut bytes, progress)?;
        Ok(DeviceL2pLog::from_bytes(bytes))
    }

    fn open_channel(&self) -> Result<OpenChannelInfo, DriverError> {
        self.info.open_channel.ok_or(DriverError::Unsupported { what: "physical addresses" })
    }

    /// Subscribes to media events: chunks that go offline, data that should be relocated, dies that
    /// fail. Earlier events that the drive still has come first. Has no effect if there is a
    /// subscription.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] for a drive that manages its own media or does not report
    /// events. Also the errors of allocating and registering memory.
    pub fn subscribe_events(&mut self) -> Result<(), DriverError> {
        let media = self.open_channel()?;
        if !media.extensions.has(VendorExtensions::NOTIFICATIONS) {
            return Err(DriverError::Unsupported { what: "chunk notifications" });
        }
        if self.event_requested {
            return Err(DriverError::Unsupported { what: "Asynchronous Event Request left" });
        }
        if self.event_subscription.is_none() {
            let (memory, nsid) = (self.port.memory(), self.info.nsid);
            self.event_subscription =
                Some(EventSubscription::subscribe(&mut self.admin, memory, media, nsid)?);
        }
        Ok(())
    }

    /// Returns the next media event, if there is one. Does not wait, and sends no command while
    /// there is none.
    ///
    /// # Errors
    /// [`DriverError::NotSubscribed`]. Also the drive's error for the request or the log, which
    /// ends the subscription.
    pub fn poll_events(&mut self) -> Result<Option<MediaEvent>, DriverError> {
        let watch = self.event_subscription.as_mut().ok_or(DriverError::NotSubscribed)?;
        let polled = watch.poll(&mut self.admin);
        if polled.is_err() {
            self.event_subscription = None;
        }
        polled
    }

    /// Returns counts since the subscription: media events that the drive overwrote before they
    /// were read, and invalid log entries.
    pub fn dropped_events(&self) -> (u64, u64) {
        self.event_subscription.as_ref().map_or((0, 0), |w| (w.dropped, w.malformed))
    }

    /// Requests the next asynchronous event of the drive, about health, errors or changes;
    /// [`poll_event`](ControllerHandle::poll_event) returns it. Has no effect if a request is
    /// outstanding.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] while media events are subscribed to, because the subscription
    /// takes all events of the drive.
    pub fn request_event(&mut self) -> Result<(), DriverError> {
        if self.event_subscription.is_some() {
            return Err(DriverError::Unsupported {
                what: "other events while media events are subscribed to",
            });
        }
        if !self.event_requested {
            self.admin.request_event()?;
            self.event_requested = true;
        }
        Ok(())
    }

    /// Returns the [requested](ControllerHandle::request_event) event, once there is one. The
    /// caller then requests the next. Does not wait. Reading the log page that the event names
    /// clears it.
    ///
    /// # Errors
    /// [`DriverError::NotSubscribed`]; the drive's error for the request.
    pub fn poll_event(&mut self) -> Result<Option<AsyncEvent>, DriverError> {
        if !self.event_requested {
            return Err(DriverError::NotSubscribed);
        }
        let Some((dword, status)) = self.admin.pop_event() else { return Ok(None) };
        self.event_requested = false;
        if status.is_success() {
            return Ok(Some(AsyncEvent::from_dword(dword as u32)));
        }
        let command = AdminCommand::AsyncEventRequest.name();
        Err(DriverError::Command { command, queue: 0, status })
    }

    /// Returns the value of a feature ([`nvme::feature`]).
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn get_feature(
        &mut self,
        fid: u8,
        select: FeatureSelect,
        progress: &mut dyn FnMut(),
    ) -> Result<u32, DriverError> {
        let command = AdminCommand::GetFeatures { fid, select, member: 0 };
        self.admin.run(command, 0, progress).map(|result| result as u32)
    }

    /// Sets a feature ([`nvme::feature`]) until the next reset, and returns the drive's answer.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn set_feature(
        &mut self,
        fid: u8,
        value: u32,
        progress: &mut dyn FnMut(),
    ) -> Result<u32, DriverError> {
        let command = AdminCommand::SetFeatures { fid, save: false, value };
        self.admin.run(command, 0, progress).map(|result| result as u32)
    }

    /// Changes entries of a table of the drive's rules, in order. `table` is its number in the program.
    ///
    /// # Errors
    /// [`DriverError::Command`] with the status of the first entry that the table does not take, such as
    /// [`Status::RULE_TABLE_FULL`](nvme::Status::RULE_TABLE_FULL). Those before it are stored.
    pub fn edit_rule_table(
        &mut self,
        table: u8,
        action: RuleTableAction,
        entries: &[RuleTableEntry],
        progress: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        for entries in entries.chunks(ENTRIES) {
            let mut page = [0; PAGE_BYTES];
            for (bytes, entry) in page.chunks_mut(RuleTableEntry::BYTES).zip(entries) {
                bytes.copy_from_slice(&entry.to_bytes());
            }
            let entries = entries.len() as u32;
            let command = AdminCommand::RuleTableEdit { table, action, entries };
            self.admin.run_with_data(command, &page, progress)?;
        }
        Ok(())
    }

    /// Returns the values of `count` consecutive keys of a table of the drive's rules, from `first` on: the
    /// elements of an array, the values of a map (0 of an absent key), or 1 for each key that a set has.
    ///
    /// # Errors
    /// [`DriverError::Command`] with [`Status::RULE_INDEX`](nvme::Status::RULE_INDEX) past the end of an
    /// array, or another status.
    pub fn rule_table_values(
        &mut self,
        table: u8,
        first: u64,
        count: u32,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<u64>, DriverError> {
        let mut values = Vec::new();
        let mut page = [0; PAGE_BYTES];
        while values.len() < count as usize {
            let done = values.len();
            let entries = (count as usize - done).min(PAGE_BYTES / 8);
            let first = first.saturating_add(done as u64);
            let command = AdminCommand::RuleTableRead { table, first, entries: entries as u32 };
            let bytes = &mut page[..entries * 8];
            self.admin.read(command, bytes, progress)?;
            let (words, _) = bytes.as_chunks();
            values.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
        }
        Ok(values)
    }

    /// Takes events that rules have posted for the host: up to [`RuleEventLog::ENTRIES`], the oldest ones.
    ///
    /// # Errors
    /// [`DriverError::Command`]; the drive has no rules, or no application of this host.
    pub fn take_rule_events(
        &mut self,
        progress: &mut dyn FnMut(),
    ) -> Result<RuleEventLog, DriverError> {
        let mut page = [0; RuleEventLog::BYTES];
        self.admin.log_page(log_page::RULE_EVENTS, ALL_NAMESPACES, 0, &mut page, progress)?;
        Ok(RuleEventLog::from_bytes(&page))
    }

    /// Returns valid sectors with names that the drive found when it was powered on, from `first` on: `count`
    /// at most. Fewer are the last ones, and the drive discards all of them then.
    ///
    /// # Errors
    /// As [`take_rule_events`](ControllerHandle::take_rule_events); `first` is past the end.
    pub fn found_names(
        &mut self,
        first: u64,
        count: usize,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<FoundNameEntry>, DriverError> {
        let mut found = Vec::new();
        let mut page = [0; PAGE_BYTES];
        while found.len() < count {
            let entries = (count - found.len()).min(PAGE_BYTES / FoundNameEntry::BYTES);
            let bytes = &mut page[..entries * FoundNameEntry::BYTES];
            let offset = (first + found.len() as u64) * FoundNameEntry::BYTES as u64;
            self.admin.log_page(log_page::FOUND_NAMES, ALL_NAMESPACES, offset, bytes, progress)?;
            let (read, _) = bytes.as_chunks();
            let read = read.iter().map(|entry| FoundNameEntry::from_bytes(*entry));
            let before = found.len();
            found.extend(read.take_while(|entry| entry.name.get() != FoundNameEntry::END));
            if found.len() < before + entries {
                break;
            }
        }
        Ok(found)
    }
}
