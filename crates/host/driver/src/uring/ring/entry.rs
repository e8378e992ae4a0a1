//! Entries of the submission ring. All `unsafe` code of the ring is in this module.
//!
//! The numbered invariants are those of [`Ring`].

use std::sync::Arc;

use io_uring::squeue::EntryMarker;
use io_uring::{opcode, types};
use mem::SharedRegion;
use nvme::Sqe;
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;

use super::{CANCEL_USER_DATA, DataLocation, IoVec, NO_FIXED_BUFFER, PIN_BYTES_MAX, Pin, Ring};
use crate::Tag;
use crate::uring::backend::UringBackend;
use crate::uring::file_target::FileTarget;
use crate::uring::passthrough::{CommandEntry, IO, IO_VEC, Namespace};

impl<W: UringBackend> Ring<W> {
    /// Asks the kernel to pin a region for all later commands.
    #[cold]
    pub(super) fn pin(&mut self, slot: usize, region: &SharedRegion) {
        let piece = [IoVec {
            address: region.pointer(0, region.len()).expose_provenance(),
            bytes: region.len(),
        }];
        // SAFETY: `IoVec` is laid out as `struct iovec`; there is one, alive until the call
        // returns.
        let vector = unsafe { std::slice::from_raw_parts((&raw const piece).cast(), piece.len()) };
        let submitter = self.transfer_ring.submitter();
        // SAFETY: the range is a whole region that the ring owns (invariants 1 and 2), and pinned
        // pages stay allocated until the kernel releases them.
        let pinned = region.len() <= PIN_BYTES_MAX
            && unsafe { submitter.register_buffers_update(slot as u32, vector, None) }.is_ok();
        self.pins[slot] = if pinned { Pin::Pinned } else { Pin::Refused };
        match pinned {
            true => self.stats.registered_regions += 1,
            false => self.stats.unregistered_regions += 1,
        }
    }

    #[inline]
    fn push_command(&mut self, tag: Tag, mut entry: W::Submission, side: bool) -> bool {
        entry.set_user_data(tag.0.into());
        let Some(place) = self.locations.get_mut(usize::from(tag.0)).filter(|p| !p.in_kernel)
        else {
            return false;
        };
        let ring = if side {
            self.aux_ring.as_mut().unwrap_or(&mut self.transfer_ring)
        } else {
            &mut self.transfer_ring
        };
        // SAFETY: the entry names only memory of the tag's data location, which stays valid and in
        // place until the kernel has completed the entry (invariants 1 to 3). The creator of the
        // ring keeps the file open.
        let pushed = unsafe { ring.submission().push(&entry) }.is_ok();
        place.in_kernel = pushed;
        self.in_kernel += u32::from(pushed);
        self.stats.entries += u64::from(pushed);
        pushed
    }

    /// Asks the kernel to cancel the command of a tag; without a tag, all commands.
    pub(in crate::uring) fn cancel(&mut self, tag: Option<Tag>) {
        // Limit the cancellations to the queue depth, so that their results and those of commands
        // fit into the completion ring, which is twice as long.
        if self.cancellations >= self.setup.depth.into() {
            return;
        }
        let which = match tag {
            Some(tag) => types::CancelBuilder::user_data(tag.0.into()),
            None => types::CancelBuilder::any(),
        };
        let entry = opcode::AsyncCancel2::new(which).build().user_data(CANCEL_USER_DATA).into();
        for ring in std::iter::once(&mut self.transfer_ring).chain(&mut self.aux_ring) {
            // SAFETY: the entry names no memory.
            if unsafe { ring.submission().push(&entry) }.is_ok() {
                self.cancellations += 1;
                self.stats.entries += 1;
                self.stats.cancellations += 1;
            }
        }
    }
}

impl Ring<Arc<FileTarget>> {
    /// Pushes a transfer between the tag's data location and `offset` of the file. Returns whether
    /// the ring had space.
    #[inline]
    pub(in crate::uring) fn push_transfer(
        &mut self,
        tag: Tag,
        write: bool,
        offset: u64,
        durable: bool,
    ) -> bool {
        let Some(place) = self.locations.get(usize::from(tag.0)) else { return false };
        let (fd, flags) = (self.fd, if durable { ReadWriteFlags::DSYNC.bits() as i32 } else { 0 });
        let DataLocation {
            address, bytes, buffer, iovec_count: pieces, first_iovec: first, ..
        } = *place;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(address);
        let entry = if pieces > 0 {
            let start = usize::from(tag.0) * usize::from(self.setup.segments) + usize::from(first);
            let vector = self.iovecs[start..start + usize::from(pieces)].as_ptr().cast();
            match write {
                true => opcode::Writev::new(fd, vector, pieces.into())
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
                false => opcode::Readv::new(fd, vector, pieces.into()).offset(offset).build(),
            }
        } else {
            match (write, buffer) {
                (true, NO_FIXED_BUFFER) => {
                    opcode::Write::new(fd, at, bytes).offset(offset).rw_flags(flags).build()
                }
                (true, slot) => opcode::WriteFixed::new(fd, at, bytes, slot)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
                (false, NO_FIXED_BUFFER) => opcode::Read::new(fd, at, bytes).offset(offset).build(),
                (false, slot) => opcode::ReadFixed::new(fd, at, bytes, slot).offset(offset).build(),
            }
        };
        self.push_command(tag, entry.flags(self.fd_flags), false)
    }

    /// Pushes an `fdatasync`.
    pub(in crate::uring) fn push_sync(&mut self, tag: Tag) -> bool {
        let entry = opcode::Fsync::new(self.fd).flags(types::FsyncFlags::DATASYNC).build();
        self.push_command(tag, entry.flags(self.fd_flags), true)
    }

    /// Pushes a `fallocate`.
    pub(in crate::uring) fn push_allocate(
        &mut self,
        tag: Tag,
        mode: FallocateFlags,
        offset: u64,
        bytes: u64,
    ) -> bool {
        let entry =
            opcode::Fallocate::new(self.fd, bytes).offset(offset).mode(mode.bits() as i32).build();
        self.push_command(tag, entry.flags(self.fd_flags), true)
    }
}

impl Ring<Arc<Namespace>> {
    /// Pushes a command of the NVM command set with the tag's data location, if it has data.
    /// Returns whether the ring had space.
    ///
    /// The kernel maps as many bytes as the data location has, whatever the command says; the
    /// planner of a command makes both agree.
    #[inline]
    pub(in crate::uring) fn push_nvme(&mut self, tag: Tag, sqe: &Sqe, with_data: bool) -> bool {
        let Some(place) = self.locations.get(usize::from(tag.0)) else { return false };
        let DataLocation {
            address, bytes, buffer, iovec_count: pieces, first_iovec: first, ..
        } = *place;
        let mut command = CommandEntry::new(sqe);
        let mut operation = IO;
        let mut fixed = None;
        if with_data && pieces > 0 {
            let start = usize::from(tag.0) * usize::from(self.setup.segments) + usize::from(first);
            let vector = self.iovecs[start..start + usize::from(pieces)].as_ptr();
            operation = IO_VEC;
            command.set_data(vector.expose_provenance() as u64, pieces.into());
        } else if with_data {
            command.set_data(address as u64, bytes);
            fixed = (buffer != NO_FIXED_BUFFER).then_some(buffer);
        }
        let entry = opcode::UringCmd80::new(self.fd, operation)
            .cmd(command.to_bytes())
            .buf_index(fixed)
            .build();
        self.push_command(tag, entry.flags(self.fd_flags), false)
    }
}
