//! [`EventSubscription`]: the chunk notifications of a drive ([OC20 §3], log page D0h; [NVMe1.4
//! §5.2]).
//!
//! One Asynchronous Event Request is outstanding. When it completes, the driver reads the log into
//! the subscription's own memory and sends the next request, without blocking.
//!
//! Guarantee: every notification is returned once, in the order of its count, or counted as lost.
//! Invalid log entries are counted and skipped.

use std::collections::VecDeque;
use std::sync::Arc;

use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{
    Address, AdminCommand, AsyncEvent, ChunkNotification, ChunkNotificationKind,
    ChunkNotificationScope, Ppa, Status, log_page,
};

use crate::controller::admin::{AdminCommandId, AdminQueue};
use crate::{DriverError, OpenChannelInfo};

/// A notification about the drive's media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaEvent {
    /// Sequence number of the notification, counted from 1 without gaps.
    pub count: u64,
    /// Address of the sector, or of the first one of the scope.
    pub address: Address,
    /// Scope of the notification.
    pub scope: ChunkNotificationScope,
    /// Kind of the notification.
    pub kind: ChunkNotificationKind,
    /// Number of sectors from the address on, if the scope is sectors; else 0.
    pub sectors: u32,
}

#[derive(Debug)]
enum State {
    /// A request is outstanding.
    Requested,
    /// The drive has completed a request.
    Notified,
    /// The log is being read.
    Reading(AdminCommandId),
}

#[derive(Debug)]
pub(crate) struct EventSubscription {
    media: OpenChannelInfo,
    nsid: u32,
    buffer: Arc<SharedRegion>,
    at: Iova,
    state: State,
    ready: VecDeque<MediaEvent>,
    /// Count of the last notification returned from the log.
    last_seen: u64,
    pub(crate) dropped: u64,
    pub(crate) malformed: u64,
}

impl EventSubscription {
    /// Sends the first request.
    pub(crate) fn subscribe(
        admin: &mut AdminQueue,
        memory: &mem::AddressSpace,
        media: OpenChannelInfo,
        nsid: u32,
    ) -> Result<EventSubscription, DriverError> {
        let (buffer, at) = memory.allocate_registered(PAGE_BYTES)?;
        admin.request_event()?;
        Ok(EventSubscription {
            media,
            nsid,
            buffer,
            at,
            state: State::Requested,
            ready: VecDeque::new(),
            last_seen: 0,
            dropped: 0,
            malformed: 0,
        })
    }

    /// Advances the subscription. Returns the next event, if there is one.
    pub(crate) fn poll(
        &mut self,
        admin: &mut AdminQueue,
    ) -> Result<Option<MediaEvent>, DriverError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            self.state = match &self.state {
                State::Requested => match admin.pop_event() {
                    None => return Ok(None),
                    Some((_, status)) if !status.is_success() => {
                        return Err(rejection_error(status));
                    }
                    Some((dword, _)) => {
                        if AsyncEvent::from_dword(dword as u32) == AsyncEvent::CHUNK_NOTIFICATION {
                            State::Notified
                        } else {
                            self.malformed += 1;
                            admin.request_event()?;
                            State::Requested
                        }
                    }
                },
                State::Notified if admin.is_busy() => return Ok(None),
                State::Notified => {
                    let command = AdminCommand::GetLogPage {
                        lid: log_page::CHUNK_NOTIFICATION,
                        nsid: self.nsid,
                        bytes: PAGE_BYTES as u64,
                        offset: 0,
                        retain: false,
                    };
                    self.buffer.fill(0, PAGE_BYTES, 0);
                    State::Reading(admin.submit_into(command, 0, self.at)?)
                }
                State::Reading(ticket) => match admin.pop_response(*ticket) {
                    None => return Ok(None),
                    Some(answer) => {
                        answer?;
                        self.parse_log();
                        admin.request_event()?;
                        State::Requested
                    }
                },
            };
        }
    }

    /// Extracts the new entries from the log, which has the newest first.
    fn parse_log(&mut self) {
        let mut page = [0; PAGE_BYTES];
        self.buffer.read(0, &mut page);
        let (entries, _) = page.as_chunks::<{ ChunkNotification::BYTES }>();
        let mut next = self.last_seen;
        for raw in entries.iter().rev() {
            let entry = ChunkNotification::from_bytes(*raw);
            let count = entry.count.get();
            if count <= next {
                // The entry is empty or known. If it is new, the log is out of order.
                self.malformed += u64::from(next > self.last_seen);
                continue;
            }
            // Entries missing before the first new one have been overwritten.
            self.dropped += count - next - 1;
            next = count;
            match self.parse_entry(&entry) {
                Some(event) => self.ready.push_back(event),
                None => self.malformed += 1,
            }
        }
        self.last_seen = next;
    }

    fn parse_entry(&self, entry: &ChunkNotification) -> Option<MediaEvent> {
        let scope = ChunkNotificationScope::from_bits(entry.mask)?;
        let kind = ChunkNotificationKind::from_bits(entry.state.get())?;
        let ppa = Ppa(entry.address.get());
        let address = self.media.geometry.address(&self.media.format, ppa).ok()?;
        let sectors = match scope {
            ChunkNotificationScope::Sector => u32::from(entry.nlb.get()) + 1,
            ChunkNotificationScope::Chunk | ChunkNotificationScope::Pu => 0,
        };
        Some(MediaEvent { count: entry.count.get(), address, scope, kind, sectors })
    }
}

fn rejection_error(status: Status) -> DriverError {
    let command = AdminCommand::AsyncEventRequest.name();
    DriverError::Command { command, queue: 0, status }
}
