//! [`TraceFile`]: a streaming writer of trace events for Perfetto.
//!
//! The format is the JSON array form of the Trace Event Format (Chrome's `about:tracing`). `M`
//! names processes and threads. `X` is a span with a start and a duration. `b` and `e` begin and
//! end a span that overlaps others of its track. `s` and `f` are the ends of an arrow between
//! spans. `C` is a counter, `i` an instant. Times are microseconds with three decimals, that is,
//! whole nanoseconds.
//!
//! Events pass through a buffer of fixed size, so memory does not grow with the run.
//! [`TraceFile::finish`] closes the array; if the run stops early, dropping the writer closes it.
//!
//! [`BlockTracks`] draws the events of the block layer beside those of the drive.

mod block_tracks;
#[cfg(test)]
mod tests;

pub use block_tracks::{BlockTracks, NamedSubmitter};

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use time::Nanos;

/// Size of the write buffer in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Location of an event: a process (a drive, the host) and a thread in it (a channel, a parallel
/// unit, a queue).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Track {
    /// Process id.
    pub process: u32,
    /// Thread id.
    pub thread: u32,
}

/// The value of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentValue<'a> {
    /// A number.
    Number(u64),
    /// A text.
    Text(&'a str),
}

/// A named argument of an event.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    /// Name of the argument.
    pub name: &'a str,
    /// Value of the argument.
    pub value: ArgumentValue<'a>,
}

impl<'a> Argument<'a> {
    /// Returns an argument that is a number.
    pub fn number(name: &'a str, number: u64) -> Argument<'a> {
        Argument { name, value: ArgumentValue::Number(number) }
    }

    /// Returns an argument that is a text.
    pub fn text(name: &'a str, text: &'a str) -> Argument<'a> {
        Argument { name, value: ArgumentValue::Text(text) }
    }
}

/// A time on a track.
#[derive(Clone, Copy, Debug)]
pub struct TrackTime {
    /// The track.
    pub track: Track,
    /// The time.
    pub at: Nanos,
}

/// Writes trace events as they happen.
///
/// Errors of the file are stored and returned by [`finish`](TraceFile::finish): a full disk does
/// not end a run.
#[derive(Debug)]
pub struct TraceFile<W: Write = File> {
    out: Option<W>,
    buffer: String,
    events: u64,
    error: Option<io::Error>,
}

impl TraceFile<File> {
    /// Creates or truncates the file.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn create(path: &Path) -> io::Result<TraceFile<File>> {
        Ok(TraceFile::new(File::create(path)?))
    }
}

impl<W: Write> TraceFile<W> {
    /// Returns a trace that is written to `out`.
    pub fn new(out: W) -> TraceFile<W> {
        let mut buffer = String::with_capacity(BUFFER_BYTES + 1024);
        buffer.push_str("[\n");
        TraceFile { out: Some(out), buffer, events: 0, error: None }
    }

    /// Returns the number of events written so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Names a process; processes are sorted by id.
    pub fn name_process(&mut self, process: u32, name: &str) {
        self.begin('M', "process_name", process, 0, None);
        self.argument_text("name", name);
        self.begin('M', "process_sort_index", process, 0, None);
        self.argument("sort_index", process);
    }

    /// Names a thread; the threads of a process are sorted by id.
    pub fn name_track(&mut self, track: Track, name: &str) {
        self.begin('M', "thread_name", track.process, track.thread, None);
        self.argument_text("name", name);
        self.begin('M', "thread_sort_index", track.process, track.thread, None);
        self.argument("sort_index", track.thread);
    }

    /// Writes a span. The spans of a track must nest or follow each other, such as transfers on a
    /// channel or operations of a parallel unit's array.
    pub fn span(&mut self, track: Track, name: &str, start: Nanos, end: Nanos) {
        self.begin('X', name, track.process, track.thread, Some(start));
        self.buffer.push_str(",\"dur\":");
        self.microseconds(end.since(start));
        self.end();
    }

    /// Writes a span with arguments.
    pub fn span_with(
        &mut self,
        track: Track,
        name: &str,
        start: Nanos,
        end: Nanos,
        arguments: &[Argument<'_>],
    ) {
        self.begin('X', name, track.process, track.thread, Some(start));
        self.buffer.push_str(",\"dur\":");
        self.microseconds(end.since(start));
        self.arguments(arguments);
        self.end();
    }

    /// Writes the arguments of an event.
    fn arguments(&mut self, arguments: &[Argument<'_>]) {
        self.buffer.push_str(",\"args\":{");
        for (i, argument) in arguments.iter().enumerate() {
            if i > 0 {
                self.buffer.push(',');
            }
            quote(&mut self.buffer, argument.name);
            self.buffer.push(':');
            match argument.value {
                // Writing to a string cannot fail.
                ArgumentValue::Number(n) => drop(write!(self.buffer, "{n}")),
                ArgumentValue::Text(text) => quote(&mut self.buffer, text),
            }
        }
        self.buffer.push('}');
    }

    /// Writes an arrow from the slice that covers `from` to the slice that covers or begins at
    /// `to`. `id` is unique among arrows.
    pub fn arrow(&mut self, id: u64, from: TrackTime, to: TrackTime) {
        for (phase, TrackTime { track, at }) in [('s', from), ('f', to)] {
            self.asynchronous(phase, track, "flow", "operation", id, at);
            if phase == 'f' {
                // Binds to the slice that encloses the end, not to the next one.
                self.buffer.push_str(",\"bp\":\"e\"");
            }
            self.end();
        }
    }

    /// Begins a span that may overlap others, such as an I/O. `id` is unique among the open spans
    /// of its `category`; spans with equal `id` nest.
    pub fn begin_async(&mut self, track: Track, category: &str, name: &str, id: u64, at: Nanos) {
        self.asynchronous('b', track, category, name, id, at);
        self.end();
    }

    /// Begins a span as [`begin_async`](TraceFile::begin_async) does, with arguments.
    pub fn begin_async_with(
        &mut self,
        track: Track,
        category: &str,
        name: &str,
        id: u64,
        at: Nanos,
        arguments: &[Argument<'_>],
    ) {
        self.asynchronous('b', track, category, name, id, at);
        self.arguments(arguments);
        self.end();
    }

    /// Ends the span that [`begin_async`](TraceFile::begin_async) began with the same category, name
    /// and id.
    pub fn end_async(&mut self, track: Track, category: &str, name: &str, id: u64, at: Nanos) {
        self.asynchronous('e', track, category, name, id, at);
        self.end();
    }

    /// Writes an event without duration.
    pub fn instant(&mut self, track: Track, name: &str, at: Nanos) {
        self.begin('i', name, track.process, track.thread, Some(at));
        self.buffer.push_str(",\"s\":\"t\"");
        self.end();
    }

    /// Writes the value of a counter from `at` on, such as free lines, write amplification or queue
    /// depth. A value that is not finite is skipped.
    pub fn counter(&mut self, process: u32, name: &str, at: Nanos, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.begin('C', name, process, 0, Some(at));
        self.argument("value", value);
    }

    /// Closes the array and writes the buffered events.
    ///
    /// # Errors
    /// The first error of the file during the run.
    pub fn finish(mut self) -> io::Result<()> {
        self.close();
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Writes an asynchronous event without its closing brace.
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

    /// Writes the fields that all events have, without the closing brace.
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
    /// Closes the array. Errors are ignored because no caller can receive them.
    fn drop(&mut self) {
        self.close();
    }
}

/// Writes a JSON string.
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
