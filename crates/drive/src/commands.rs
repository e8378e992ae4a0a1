//! [`Commands`]: the commands that a drive has fetched and not completed. A slot is taken when a
//! command is fetched and given back when its completion is posted: nothing can be dropped between.

use std::sync::Arc;

use clock::Nanos;
use nvme::{DsmRange, ErrorEntry, IoCommand, Status};
use ring::Port;

use crate::data_buffer::DataBuffer;

/// A command under way.
#[derive(Debug)]
pub(crate) struct Command {
    /// Index of its submission queue among the drive's; see [`crate::queues::Queues`].
    pub(crate) queue: u32,
    pub(crate) sq_id: u16,
    pub(crate) cid: u16,
    pub(crate) io: IoCommand,
    pub(crate) data_buffer: DataBuffer,
    /// Where the out-of-band bytes are; 0 for nowhere.
    pub(crate) metadata: u64,
    /// Bytes of data.
    pub(crate) bytes: u64,
    /// Bytes of them that cross between host and drive.
    pub(crate) dma_bytes: u64,
    /// Where in the entry its error is (NVMe section 5.14.1.1).
    pub(crate) location: u16,
    pub(crate) port: Arc<Port>,
    /// Operations that must end before the command does.
    pub(crate) ops_left: u32,
    pub(crate) status: Status,
    pub(crate) result: u64,
    /// When it was fetched, of a drive that times commands.
    pub(crate) fetched: Nanos,
    /// When the completion is due.
    pub(crate) due: Nanos,
    /// Physical sectors of a vector command, sources of a copy.
    pub(crate) source_sectors: Vec<u32>,
    /// Destinations of a copy.
    pub(crate) target_sectors: Vec<u32>,
    /// Ranges that the command's data names, checked and placed.
    pub(crate) ranges: Vec<DsmRange>,
    /// The first sector that is the host's: what it knows as 0.
    pub(crate) first_sector: u64,
    /// Its host is gone.
    detached: bool,
}

/// Slots for commands. Their memory is kept from one command to the next.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    slots: Vec<Command>,
    free: Vec<u32>,
    /// Commands that are done and not on their way to their host yet.
    pub(crate) completed: std::collections::VecDeque<u32>,
    /// Commands under way whose hosts are gone, and who stands for these.
    detached_count: u32,
    placeholder_port: Option<Arc<Port>>,
}

impl Commands {
    #[inline]
    pub(crate) fn add(&mut self, port: &Arc<Port>, queue: u32, sq_id: u16, cid: u16) -> u32 {
        match self.free.pop() {
            Some(id) => {
                let c = &mut self.slots[id as usize];
                (c.queue, c.sq_id, c.cid) = (queue, sq_id, cid);
                (c.io, c.metadata, c.bytes, c.dma_bytes) = (IoCommand::Flush, 0, 0, 0);
                c.first_sector = 0;
                c.location = ErrorEntry::NONE;
                (c.ops_left, c.status, c.result) = (0, Status::SUCCESS, 0);
                c.data_buffer = DataBuffer::Empty;
                if !Arc::ptr_eq(&c.port, port) {
                    c.port = port.clone();
                }
                id
            }
            None => {
                self.slots.push(Command {
                    queue,
                    sq_id,
                    cid,
                    io: IoCommand::Flush,
                    data_buffer: DataBuffer::Empty,
                    metadata: 0,
                    bytes: 0,
                    dma_bytes: 0,
                    location: ErrorEntry::NONE,
                    port: port.clone(),
                    ops_left: 0,
                    status: Status::SUCCESS,
                    result: 0,
                    fetched: Nanos::ZERO,
                    due: Nanos::ZERO,
                    source_sectors: Vec::new(),
                    target_sectors: Vec::new(),
                    ranges: Vec::new(),
                    first_sector: 0,
                    detached: false,
                });
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// Commands under way.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Command {
        &self.slots[id as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Command {
        &mut self.slots[id as usize]
    }

    /// The command ends with this status; its result stays as it is.
    #[inline]
    pub(crate) fn complete(&mut self, id: u32, status: Status) {
        self.slots[id as usize].status = status;
        self.completed.push_back(id);
    }

    /// One of the command's operations has ended; with the last the command does, with the first
    /// status that was not success.
    #[inline]
    pub(crate) fn complete_op(&mut self, id: u32, status: Status) {
        let c = &mut self.slots[id as usize];
        if c.status.is_success() {
            c.status = status;
        }
        c.ops_left -= 1;
        if c.ops_left == 0 {
            self.completed.push_back(id);
        }
    }

    /// The command's completion is posted, or nobody is left to post it to.
    #[inline]
    pub(crate) fn release(&mut self, id: u32) {
        if self.detached_count > 0 {
            self.release_detached(id);
        }
        self.free.push(id);
    }

    /// The last that is left of a host may be this command: its memory goes.
    #[cold]
    fn release_detached(&mut self, id: u32) {
        let c = &mut self.slots[id as usize];
        if std::mem::take(&mut c.detached) {
            c.data_buffer = DataBuffer::Empty;
            self.detached_count -= 1;
            if let Some(nobody) = &self.placeholder_port {
                c.port = nobody.clone();
            }
        }
    }

    /// A host is gone: what its commands have for it goes nowhere. Data that they have still to
    /// fetch is fetched.
    pub(crate) fn detach_commands(&mut self, port: &Arc<Port>, nobody: &Arc<Port>) {
        self.placeholder_port = Some(nobody.clone());
        let mut live = vec![true; self.slots.len()];
        for id in &self.free {
            live[*id as usize] = false;
        }
        for (c, live) in self.slots.iter_mut().zip(live) {
            if !Arc::ptr_eq(&c.port, port) {
                continue;
            }
            if !live {
                c.port = nobody.clone();
                continue;
            }
            c.detached = true;
            self.detached_count += 1;
            if !matches!(c.io, IoCommand::Write { .. } | IoCommand::VectorWrite { .. }) {
                (c.data_buffer, c.metadata) = (DataBuffer::Empty, 0);
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.completed.clear();
        self.detached_count = 0;
    }
}
