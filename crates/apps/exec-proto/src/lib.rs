//! Shared-memory protocol between a program under `sluice exec` and the file service: the layout of
//! a session's memory, the encoding of calls, and of replies.
//!
//! Guarantees: neither side uses a pointer or a length of the other unchecked (a call is copied out
//! of the slot once, [`Call::from_words`]); every number is a little-endian word.
//!
//! # States of a slot
//!
//! `FREE` → (client) `CLAIMED` → (client) `SUBMITTED` → (client, if it sleeps) `WAITING` →
//! (service) `COMPLETED` → (client) `FREE`. To submit a call, the client sets the slot's bit in the
//! session's `SUBMITTED_BITS` and increments the service's doorbell, which is a futex word, as is
//! the state. Module [`slot_protocol`] has the steps.
//!
//! A write can also be *posted*: `CLAIMED` → (client) `POSTED_WRITE` → (service) `FREE`, with a bit
//! in `POSTED_WRITE_BITS`. The client does not wait, and does not ring the doorbell, so it costs no
//! system call. A later call sees its effect: the service collects calls first and posted writes
//! second, and executes the posted writes first. Module [`posted`] has the rules.
//!
//! # References
//!
//! docs/exec.md.

#![forbid(unsafe_code)]

mod adaptive_spin;
pub mod gate;
pub mod posted;
pub mod slot_protocol;

pub use adaptive_spin::AdaptiveSpin;

/// First word of a session's memory.
pub const MAGIC: u64 = 0x3173_746f_6c73_6c73;
/// Slots of a session: the number of threads of a process that can call at once.
pub const SLOTS: usize = 32;
/// Maximum bytes of data of a call.
pub const DATA_BYTES: usize = 128 << 10;
/// Offset of the word with one bit per submitted slot.
pub const SUBMITTED_BITS: usize = 64;
/// Offset of the word with one bit per slot with a posted write.
pub const POSTED_WRITE_BITS: usize = 128;
/// Offset of the word with the number of blocks reserved for the process's posted writes.
pub const RESERVED_BLOCKS: usize = 192;
/// Offset of the slots' headers.
pub const HEADERS_OFFSET: usize = 4096;
/// Bytes from one header to the next.
pub const HEADER_STRIDE: usize = 128;
/// Offset of the slots' data.
pub const DATA_OFFSET: usize = 8192;
/// Bytes of a session's memory.
pub const SESSION_BYTES: usize = DATA_OFFSET + SLOTS * DATA_BYTES;
const _: () = assert!(HEADERS_OFFSET + SLOTS * HEADER_STRIDE == DATA_OFFSET);

/// Bytes of the doorbell's memory.
pub const DOORBELL_BYTES: usize = 4096;
/// Offset of the doorbell, a counter.
pub const DOORBELL: usize = 0;
/// Offset of the flag that the service sleeps on the doorbell.
pub const SERVICE_PARKED: usize = 64;
/// Offset of the ticket counter of posted writes, shared by all sessions.
pub const TICKET_COUNTER: usize = 192;
/// Offset of the flag that shared mappings exist, which disables posting.
pub const MMAP_ACTIVE: usize = 256;

/// Added to the number of a socket's autobind name, so that a file handle is never 0.
pub const FILE_HANDLE_BASE: u64 = 1 << 20;

/// Returns the offset of a slot's header.
pub const fn header_offset(slot: usize) -> usize {
    HEADERS_OFFSET + slot * HEADER_STRIDE
}

/// Returns the offset of a slot's data.
pub const fn data_offset(slot: usize) -> usize {
    DATA_OFFSET + slot * DATA_BYTES
}

/// The slot is free.
pub const FREE: u32 = 0;
/// A thread fills the slot.
pub const CLAIMED: u32 = 1;
/// The service owns the slot.
pub const SUBMITTED: u32 = 2;
/// The service owns the slot, and the thread sleeps until the reply.
pub const WAITING: u32 = 3;
/// The thread owns the slot again; the reply is there.
pub const COMPLETED: u32 = 4;
/// The service owns the slot, and the client does not wait.
pub const POSTED_WRITE: u32 = 5;

