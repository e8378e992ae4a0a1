//! The file of a drive's state. `docs/format/state.md` is the byte map.
//!
//! Invariants: a file is written under another name and renamed, so it is complete or absent. It is
//! never changed afterwards, and a file that is refused is left as it is.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use collections::{HeaderError, Seal, SealedHeader, put_at, u32_at, u64_at};

use super::saved_stack::SavedStack;
use super::state_key::StateKey;

/// Version of the file's form. The form of the state itself is that of the program which wrote it.
const STATE_VERSION: u32 = 1;
/// Bytes of the header.
const HEADER_BYTES: usize = 64;
const KEY_AT: usize = 16;
const TEXT_BYTES_AT: usize = 32;
const STATE_BYTES_AT: usize = 40;
const TEXT_CRC_AT: usize = 48;
const STATE_CRC_AT: usize = 52;
/// Upper bound of the bytes of the inputs' text.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the buffers.
const BUFFER_BYTES: usize = 1 << 20;

const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICEST",
    version: STATE_VERSION,
    version_bytes: 4,
    seal: Seal::of_bytes_before(HEADER_BYTES - 4),
};

/// Reasons why a state cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or a folder cannot be read or written.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The file is none of a drive's state, or its header is damaged.
    #[error("{} is not the state of a drive", .path.display())]
    NotAState {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another version of this program.
    #[error("{} is a state of version {found}, known is version {STATE_VERSION}", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file was written by another program, or is the state of another drive or after another
    /// preconditioning.
    #[error("{} is another state: it has `{found}` where `{wanted}` is asked for", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The first input that differs.
        found: String,
        /// This input of the drive.
        wanted: String,
    },
    /// The contents are damaged or incomplete.
    #[error("{} is damaged: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The state is larger than the limit.
    #[error("the state is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
}

impl StateError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
        move |source| StateError::Io { doing, path: path.to_owned(), source }
    }
}

/// Counts and checks the bytes that pass.
struct Checked<T> {
    inner: T,
    bytes: u64,
    limit: u64,
    crc: u32,
    /// The first error.
    failure: Option<StreamFailure>,
}

#[derive(Debug)]
enum StreamFailure {
    Limit,
    Io(io::Error),
}

impl<T> Checked<T> {
    fn new(inner: T, limit: u64) -> Checked<T> {
        Checked { inner, bytes: 0, limit, crc: 0, failure: None }
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }
}

impl<T: Read> Read for Checked<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.limit - self.bytes).unwrap_or(usize::MAX);
        let size = into.len().min(left);
        let count = self.inner.read(&mut into[..size])?;
        self.pass(&into[..count]);
        Ok(count)
    }
}

impl<T: Write> Write for Checked<T> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if from.len() as u64 > self.limit - self.bytes {
            self.failure = Some(StreamFailure::Limit);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        match self.inner.write(from) {
            Ok(count) => {
                self.pass(&from[..count]);
                Ok(count)
            }
            Err(error) => {
                let kind = error.kind();
                if kind != io::ErrorKind::Interrupted {
                    self.failure = Some(StreamFailure::Io(error));
                }
                Err(kind.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a state to a new file of at most `limit` bytes. Returns its number of bytes.
pub(super) fn write(
    mut file: &File,
    path: &Path,
    key: &StateKey,
    state: &SavedStack<'_>,
    limit: u64,
) -> Result<u64, StateError> {
    let writing = || StateError::io("writing", path);
    let text = key.text().as_bytes();
    let mut header = [0; HEADER_BYTES];
    HEADER.begin(&mut header);
    header[KEY_AT..KEY_AT + 16].copy_from_slice(&key.digest().to_le_bytes());
    file.write_all(&header).map_err(writing())?;
    file.write_all(text).map_err(writing())?;
    let before = HEADER_BYTES as u64 + text.len() as u64;
    let mut counted = Checked::new(file, limit.saturating_sub(before));
    // The checksum is that of the bytes before the buffer: it sees them in large pieces.
    let buffered = BufWriter::with_capacity(BUFFER_BYTES, &mut counted);
    let buffered = postcard::to_io(state, buffered);
    let ended = buffered.map_err(io::Error::other).and_then(|mut buffered| buffered.flush());
    let Checked { bytes, crc, failure, .. } = counted;
    match (ended, failure) {
        (Ok(()), None) => {}
        (_, Some(StreamFailure::Limit)) => return Err(StateError::TooLarge { limit }),
        (_, Some(StreamFailure::Io(error))) | (Err(error), None) => return Err(writing()(error)),
    }
    put_at(&mut header, TEXT_BYTES_AT, &(text.len() as u64).to_le_bytes());
    put_at(&mut header, STATE_BYTES_AT, &bytes.to_le_bytes());
    put_at(&mut header, TEXT_CRC_AT, &crc32c::crc32c(text).to_le_bytes());
    put_at(&mut header, STATE_CRC_AT, &crc.to_le_bytes());
    HEADER.seal.store(&mut header);
    file.seek(SeekFrom::Start(0)).map_err(writing())?;
    file.write_all(&header).map_err(writing())?;
    file.sync_data().map_err(writing())?;
    Ok(before + bytes)
}

/// Reads a state and passes it to `restore`.
pub(super) fn read<T>(
    mut file: &File,
    path: &Path,
    key: &StateKey,
    restore: impl FnOnce(SavedStack<'_>) -> T,
) -> Result<T, StateError> {
    let reading = || StateError::io("reading", path);
    let damaged = |why: &str| StateError::Damaged { path: path.to_owned(), why: why.to_owned() };
    let not_a_state = || StateError::NotAState { path: path.to_owned() };
    let size = file.metadata().map_err(reading())?.len();
    if size < HEADER_BYTES as u64 {
        return Err(not_a_state());
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).map_err(reading())?;
    HEADER.check(&header).map_err(|error| match error {
        HeaderError::Version(found) => StateError::Version { path: path.to_owned(), found },
        HeaderError::Magic | HeaderError::Truncated | HeaderError::Seal(_) => not_a_state(),
    })?;
    let field = |at| u64_at(&header, at).unwrap_or(0);
    let (text_bytes, bytes) = (field(TEXT_BYTES_AT), field(STATE_BYTES_AT));
    let end = (HEADER_BYTES as u64).checked_add(text_bytes).and_then(|end| end.checked_add(bytes));
    if text_bytes > TEXT_BYTES_MAX || end != Some(size) {
        return Err(damaged("its length is not that which its header gives"));
    }
    let mut text = vec![0; text_bytes as usize];
    file.read_exact(&mut text).map_err(reading())?;
    if crc32c::crc32c(&text) != u32_at(&header, TEXT_CRC_AT).unwrap_or(0) {
        return Err(damaged("the checksum of its inputs does not match"));
    }
    let text = String::from_utf8_lossy(&text);
    if let Some((found, wanted)) = key.difference(&text) {
        return Err(StateError::Foreign { path: path.to_owned(), found, wanted });
    }
    let from = BufReader::with_capacity(BUFFER_BYTES, Checked::new(file, bytes));
    let mut piece = vec![0; BUFFER_BYTES];
    let state = postcard::from_io((from, &mut piece[..]));
    let (state, (from, _)): (SavedStack<'_>, (BufReader<Checked<&File>>, _)) =
        state.map_err(|error| damaged(&error.to_string()))?;
    let checked = from.get_ref();
    if checked.bytes != bytes || checked.crc != u32_at(&header, STATE_CRC_AT).unwrap_or(0) {
        return Err(damaged("the checksum of its contents does not match"));
    }
    Ok(restore(state))
}
