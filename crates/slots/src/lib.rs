//! The words that a program under `sluice exec` and the file service share: where slots are in a session's
//! memory, what a call says, and what it is answered.
//!
//! Guarantees: no pointer and no length of one side is used by the other unchecked (a call is copied out of
//! the slot once, [`Call::from_words`]); every number is a little-endian word. `docs/exec.md` has the protocol.
//!
//! # A slot's state
//!
//! `FREE` → (client) `CLAIMED` → (client) `SUBMITTED` → (client, if it sleeps) `WAITING` → (service) `COMPLETED`
//! → (client) `FREE`. Posting sets the slot's bit in the session's `SUBMITTED_BITS` and adds one to the
//! service's bell, which is a futex word; the state is one, too. [`hands`] has the steps.
//!
//! A write can also be *left*: `CLAIMED` → (client) `LEFT` → (service) `FREE`, with a bit in `POSTED_WRITE_BITS`. Nobody waits
//! for it and nobody rings, so it costs no system call. Whoever calls afterwards finds it done: the
//! service takes calls first and what was left second, and what was left it does first. [`left`] has the rules.

#![forbid(unsafe_code)]

pub mod posted;
pub mod slot_protocol;

/// Of a session's memory, in its first word.
pub const MAGIC: u64 = 0x3173_746f_6c73_6c73;
/// Slots of a session: threads of one process that call at once.
pub const SLOTS: usize = 32;
/// Bytes of data that one call carries.
pub const DATA_BYTES: usize = 128 << 10;
/// Where the word is whose bits say which slots are posted.
pub const SUBMITTED_BITS: usize = 64;
/// Where the word is whose bits say which slots are left.
pub const POSTED_WRITE_BITS: usize = 128;
/// Where the word is that says of how many blocks the process may leave writes: they are reserved for it.
pub const RESERVED_BLOCKS: usize = 192;
/// Where the slots' headers are.
pub const HEADERS_OFFSET: usize = 4096;
/// Bytes from one header to the next.
pub const HEADER_STRIDE: usize = 128;
/// Where the slots' data is.
pub const DATA_OFFSET: usize = 8192;
/// Bytes of a session's memory.
pub const SESSION_BYTES: usize = DATA_OFFSET + SLOTS * DATA_BYTES;
const _: () = assert!(HEADERS_OFFSET + SLOTS * HEADER_STRIDE == DATA_OFFSET);

/// Bytes of the bell's memory.
pub const DOORBELL_BYTES: usize = 4096;
/// Where the bell is: a word that only counts.
pub const DOORBELL: usize = 0;
/// Where the word is that says whether the service sleeps at the bell.
pub const SERVICE_PARKED: usize = 64;
/// Where the word is that numbers what is left, in all sessions.
pub const TICKET_COUNTER: usize = 192;
/// Where the word is that says whether somebody sees bytes of files without asking: nothing is left then.
pub const MMAP_ACTIVE: usize = 256;

/// What is added to the number that is a socket's automatic name: an open file's number is never 0.
pub const FILE_HANDLE_BASE: u64 = 1 << 20;

/// Where a slot's header begins.
pub const fn header_offset(slot: usize) -> usize {
    HEADERS_OFFSET + slot * HEADER_STRIDE
}

/// Where a slot's data begins.
pub const fn data_offset(slot: usize) -> usize {
    DATA_OFFSET + slot * DATA_BYTES
}

/// Nobody's.
pub const FREE: u32 = 0;
/// Some thread's, which is filling it.
pub const CLAIMED: u32 = 1;
/// The service's.
pub const SUBMITTED: u32 = 2;
/// The service's, and the thread sleeps until it is answered.
pub const WAITING: u32 = 3;
/// The thread's again.
pub const COMPLETED: u32 = 4;
/// The service's, and nobody waits.
pub const POSTED_WRITE: u32 = 5;