/// Words of a header after its state: operation, handle, four arguments, bytes of data.
pub const CALL_WORDS: usize = 7;
/// Offset of these words in the header.
pub const CALL_OFFSET: usize = 8;
/// Offset of the reply in the header: a count, or a negative error number.
pub const REPLY_OFFSET: usize = CALL_OFFSET + CALL_WORDS * 8;

/// Environment variable with the service's address: `ABSTRACT-NAME TOKEN`.
pub const ENV_SERVICE: &str = "SLUICE_EXEC_SERVICE";
/// Environment variable with the directory at which the volume is mounted.
pub const ENV_MOUNT: &str = "SLUICE_EXEC_AT";
/// Environment variable with the working directory, if it is below the mount.
pub const ENV_CWD: &str = "SLUICE_EXEC_CWD";
/// Bytes of a token: hexadecimal digits.
pub const TOKEN_BYTES: usize = 32;

/// Operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum CallOp {
    /// Opens a file. Data: path. Arguments: `O_*` flags, mode, number of the descriptor's socket.
    /// Handle: a directory.
    Open = 1,
    /// Reads at the open file's offset. Length: bytes requested.
    Read,
    /// Writes at the open file's offset, or at the end with `O_APPEND`. Data: the bytes. Arguments
    /// of a posted write, 1: time in nanoseconds since 1970; 2: its ticket; 3: the number of syncs
    /// acknowledged before it. Reply: bytes, plus [`MAY_POST`](posted::MAY_POST).
    Write,
    /// Reads at argument 0.
    ReadAt,
    /// Writes at argument 0.
    WriteAt,
    /// Changes the offset. Arguments: offset, whence.
    Seek,
    /// Makes a file durable. Arguments: 1 if times need not be durable; begin and length of the
    /// range changed by mappings (length 0: all).
    Sync,
    /// Makes the whole volume durable.
    SyncAll,
    /// Sets the size. Argument: size.
    Truncate,
    /// Allocates or deallocates blocks. Arguments: mode of `fallocate(2)`, offset, length.
    Allocate,
    /// Returns attributes. Data: path, or none for the open file. Reply data: [`StatReply`].
    Stat,
    /// Renames. Data: two paths, argument 0 the bytes of the first; argument 1 the directory of the
    /// second; argument 2 the flags of `renameat2(2)`.
    Rename,
    /// Removes a file's name. Data: path.
    Unlink,
    /// Creates a directory. Data: path. Argument: mode.
    MakeDirectory,
    /// Removes a directory. Data: path.
    RemoveDirectory,
    /// Lists a directory after the cookie in argument 0. Reply data: consecutive [`entry`] records.
    List,
    /// Sets attributes. Data: path or none. Arguments: which ([`CHANGE_MODE`]…), mode or user,
    /// group or last access, last modification.
    SetAttr,
    /// Returns volume statistics. Reply data, words: block size, blocks, free blocks, inodes, free
    /// inodes.
    Statfs,
    /// Returns the open file's `O_*` flags.
    Flags,
    /// Sets flags. Argument: `O_*` flags; only `O_APPEND` and flags without effect here change.
    SetFlags,
    /// A process has closed a descriptor of the open file.
    Release,
    /// Returns the path of an open directory from the root. Reply data: the path.
    Path,
    /// Record locks. Arguments: [`LOCK_SET`]…, type, begin, length (0: to the end). Reply data for
    /// [`LOCK_GET`]: type, begin, length, process.
    Lock,
    /// Locks of whole files (`flock(2)`). Argument: its operation.
    Flock,
    /// Sets the size of a file by path. Data: path. Argument: size.
    TruncatePath,
    /// Creates a shared mapping. Arguments: offset, length, 1 if writable, number of a socket as
    /// for `Open`. The service sends a descriptor of the memory file to that socket; the mapping
    /// exists until the socket's last copy is closed. Its number is a file handle for `Sync` and
    /// `Mmap`. Reply: the inode.
    Mmap,
    /// Writes with `RWF_ATOMIC` (`pwritev2(2)`). Arguments: offset ([`CURRENT_OFFSET`]: that of the
    /// open file), bytes of the program's buffers, their number. Data: the bytes, if there is one
    /// buffer and it fits. Reply as for `Write`.
    WriteAtomic,
}

