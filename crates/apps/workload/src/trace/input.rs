//! [`TraceInput`]: the text of a trace file, which may be compressed.
//!
//! The first bytes of a file say how it is compressed (gzip \[RFC1952\], Zstandard \[RFC8878\]); its
//! name does not matter. Memory is about twice the window of the compression: 32 KiB in gzip, at
//! most 128 MiB in Zstandard. Without `--ultra` and `--long`, the program `zstd` uses 8 MiB or less.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Last bytes of the magic number of a frame that decoders skip; the first is 0x50 to 0x5f.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

/// Bytes that are read from a file at a time.
const FILE_BUFFER_BYTES: usize = 64 * 1024;

/// The text of a trace file.
pub(super) enum TraceInput {
    Plain(BufReader<CountedFile>),
    Gzip(MultiGzDecoder<BufReader<CountedFile>>),
    Zstd(Box<ZstdFrames>),
}

impl TraceInput {
    /// Opens a file; returns its text and its size in bytes.
    pub(super) fn open(path: &Path) -> io::Result<(TraceInput, u64)> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let file = CountedFile { file, bytes_read: 0 };
        let mut file = BufReader::with_capacity(FILE_BUFFER_BYTES, file);
        let start = file.fill_buf()?;
        let is_zstd = start.starts_with(&ZSTD_MAGIC)
            || start.first().is_some_and(|first| first & 0xf0 == 0x50)
                && start[1..].starts_with(&ZSTD_SKIPPABLE);
        let input = match start {
            _ if is_zstd => TraceInput::Zstd(Box::new(ZstdFrames::new(file))),
            start if start.starts_with(&GZIP_MAGIC) => TraceInput::Gzip(MultiGzDecoder::new(file)),
            _ => TraceInput::Plain(file),
        };
        Ok((input, bytes))
    }

    /// Returns the name of the compression; `None` for plain text.
    pub(super) fn compression(&self) -> Option<&'static str> {
        match self {
            TraceInput::Plain(_) => None,
            TraceInput::Gzip(_) => Some("gzip"),
            TraceInput::Zstd(_) => Some("zstd"),
        }
    }

    /// Returns the number of bytes of the file that were read or decompressed.
    pub(super) fn file_bytes_read(&self) -> u64 {
        let file = match self {
            TraceInput::Plain(file) => file,
            TraceInput::Gzip(decoder) => decoder.get_ref(),
            TraceInput::Zstd(frames) => &frames.file,
        };
        file.get_ref().bytes_read - file.buffer().len() as u64
    }
}

impl Read for TraceInput {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            TraceInput::Plain(file) => file.read(into),
            TraceInput::Gzip(decoder) => decoder.read(into),
            TraceInput::Zstd(frames) => frames.read(into),
        }
    }
}

impl std::fmt::Debug for TraceInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes_read = self.file_bytes_read();
        f.debug_struct("TraceInput")
            .field("compression", &self.compression())
            .field("file_bytes_read", &bytes_read)
            .finish()
    }
}

/// A file that counts the bytes read from it.
#[derive(Debug)]
pub(super) struct CountedFile {
    file: File,
    bytes_read: u64,
}

impl Read for CountedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.bytes_read += count as u64;
        Ok(count)
    }
}

/// Decompresses the frames of a Zstandard file, one after the other, and verifies their checksums.
pub(super) struct ZstdFrames {
    file: BufReader<CountedFile>,
    decoder: FrameDecoder,
    /// Whether a frame has begun, and its checksum is to be verified.
    is_in_frame: bool,
}

impl ZstdFrames {
    fn new(file: BufReader<CountedFile>) -> ZstdFrames {
        ZstdFrames { file, decoder: FrameDecoder::new(), is_in_frame: false }
    }

    /// Begins the next frame with data; returns `false` at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while !self.file.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.file) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut frame = (&mut self.file).take(length.into());
                    if io::copy(&mut frame, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    /// Verifies the checksum of the frame that has been read, if it has one.
    fn end_frame(&mut self) -> io::Result<()> {
        self.is_in_frame = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(io::Error::other("the checksum of a frame is wrong"));
        }
        Ok(())
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_in_frame {
                self.is_in_frame = self.begin_frame()?;
                if !self.is_in_frame {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.file, strategy);
                decoded.map_err(io::Error::other)?;
            }
            match self.decoder.read(into)? {
                0 => self.end_frame()?,
                count => return Ok(count),
            }
        }
    }
}
