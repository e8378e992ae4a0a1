//! What the drive of a [`Controller`] tells: its log pages, its events, its features.

use nvme::{
    Address, AdminCommand, AsyncEvent, ChunkDescriptor, DeviceL2pLog, FeatureSelect, HealthLog,
    Ppa, Status, VendorExtensions, log_page,
};

use super::ControllerHandle;
use crate::events::EventSubscription;
use crate::{DriverError, MediaEvent, OpenChannelInfo};

/// All namespaces.
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
        pump: &mut dyn FnMut(),
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
        self.admin.log_page(lid, nsid, offset, into, pump)
    }

    /// Reads the health log.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn health(&mut self, pump: &mut dyn FnMut()) -> Result<HealthLog, DriverError> {
        let mut bytes = [0; HealthLog::BYTES];
        self.log_page(log_page::HEALTH, 0, &mut bytes, pump)?;
        Ok(HealthLog::from_bytes(bytes))
    }

    /// Reads what the drive says of `count` chunks from the `first` on, in the order of their
    /// addresses (chunk within parallel unit within group).
    ///
    /// # Errors
    /// [`DriverError::NoSuchChunks`], or that of [`log_page`](Controller::log_page).
    pub fn chunks(
        &mut self,
        first: u64,
        count: u64,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<ChunkDescriptor>, DriverError> {
        let chunks = self.info.open_channel.map_or(0, |o| o.geometry.total_chunks());
        if first.checked_add(count).is_none_or(|end| end > chunks) {
            return Err(DriverError::NoSuchChunks { first, count, chunks });
        }
        let mut bytes = vec![0; count as usize * ChunkDescriptor::BYTES];
        let offset = first * ChunkDescriptor::BYTES as u64;
        self.log_page(log_page::CHUNK_INFORMATION, offset, &mut bytes, pump)?;
        let (chunks, _) = bytes.as_chunks::<{ ChunkDescriptor::BYTES }>();
        Ok(chunks.iter().map(|c| ChunkDescriptor::from_bytes(*c)).collect())
    }

    /// Reads where the drive's own map has the newest copies of `count` logical addresses from
    /// `first` on; `None` for one that has no copy.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] if the drive keeps no map or the map has fewer addresses,
    /// [`DriverError::Implausible`] for copies at addresses that cannot be, or that of
    /// [`log_page`](Controller::log_page).
    pub fn dual_map(
        &mut self,
        first: u64,
        count: u64,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<Option<Address>>, DriverError> {
        let media = self.open_channel()?;
        if !media.extensions.has(VendorExtensions::DEVICE_L2P) {
            return Err(DriverError::Unsupported { what: "map of its own" });
        }
        let entries = media.extensions.l2p_entries.get();
        if first.checked_add(count).is_none_or(|end| end > entries) {
            return Err(DriverError::Unsupported { what: "map of so many addresses" });
        }
        let mut bytes = vec![0; count as usize * 8];
        self.log_page(log_page::DEVICE_L2P, first * 8, &mut bytes, pump)?;
        let (words, _) = bytes.as_chunks::<8>();
        let place = |(lba, word): (u64, &[u8; 8])| match u64::from_le_bytes(*word) {
            log_page::UNMAPPED => Ok(None),
            ppa => media.geometry.address(&media.format, Ppa(ppa)).map(Some).map_err(|e| {
                DriverError::Implausible { what: format!("where logical address {lba} is: {e}") }
            }),
        };
        (first..).zip(words).map(place).collect()
    }

    /// Reads what the drive's own map holds in sum.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] if the drive keeps no map, or that of
    /// [`log_page`](Controller::log_page).
    pub fn map_totals(&mut self, pump: &mut dyn FnMut()) -> Result<DeviceL2pLog, DriverError> {
        if !self.open_channel()?.extensions.has(VendorExtensions::DEVICE_L2P) {
            return Err(DriverError::Unsupported { what: "map of its own" });
        }
        let mut bytes = [0; DeviceL2pLog::BYTES];
        self.log_page(log_page::DEVICE_L2P_TOTALS, 0, &mut bytes, pump)?;
        Ok(DeviceL2pLog::from_bytes(bytes))
    }

    fn open_channel(&self) -> Result<OpenChannelInfo, DriverError> {
        self.info.open_channel.ok_or(DriverError::Unsupported { what: "physical addresses" })
    }

    /// Begins to watch what the drive notices about its media: chunks that go offline, data that
    /// should be moved, dies that fail. What it has noticed before, and still knows, comes first.
    /// Nothing to do if they are watched already.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] for a drive that manages its own media or tells nothing; no memory, no
    /// registration.
    pub fn subscribe_events(&mut self) -> Result<(), DriverError> {
        let media = self.open_channel()?;
        if !media.extensions.has(VendorExtensions::NOTIFICATIONS) {
            return Err(DriverError::Unsupported { what: "chunk notifications" });
        }
        if self.event_requested {
            return Err(DriverError::Unsupported { what: "request for events left" });
        }
        if self.event_subscription.is_none() {
            let (memory, nsid) = (self.port.memory(), self.info.nsid);
            self.event_subscription =
                Some(EventSubscription::subscribe(&mut self.admin, memory, media, nsid)?);
        }
        Ok(())
    }

    /// The next thing that the drive noticed about its media, if there is one yet. Does not wait, and
    /// asks the drive nothing while there is nothing.
    ///
    /// # Errors
    /// [`DriverError::NotSubscribed`]; the drive's refusal of a request or of the log, after which
    /// events are not watched any more.
    pub fn poll_events(&mut self) -> Result<Option<MediaEvent>, DriverError> {
        let watch = self.event_subscription.as_mut().ok_or(DriverError::NotSubscribed)?;
        let polled = watch.poll(&mut self.admin);
        if polled.is_err() {
            self.event_subscription = None;
        }
        polled
    }

    /// Media events that the drive overwrote before they were read, and things that it wrote in
    /// their place that mean nothing, since they are watched.
    pub fn dropped_events(&self) -> (u64, u64) {
        self.event_subscription.as_ref().map_or((0, 0), |w| (w.dropped, w.malformed))
    }

    /// Asks to be told of the next event ([`poll_event`](Controller::poll_event)): of the drive's
    /// health, of its errors, of changes. Nothing to do if that was asked already.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] on a drive whose media events are watched: those are all its events.
    pub fn request_event(&mut self) -> Result<(), DriverError> {
        if self.event_subscription.is_some() {
            return Err(DriverError::Unsupported { what: "events beside those of its media" });
        }
        if !self.event_requested {
            self.admin.request_event()?;
            self.event_requested = true;
        }
        Ok(())
    }

    /// The event that was [awaited](ControllerHandle::request_event), once there is one; then the next is
    /// to be asked for. Does not wait. Whoever reads the log page that the event names clears it.
    ///
    /// # Errors
    /// [`DriverError::NotSubscribed`]; the drive's refusal of the request.
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

    /// The value of a feature ([`nvme::feature`]).
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn get_feature(
        &mut self,
        fid: u8,
        select: FeatureSelect,
        pump: &mut dyn FnMut(),
    ) -> Result<u32, DriverError> {
        let command = AdminCommand::GetFeatures { fid, select, member: 0 };
        self.admin.run(command, 0, pump).map(|result| result as u32)
    }

    /// Sets a feature ([`nvme::feature`]) until the next reset, and returns the drive's answer.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn set_feature(
        &mut self,
        fid: u8,
        value: u32,
        pump: &mut dyn FnMut(),
    ) -> Result<u32, DriverError> {
        let command = AdminCommand::SetFeatures { fid, save: false, value };
        self.admin.run(command, 0, pump).map(|result| result as u32)
    }
}
