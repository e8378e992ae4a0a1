//! [`EventWatch`]: what a drive tells of its media unasked, as its host hears it (OC section 3, log
//! page D0h; NVMe section 5.2).
//!
//! One Asynchronous Event Request is outstanding. When it completes, the log is read into memory of
//! the watch's own, and the next request is sent; nothing waits in between. Guarantee: every
//! notification comes out once, in the order of their counts, or is counted as lost; what a drive
//! writes that means nothing is counted and skipped.

use std::collections::VecDeque;
use std::sync::Arc;

use nvme::{
    Address, AdminCommand, AsyncEvent, ChunkNotification, MediaNotice, MediaScope, Ppa, Status,
    log_page,
};
use ring::{Iova, PAGE, Region};

use crate::admin::{AdminQueue, Ticket};
use crate::{DriverError, OpenChannel};

/// Something that the drive noticed about its media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaEvent {
    /// Which notification it is, counted from 1 without gaps.
    pub count: u64,
    /// The sector, or the first of what is meant.
    pub address: Address,
    /// What is meant by the address.
    pub scope: MediaScope,
    /// What happened to it.
    pub kind: MediaNotice,
    /// Sectors from the address on, if the scope is sectors, else 0.
    pub sectors: u32,
}

#[derive(Debug)]
enum State {
    /// A request is outstanding.
    Listening,
    /// The drive has something to tell.
    Told,
    /// The log is being read.
    Reading(Ticket),
}

#[derive(Debug)]
pub(crate) struct EventWatch {
    media: OpenChannel,
    nsid: u32,
    buffer: Arc<Region>,
    at: Iova,
    state: State,
    ready: VecDeque<MediaEvent>,
    /// The last notification that came out of the log.
    seen: u64,
    pub(crate) lost: u64,
    pub(crate) malformed: u64,
}

impl EventWatch {
    /// Sends the first request.
    pub(crate) fn begin(
        admin: &mut AdminQueue,
        memory: &ring::AddressSpace,
        media: OpenChannel,
        nsid: u32,
    ) -> Result<EventWatch, DriverError> {
        let (buffer, at) = memory.provide(PAGE)?;
        admin.listen()?;
        Ok(EventWatch {
            media,
            nsid,
            buffer,
            at,
            state: State::Listening,
            ready: VecDeque::new(),
            seen: 0,
            lost: 0,
            malformed: 0,
        })
    }

    /// The next event, if there is one; goes on with what is under way.
    pub(crate) fn poll(
        &mut self,
        admin: &mut AdminQueue,
    ) -> Result<Option<MediaEvent>, DriverError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            self.state = match &self.state {
                State::Listening => match admin.event() {
                    None => return Ok(None),
                    Some((_, status)) if !status.is_success() => return Err(refused(status)),
                    Some((dword, _)) => {
                        if AsyncEvent::from_dword(dword as u32) == AsyncEvent::CHUNK_NOTIFICATION {
                            State::Told
                        } else {
                            self.malformed += 1;
                            admin.listen()?;
                            State::Listening
                        }
                    }
                },
                State::Told if admin.is_busy() => return Ok(None),
                State::Told => {
                    let command = AdminCommand::GetLogPage {
                        lid: log_page::CHUNK_NOTIFICATION,
                        nsid: self.nsid,
                        bytes: PAGE as u64,
                        offset: 0,
                        retain: false,
                    };
                    self.buffer.fill(0, PAGE, 0);
                    State::Reading(admin.ask_into(command, 0, self.at)?)
                }
                State::Reading(ticket) => match admin.answer(*ticket) {
                    None => return Ok(None),
                    Some(answer) => {
                        answer?;
                        self.take_in();
                        admin.listen()?;
                        State::Listening
                    }
                },
            };
        }
    }

    /// Takes what is new out of the log, which is newest first.
    fn take_in(&mut self) {
        let mut page = [0; PAGE];
        self.buffer.read(0, &mut page);
        let (entries, _) = page.as_chunks::<{ ChunkNotification::BYTES }>();
        let mut next = self.seen;
        for raw in entries.iter().rev() {
            let entry = ChunkNotification::from_bytes(*raw);
            let count = entry.count.get();
            if count <= next {
                // Nothing, or known; a log that is out of order is neither.
                self.malformed += u64::from(next > self.seen);
                continue;
            }
            // What is missing before the first new entry has been overwritten.
            self.lost += count - next - 1;
            next = count;
            match self.understand(&entry) {
                Some(event) => self.ready.push_back(event),
                None => self.malformed += 1,
            }
        }
        self.seen = next;
    }

    fn understand(&self, entry: &ChunkNotification) -> Option<MediaEvent> {
        let scope = MediaScope::from_bits(entry.mask)?;
        let kind = MediaNotice::from_bits(entry.state.get())?;
        let ppa = Ppa(entry.address.get());
        let address = self.media.geometry.address(&self.media.format, ppa).ok()?;
        let sectors = match scope {
            MediaScope::Sector => u32::from(entry.nlb.get()) + 1,
            MediaScope::Chunk | MediaScope::Pu => 0,
        };
        Some(MediaEvent { count: entry.count.get(), address, scope, kind, sectors })
    }
}

fn refused(status: Status) -> DriverError {
    let command = AdminCommand::AsyncEventRequest.name();
    DriverError::Command { command, queue: 0, status }
}