/// Every operation, by number.
const OPS: [CallOp; 27] = [
    CallOp::Open,
    CallOp::Read,
    CallOp::Write,
    CallOp::ReadAt,
    CallOp::WriteAt,
    CallOp::Seek,
    CallOp::Sync,
    CallOp::SyncAll,
    CallOp::Truncate,
    CallOp::Allocate,
    CallOp::Stat,
    CallOp::Rename,
    CallOp::Unlink,
    CallOp::MakeDirectory,
    CallOp::RemoveDirectory,
    CallOp::List,
    CallOp::SetAttr,
    CallOp::Statfs,
    CallOp::Flags,
    CallOp::SetFlags,
    CallOp::Release,
    CallOp::Path,
    CallOp::Lock,
    CallOp::Flock,
    CallOp::TruncatePath,
    CallOp::Mmap,
    CallOp::WriteAtomic,
];

impl CallOp {
    /// Returns the operation with a number.
    pub fn from_number(number: u64) -> Option<CallOp> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        OPS.get(index).copied()
    }
}

/// [`CallOp::WriteAtomic`]: the offset of the open file.
pub const CURRENT_OFFSET: u64 = u64::MAX;

/// [`CallOp::SetAttr`]: permission bits.
pub const CHANGE_MODE: u64 = 1;
/// [`CallOp::SetAttr`]: user and group, each unless it is `u32::MAX`.
pub const CHANGE_OWNER: u64 = 2;
/// [`CallOp::SetAttr`]: times of access and modification, each unless it is [`TIME_STAYS`].
pub const CHANGE_TIMES: u64 = 4;
/// A time that does not change.
pub const TIME_STAYS: u64 = i64::MIN as u64;
/// The current time.
pub const TIME_NOW: u64 = (i64::MIN + 1) as u64;

/// [`CallOp::Lock`]: tries to lock. A blocked client retries, so that a signal can interrupt the wait.
pub const LOCK_SET: u64 = 0;
/// [`CallOp::Lock`]: returns the conflicting lock.
pub const LOCK_GET: u64 = 1;
/// [`CallOp::Lock`], added: the open file owns the lock, not the process.
pub const LOCK_OPEN_FILE: u64 = 2;

/// A call, copied out of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Operation.
    pub op: CallOp,
    /// The open file; for paths the directory relative to which they are resolved, 0 for the root.
    pub handle: u64,
    /// Arguments.
    pub args: [u64; 4],
    /// Bytes of data, or bytes requested.
    pub len: usize,
}

impl Call {
    /// Encodes the call as words.
    pub fn words(&self) -> [u64; CALL_WORDS] {
        let [a, b, c, d] = self.args;
        [self.op as u64, self.handle, a, b, c, d, self.len as u64]
    }

