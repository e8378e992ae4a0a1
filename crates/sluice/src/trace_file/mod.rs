//! [`TraceFile`]: a streaming writer of trace events that Perfetto opens.
//!
//! Format: the JSON array form of the Trace Event Format (Chrome's `about:tracing`): `M` names
//! processes and threads, `X` is a span with a start and a duration, `b` and `e` begin and end a
//! span that overlaps others of its track, `s` and `f` are the ends of an arrow between spans, `C` is a
//! counter, `i` an instant. Times are microseconds
//! with three decimals, which is whole nanoseconds.
//!
//! Events go through a buffer of fixed size to the file: memory does not grow with the run. The
//! array is closed by [`TraceFile::finish`], or, when the run stops early, when the writer is
//! dropped.
//!
//! [`BlockTracks`] draws what the block layer did beside what the drive did.

mod block_tracks;
#[cfg(test)]
mod tests;

pub use block_tracks::BlockTracks;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use clock::Nanos;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// Where an event is drawn: a process (a drive, the host), and a thread in it (a channel, a parallel
/// unit, a queue).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Track {
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
}

/// An argument of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// A number.
    Number(u64),
    /// A text.
    Text(&'a str),
}

/// Writes trace events as they happen.
///
/// Errors of the file are kept and returned by [`finish`](TraceFile::finish): a full disk does not
/// end a run.
#[derive(Debug)]
pub struct TraceFile<W: Write = File> {
    out: Option<W>,
    buffer: String,
    events: u64,
    error: Option<io::Error>,
}

impl TraceFile<File> {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> io::Result<TraceFile<File>> {
        Ok(TraceFile::new(File::create(path)?))
    }
}

impl<W: Write> TraceFile<W> {
    /// A trace written to `out`.
    pub fn new(out: W) -> TraceFile<W> {
        let mut buffer = String::with_capacity(BUFFER_BYTES + 1024);
        buffer.push_str("[\n");
        TraceFile { out: Some(out), buffer, events: 0, error: None }
    }

    /// Events written so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Names a process, and sorts it after those with a smaller number.
    pub fn name_process(&mut self, process: u32, name: &str) {
        self.begin('M', "process_name", process, 0, None);
        self.argument_text("name", name);
        self.begin('M', "process_sort_index", process, 0, None);
        self.argument("sort_index", process);
    }

    /// Names a thread, and sorts it after those of its process with a smaller number.
    pub fn name_track(&mut self, track: Track, name: &str) {
        self.begin('M', "thread_name", track.process, track.thread, None);
        self.argument_text("name", name);
        self.begin('M', "thread_sort_index", track.process, track.thread, None);
        self.argument("sort_index", track.thread);
    }

    /// A span on a track, whose spans must nest or follow each other: a transfer on a channel, an
    /// operation of a parallel unit's array.
    pub fn span(&mut self, track: Track, name: &str, start: Nanos, end: Nanos) {
        self.begin('X', name, track.process, track.thread, Some(start));
        self.buffer.push_str(",\"dur\":");
        self.microseconds(end.since(start));
        self.end();
    }