/// Words of a header behind its state: the operation, what it is about, four arguments, bytes of data.
pub const CALL_WORDS: usize = 7;
/// Where they begin, from the header's begin.
pub const CALL_OFFSET: usize = 8;
/// Where the answer is, from the header's begin: a count, or an error number as a negative one.
pub const REPLY_OFFSET: usize = CALL_OFFSET + CALL_WORDS * 8;

/// The environment variable that says where the service is: `ABSTRACT-NAME TOKEN`.
pub const ENV_SERVICE: &str = "SLUICE_EXEC_SERVICE";
/// The directory that the volume is at.
pub const ENV_MOUNT: &str = "SLUICE_EXEC_AT";
/// The working directory, if it is below that one.
pub const ENV_CWD: &str = "SLUICE_EXEC_CWD";
/// Bytes of a token: hexadecimal digits.
pub const TOKEN_BYTES: usize = 32;

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Op {
    /// Data: path. Arguments: `O_*` flags, mode, the descriptor's socket name. About: a directory.
    Open = 1,
    /// Reads at the offset of the open file. Length: bytes wanted.
    Read,
    /// Writes there, or at the end with `O_APPEND`. Data: what. Arguments of one that is left, 1: when, in nanoseconds
    /// since 1970; 2: its ticket. Answer: bytes, and [`MAY_POST`](left::MAY_POST).
    Write,
    /// Reads at argument 0.
    ReadAt,
    /// The same, at argument 0.
    WriteAt,
    /// Arguments: offset, whence.
    Seek,
    /// Arguments: 1 if the times may be older; of what was changed by mappings, from where on, and bytes (0: all).
    Sync,
    /// Everything of the volume.
    SyncAll,
    /// Argument: size.
    Truncate,
    /// Arguments: mode of `fallocate(2)`, offset, length.
    Allocate,
    /// Data: path, or none for what is open. Answer's data: [`StatReply`].
    Stat,
    /// Data: two paths, argument 0 the bytes of the first; argument 1 the directory of the second;
    /// argument 2 the flags of `renameat2(2)`.
    Rename,
    /// Data: path.
    Unlink,
    /// Data: path. Argument: mode.
    MakeDirectory,
    /// Data: path.
    RemoveDirectory,
    /// Lists behind the cookie in argument 0. Answer's data: [`entry`] after entry.
    List,
    /// Data: path or none. Arguments: what ([`CHANGE_MODE`]…), mode or user, group or last access, last
    /// modification.
    SetAttr,
    /// Answer's data, words: bytes of a block, blocks, free blocks, inodes, free inodes.
    Statfs,
    /// Answer: the open file's `O_*` flags.
    Flags,
    /// Argument: `O_*` flags; only `O_APPEND` and what has no meaning here change.
    SetFlags,
    /// A process has closed a descriptor of the open file.
    Release,
    /// Answer's data: the path of an open directory from the root on.
    Path,
    /// Record locks. Arguments: [`LOCK_SET`]…, type, begin, length (0: to the end). Answer's data for
    /// [`LOCK_GET`]: type, begin, length, process.
    Lock,
    /// Locks of whole files (`flock(2)`). Argument: its operation.
    Flock,
    /// As `Truncate`, of a path. Data: path.
    TruncatePath,
    /// Bytes of a file are to be mapped and shared. Arguments: offset, bytes, 1 if they will be written to, a
    /// socket's name as of `Open`: a descriptor of the file's memory is sent to it, and there is a mapping until
    /// its last copy is closed. Its number is an open file's, for `Sync` and `Map`. Answer: the inode.
    Mmap,
}

/// Every operation, by number.
const OPS: [Op; 26] = [
    Op::Open,
    Op::Read,
    Op::Write,
    Op::ReadAt,
    Op::WriteAt,
    Op::Seek,
    Op::Sync,
    Op::SyncAll,
    Op::Truncate,
    Op::Allocate,
    Op::Stat,
    Op::Rename,
    Op::Unlink,
    Op::MakeDirectory,
    Op::RemoveDirectory,
    Op::List,
    Op::SetAttr,
    Op::Statfs,
    Op::Flags,
    Op::SetFlags,
    Op::Release,
    Op::Path,
    Op::Lock,
    Op::Flock,
    Op::TruncatePath,
    Op::Mmap,
];

