//! [`CommandEntry`]: an NVMe command in the kernel's format. It is `struct nvme_uring_cmd` in the
//! second half of a large submission entry, and `struct nvme_passthru_cmd` for an `ioctl`; only
//! their last words differ.
//!
//! ```text
//! byte  0  opcode       4  namespace       8  command dwords 2 and 3
//!      16  metadata    24  data           32  bytes of metadata       36  bytes, or segments, of data
//!      40  command dwords 10 to 15        64  timeout in milliseconds 68  result dword 0 (ioctl)
//! ```

use nvme::Sqe;

const WORDS: usize = 9;
const BYTES: usize = 8 * WORDS;

/// `_IOWR('N', number, struct nvme_passthru_cmd)`.
const fn request(number: u32) -> u32 {
    3 << 30 | (BYTES as u32) << 16 | (b'N' as u32) << 8 | number
}

/// An I/O command with contiguous data.
pub(in crate::uring) const IO: u32 = request(0x80);
/// An I/O command with scattered data, described by a vector.
pub(in crate::uring) const IO_VEC: u32 = request(0x81);
/// An admin command, by `ioctl`.
pub(super) const ADMIN: u32 = request(0x41);

/// A command, in native byte order.
#[derive(Clone, Copy, Debug)]
pub(in crate::uring) struct CommandEntry([u64; WORDS]);

impl CommandEntry {
    /// Converts `sqe` without its data: the kernel chooses identifier, flags and data pointer.
    #[inline]
    pub(in crate::uring) fn new(sqe: &Sqe) -> CommandEntry {
        let words = sqe.to_words();
        let head = words[0] & 0xffff_ffff_0000_00ff;
        CommandEntry([head, 0, 0, 0, 0, words[5], words[6], words[7], 0])
    }

    /// Sets the data: `length` bytes at an address of this process, or a vector of `length`
    /// segments.
    #[inline]
    pub(in crate::uring) fn set_data(&mut self, address: u64, length: u32) {
        self.0[3] = address;
        self.0[4] = u64::from(length) << 32;
    }

    /// Sets the time that the kernel waits for completion.
    pub(super) fn set_timeout(&mut self, timeout_ms: u32) {
        self.0[8] = timeout_ms.into();
    }

    /// Returns dword 0 of the completion.
    pub(super) fn result(&self) -> u32 {
        (self.0[8] >> 32) as u32
    }

    /// Returns the words, for an `ioctl`.
    pub(super) fn words(&mut self) -> &mut [u64; WORDS] {
        &mut self.0
    }

    /// Returns the command part of a large submission entry.
    #[inline]
    pub(in crate::uring) fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *into = word.to_ne_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_kernel_reads_them() {
        let mut sqe = Sqe::write(7, 0x1122_3344_5566, 9, true);
        sqe.cid = 0xffff.into();
        sqe.set_prp(1, 2);
        let mut entry = CommandEntry::new(&sqe);
        entry.set_data(0xdead_0000, 4608);
        entry.set_timeout(1000);
        let bytes = entry.to_bytes();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((bytes[0], bytes[1], word(4)), (0x01, 0, 7));
        assert_eq!(bytes[2..4], [0, 0], "reserved");
        assert_eq!(bytes[8..24], [0; 16]);
        assert_eq!((word(24), word(28), word(32), word(36)), (0xdead_0000, 0, 0, 4608));
        assert_eq!((word(40), word(44)), (0x3344_5566, 0x1122));
        assert_eq!(word(48), 8 | 1 << 30, "a count from zero, and force unit access");
        assert_eq!((word(52), word(56), word(60)), (0, 0, 0));
        assert_eq!((word(64), word(68)), (1000, 0));
        assert_eq!(bytes[72..], [0; 8]);
        assert_eq!((IO, IO_VEC, ADMIN), (0xc048_4e80, 0xc048_4e81, 0xc048_4e41));
    }
}