    /// Decodes a call from untrusted words; `None` if it is malformed.
    pub fn from_words(words: [u64; CALL_WORDS]) -> Option<Call> {
        let [op, handle, a, b, c, d, len] = words;
        let len = usize::try_from(len).ok().filter(|len| *len <= DATA_BYTES)?;
        Some(Call { op: CallOp::from_number(op)?, handle, args: [a, b, c, d], len })
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatReply {
    /// Inode number.
    pub ino: u64,
    /// Whether it is a directory.
    pub directory: bool,
    /// Permission bits.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of links.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Access, modification, change and birth, in nanoseconds since 1970.
    pub times: [i64; 4],
    /// Maximum bytes of a write that is kept whole; 0 for none, or a directory.
    pub atomic_max: u32,
}

impl StatReply {
    /// Encoded size in bytes.
    pub const BYTES: usize = 13 * 8;

    /// Encodes the attributes.
    pub fn encode(&self) -> [u8; StatReply::BYTES] {
        let [access, modify, change, birth] = self.times.map(|t| t as u64);
        let words = [
            self.ino,
            self.directory.into(),
            self.mode.into(),
            self.uid.into(),
            self.gid.into(),
            self.links.into(),
            self.size,
            self.blocks,
            access,
            modify,
            change,
            birth,
            self.atomic_max.into(),
        ];
        let mut bytes = [0; StatReply::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes the attributes.
    pub fn decode(bytes: &[u8; StatReply::BYTES]) -> StatReply {
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
            u64::from_le_bytes(word)
        };
        StatReply {
            ino: word(0),
            directory: word(1) != 0,
            mode: word(2) as u32,
            uid: word(3) as u32,
            gid: word(4) as u32,
            links: word(5) as u32,
            size: word(6),
            blocks: word(7),
            times: [word(8), word(9), word(10), word(11)].map(|t| t as i64),
            atomic_max: word(12) as u32,
        }
    }
}

/// Directory entries in a reply: cookie, inode, whether it is a directory, length of the name, and
/// the name.
pub mod entry {
    /// Bytes before the name.
    pub const HEAD_BYTES: usize = 18;

    /// Encodes an entry's head.
    pub fn encode(cookie: u64, ino: u64, directory: bool, name_bytes: u8) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&cookie.to_le_bytes());
        head[8..16].copy_from_slice(&ino.to_le_bytes());
        (head[16], head[17]) = (directory.into(), name_bytes);
        head
    }

    /// A decoded entry: cookie, inode, whether it is a directory, name.
    pub type Entry<'a> = (u64, u64, bool, &'a [u8]);

    /// Decodes the first entry; returns it and the remaining bytes.
    pub fn decode(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (name, rest) = rest.split_at_checked(head[17].into())?;
        Some(((word(0), word(8), head[16] != 0, name), rest))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_operations_are_their_indices() {
        for (i, op) in OPS.iter().enumerate() {
            assert_eq!(*op as usize, i + 1);
            assert_eq!(CallOp::from_number(*op as u64), Some(*op));
        }
        assert_eq!(CallOp::from_number(0), None);
        assert_eq!(CallOp::from_number(OPS.len() as u64 + 1), None);
        assert_eq!(CallOp::from_number(u64::MAX), None);
    }

    #[test]
    fn calls_and_stat_replies_come_back() {
        let call = Call { op: CallOp::Lock, handle: 7, args: [1, 2, 3, u64::MAX], len: DATA_BYTES };
        assert_eq!(Call::from_words(call.words()), Some(call));
        let mut words = call.words();
        words[6] = DATA_BYTES as u64 + 1;
        assert_eq!(Call::from_words(words), None, "longer than a slot");
        let facts = StatReply {
            ino: 1,
            directory: true,
            mode: 0o755,
            uid: 3,
            gid: 4,
            links: 2,
            size: 5,
            blocks: 6,
            times: [-1, 2, i64::MAX, 4],
            atomic_max: 65_536,
        };
        assert_eq!(StatReply::decode(&facts.encode()), facts);
    }

    #[test]
    fn entries_come_back_and_torn_ones_do_not() {
        let mut bytes = entry::encode(9, 8, true, 3).to_vec();
        bytes.extend(b"abc");
        bytes.extend(entry::encode(10, 4, false, 1));
        bytes.extend(b"x");
        let (first, rest) = entry::decode(&bytes).unwrap();
        assert_eq!(first, (9, 8, true, &b"abc"[..]));
        assert_eq!(entry::decode(rest), Some(((10, 4, false, &b"x"[..]), &[][..])));
        assert_eq!(entry::decode(&rest[..rest.len() - 1]), None);
        assert_eq!(entry::decode(&[]), None);
    }
}