impl Op {
    /// The operation with a number.
    pub fn from_number(number: u64) -> Option<Op> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        OPS.get(index).copied()
    }
}

/// [`Op::SetAttr`]: permission bits.
pub const CHANGE_MODE: u64 = 1;
/// [`Op::SetAttr`]: user and group, each unless it is `u32::MAX`.
pub const CHANGE_OWNER: u64 = 2;
/// [`Op::SetAttr`]: instants of access and modification, each unless it is [`TIME_STAYS`].
pub const CHANGE_TIMES: u64 = 4;
/// An instant that stays.
pub const TIME_STAYS: u64 = i64::MIN as u64;
/// An instant that is now.
pub const TIME_NOW: u64 = (i64::MIN + 1) as u64;

/// [`Op::Lock`]: try. Who waits tries again: a signal must be able to end that.
pub const LOCK_SET: u64 = 0;
/// [`Op::Lock`]: who is in the way.
pub const LOCK_GET: u64 = 1;
/// [`Op::Lock`], added: the lock is the open file's, not the process's.
pub const LOCK_OPEN_FILE: u64 = 2;

/// A call, copied out of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What for.
    pub op: Op,
    /// The open file that it is about; for paths the directory that they begin at, 0 for the root.
    pub handle: u64,
    /// The rest.
    pub args: [u64; 4],
    /// Bytes of data, or bytes wanted.
    pub len: usize,
}

impl Call {
    /// As words.
    pub fn words(&self) -> [u64; CALL_WORDS] {
        let [a, b, c, d] = self.args;
        [self.op as u64, self.handle, a, b, c, d, self.len as u64]
    }

    /// Out of words that anybody may have written.
    pub fn from_words(words: [u64; CALL_WORDS]) -> Option<Call> {
        let [op, handle, a, b, c, d, len] = words;
        let len = usize::try_from(len).ok().filter(|len| *len <= DATA_BYTES)?;
        Some(Call { op: Op::from_number(op)?, handle, args: [a, b, c, d], len })
    }
}

/// What is known of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatReply {
    /// Its number.
    pub ino: u64,
    /// Whether it is a directory.
    pub directory: bool,
    /// Permission bits.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Access, modification, change and birth, in nanoseconds since 1970.
    pub times: [i64; 4],
}

impl StatReply {
    /// Bytes of it in a slot.
    pub const BYTES: usize = 12 * 8;

    /// As bytes.
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
        ];
        let mut bytes = [0; StatReply::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Out of bytes.
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
        }
    }
}

/// An entry of a directory in an answer: cookie, inode, whether it is a directory, bytes of its name, and the
/// name.
pub mod entry {
    /// Bytes before the name.
    pub const HEAD_BYTES: usize = 18;

    /// An entry's head.
    pub fn encode(cookie: u64, ino: u64, directory: bool, name_bytes: u8) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&cookie.to_le_bytes());
        head[8..16].copy_from_slice(&ino.to_le_bytes());
        (head[16], head[17]) = (directory.into(), name_bytes);
        head
    }

    /// Cookie, inode, whether it is a directory, name.
    pub type Entry<'a> = (u64, u64, bool, &'a [u8]);

    /// The first of some entries, and the others.
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
            assert_eq!(Op::from_number(*op as u64), Some(*op));
        }
        assert_eq!(Op::from_number(0), None);
        assert_eq!(Op::from_number(OPS.len() as u64 + 1), None);
        assert_eq!(Op::from_number(u64::MAX), None);
    }

    #[test]
    fn calls_and_stat_replies_come_back() {
        let call = Call { op: Op::Lock, handle: 7, args: [1, 2, 3, u64::MAX], len: DATA_BYTES };
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