    /// A span on a track, with arguments.
    pub fn span_with(
        &mut self,
        track: Track,
        name: &str,
        start: Nanos,
        end: Nanos,
        arguments: &[(&str, Argument<'_>)],
    ) {
        self.begin('X', name, track.process, track.thread, Some(start));
        self.buffer.push_str(",\"dur\":");
        self.microseconds(end.since(start));
        self.buffer.push_str(",\"args\":{");
        for (i, (key, value)) in arguments.iter().enumerate() {
            if i > 0 {
                self.buffer.push(',');
            }
            quote(&mut self.buffer, key);
            self.buffer.push(':');
            match value {
                // Writing to a string cannot fail.
                Argument::Number(n) => drop(write!(self.buffer, "{n}")),
                Argument::Text(text) => quote(&mut self.buffer, text),
            }
        }
        self.buffer.push('}');
        self.end();
    }

    /// An arrow from one slice to another: from the slice that covers `at` on `from`, to the slice of
    /// `to` that covers or begins at `then`. `id` is unique among arrows.
    pub fn arrow(&mut self, id: u64, (from, at): (Track, Nanos), (to, then): (Track, Nanos)) {
        for (phase, track, at) in [('s', from, at), ('f', to, then)] {
            self.asynchronous(phase, track, "flow", "operation", id, at);
            if phase == 'f' {
                // Binds to the slice that encloses the end, not to the next one.
                self.buffer.push_str(",\"bp\":\"e\"");
            }
            self.end();
        }
    }

    /// Begins a span that may overlap others: an I/O. `id` is unique among the open ones of its
    /// `category`; spans of the same `id` nest.
    pub fn begin_async(&mut self, track: Track, category: &str, name: &str, id: u64, at: Nanos) {
        self.asynchronous('b', track, category, name, id, at);
        self.end();
    }

    /// The same, with numbers that say more of it.
    pub fn begin_async_with(
        &mut self,
        track: Track,
        category: &str,
        name: &str,
        id: u64,
        at: Nanos,
        arguments: &[(&str, u64)],
    ) {
        self.asynchronous('b', track, category, name, id, at);
        self.buffer.push_str(",\"args\":{");
        for (i, (key, value)) in arguments.iter().enumerate() {
            if i > 0 {
                self.buffer.push(',');
            }
            quote(&mut self.buffer, key);
            let _ = write!(self.buffer, ":{value}");
        }
        self.buffer.push('}');
        self.end();
    }

    /// Ends the span that [`begin_async`](TraceFile::begin_async) began with the same category, name
    /// and id.
    pub fn end_async(&mut self, track: Track, category: &str, name: &str, id: u64, at: Nanos) {
        self.asynchronous('e', track, category, name, id, at);
        self.end();
    }

    /// Something that takes no time.
    pub fn instant(&mut self, track: Track, name: &str, at: Nanos) {
        self.begin('i', name, track.process, track.thread, Some(at));
        self.buffer.push_str(",\"s\":\"t\"");
        self.end();
    }

    /// The value of a counter from `at` on: free lines, write amplification, queue depth. A value
    /// that is not finite is left out.
    pub fn counter(&mut self, process: u32, name: &str, at: Nanos, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.begin('C', name, process, 0, Some(at));
        self.argument("value", value);
    }

    /// Closes the array and writes what is left.
    ///
    /// # Errors
    /// The first error of the file in the whole run.
    pub fn finish(mut self) -> io::Result<()> {
        self.close();
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// An asynchronous event, without the closing brace.
    fn asynchronous(
        &mut self,
        phase: char,
        track: Track,
        category: &str,
        name: &str,
        id: u64,
        at: Nanos,
    ) {
        self.begin(phase, name, track.process, track.thread, Some(at));
        self.buffer.push_str(",\"cat\":");
        quote(&mut self.buffer, category);
        // Writing to a string cannot fail.
        let _ = write!(self.buffer, ",\"id\":\"{id:#x}\"");
    }

    /// Everything that all events have, without the closing brace.
    fn begin(&mut self, phase: char, name: &str, process: u32, thread: u32, at: Option<Nanos>) {
        if self.events > 0 {
            self.buffer.push_str(",\n");
        }
        self.events += 1;
        let _ = write!(
            self.buffer,
            "{{\"ph\":\"{phase}\",\"pid\":{process},\"tid\":{thread},\"name\":"
        );
        quote(&mut self.buffer, name);
        if let Some(at) = at {
            self.buffer.push_str(",\"ts\":");
            self.microseconds(at);
        }
    }

    fn end(&mut self) {
        self.buffer.push('}');
        if self.buffer.len() >= BUFFER_BYTES {
            self.write();
        }
    }

    fn argument(&mut self, key: &str, value: impl std::fmt::Display) {
        self.buffer.push_str(",\"args\":{");
        quote(&mut self.buffer, key);
        let _ = write!(self.buffer, ":{value}}}");
        self.end();
    }

    fn argument_text(&mut self, key: &str, value: &str) {
        self.buffer.push_str(",\"args\":{");
        quote(&mut self.buffer, key);
        self.buffer.push(':');
        quote(&mut self.buffer, value);
        self.buffer.push('}');
        self.end();
    }

    fn microseconds(&mut self, time: Nanos) {
        let _ = write!(self.buffer, "{}.{:03}", time.0 / 1000, time.0 % 1000);
    }

    fn write(&mut self) {
        if let (Some(out), None) = (&mut self.out, &self.error) {
            self.error = out.write_all(self.buffer.as_bytes()).err();
        }
        self.buffer.clear();
    }

    fn close(&mut self) {
        if self.out.is_none() {
            return;
        }
        self.buffer.push_str("\n]\n");
        self.write();
        if let (Some(out), None) = (&mut self.out, &self.error) {
            self.error = out.flush().err();
        }
        self.out = None;
    }
}

impl<W: Write> Drop for TraceFile<W> {
    /// Closes the array; an error has nobody left to hear it.
    fn drop(&mut self) {
        self.close();
    }
}

/// A JSON string.
fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
