//! [`Passes`]: going through the bytes of a file that is mapped, a piece at a time: bringing them into its image,
//! and what mappings have changed of them back to the store.
//!
//! What was changed is found by comparison with the store, block by block, in what was ever mapped: a pass reads
//! all of that, twice, and writes what differs. It does so when the file is synced, and when it is mapped no more.
//!
//! One pass at a time; while it is at a file nothing else changes that file's bytes by calls.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use block::Device;
use ring::{Iova, Region};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use slots::Call;
use store::{BLOCK, Buffer, Error, Ino, Op, Outcome, Request};

use crate::Service;
use crate::calls::no;
use crate::ends::Then;
use crate::images::{Image, Range, common};
use crate::open_files::{OpenFile, flags as f};
use crate::service::{Begun, From};

/// Bytes that are looked at at once.
const PIECE: usize = slots::DATA;
/// The number of a pass's request at the store.
pub(crate) const PASS: u64 = u64::MAX - 1;
/// All bytes of a file.
const ALL: Range = (0, u64::MAX);

/// What a pass is for.
#[derive(Clone, Copy, Debug)]
enum What {
    /// Brings a range into the image; then a socket with the number stands for a mapping.
    Map { from: From, range: Range, writes: bool, number: u64, flags: u64 },
    /// Brings changes of a range back, and makes the file durable.
    Sync { from: From, range: Range, data_only: bool },
    /// Brings all changes back.
    Back,
    /// The same, and there is no image any more, unless it is mapped again.
    Release,
    /// Makes everything durable; of no file.
    SyncAll { from: From },
}

#[derive(Clone, Copy, Debug)]
struct Job {
    ino: Ino,
    what: What,
}

/// What the pass at the head does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It waits until nobody changes the file.
    Begin,
    /// It asks for the piece that begins there.
    Read(u64),
    /// The store has been asked.
    Asked(u64),
    /// It looks for changes from a byte of the piece on, which has so many.
    Compare(u64, usize, usize),
    /// The store has been told so many bytes, up to that one.
    Told(u64, usize, usize, u32),
    /// It has gone through everything, or as far as it went.
    Over(Result<(), i64>),
}

/// All that are to be made, in order.
#[derive(Debug)]
pub(crate) struct Passes {
    jobs: VecDeque<Job>,
    step: Step,
    /// What the one at the head goes through.
    ranges: [Option<Range>; 2],
    /// Memory that the store reads into, and writes from.
    memory: Option<(Arc<Region>, Iova)>,
    store: Vec<u8>,
    image: Vec<u8>,
}

impl Default for Passes {
    fn default() -> Passes {
        let (jobs, ranges) = (VecDeque::new(), [None; 2]);
        let (store, image) = (Vec::new(), Vec::new());
        Passes { jobs, step: Step::Begin, ranges, memory: None, store, image }
    }
}

impl Passes {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether a pass is at a file, or about to be: whoever wants to change it waits.
    pub(crate) fn is_at(&self, ino: Ino) -> bool {
        self.jobs.front().is_some_and(|job| job.ino == ino)
    }

    /// What the pass goes through next.
    fn next_range(&mut self) -> Step {
        self.ranges[0].map_or(Step::Over(Ok(())), |(begin, _)| Step::Read(begin))
    }

    fn next_piece(&mut self, at: u64) -> Step {
        match self.ranges[0] {
            Some((_, end)) if at < end => Step::Read(at),
            _ => {
                self.ranges.rotate_left(1);
                self.ranges[1] = None;
                self.next_range()
            }
        }
    }

    /// The next bytes of a piece that mappings have changed, whole blocks if the file has them.
    fn changed(&self, from: usize) -> Option<(usize, usize)> {
        let len = self.image.len();
        let (store, image) = (&self.store[..len], &self.image[..]);
        let differs = |at: &usize| {
            let end = (at + BLOCK).min(len);
            store[*at..end] != image[*at..end]
        };
        let begin = (from..len).step_by(BLOCK).find(differs)?;
        let end = (begin..len).step_by(BLOCK).find(|at| !differs(at)).unwrap_or(len);
        Some((begin, end))
    }
}

fn errno(error: Error) -> i64 {
    -i64::from(error.errno())
}

/// What a failing system call of the service's is to a program.
fn wrong(error: &std::io::Error) -> i64 {
    match error.raw_os_error() {
        // A memory file without room.
        None | Some(28) => no(Errno::NOMEM),
        Some(errno) => -i64::from(errno),
    }
}

impl<D: Device> Service<D> {
    /// Begins what [`slots::Op::Map`] asks for.
    pub(crate) fn map(&mut self, from: From, call: &Call) -> Result<Begun, i64> {
        let Call { handle, args: [offset, len, writes, number], .. } = *call;
        let begun = self.map_inner(from, handle, (offset, len, writes != 0, number));
        if begun.is_err() {
            self.door.refuse(number);
        }
        begun
    }

    fn map_inner(
        &mut self,
        from: From,
        handle: u64,
        (offset, len, writes, number): (u64, u64, bool, u64),
    ) -> Result<Begun, i64> {
        let file = self.files.get(&handle).ok_or(no(Errno::BADF))?;
        if file.directory {
            return Err(no(Errno::NODEV));
        }
        if !file.readable() || writes && !file.writable() {
            return Err(no(Errno::ACCESS));
        }
        let block = BLOCK as u64;
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(block));
        let end = end.filter(|end| i64::try_from(*end).is_ok() && len > 0);
        let range = (offset / block * block, end.ok_or(no(Errno::INVAL))?);
        let what = What::Map { from, range, writes, number, flags: file.flags & !f::SYNC };
        let job = Job { ino: file.ino, what };
        if !self.watches() {
            return Ok(Begun::Later);
        }
        // Whoever closes it meanwhile: the mapping's.
        self.store.open(job.ino).map_err(errno)?;
        self.passes.jobs.push_back(job);
        Ok(Begun::UnderWay)
    }

    /// Whether mappings may have changed a file.
    pub(crate) fn is_written_by_mappings(&self, ino: Ino) -> bool {
        // Also if the first that may is about to be there: it comes before.
        self.images.get(ino).is_some_and(|image| image.written)
            || self.passes.jobs.iter().any(|job| job.ino == ino)
    }

    /// Makes a file durable with what mappings have changed of `len` bytes, 0 for all.
    pub(crate) fn sync_mapped(
        &mut self,
        from: From,
        ino: Ino,
        data_only: bool,
        (offset, len): (u64, u64),
    ) -> Begun {
        let range = if len == 0 { ALL } else { (offset, offset.saturating_add(len)) };
        let what = What::Sync { from, range, data_only };
        self.passes.jobs.push_back(Job { ino, what });
        Begun::UnderWay
    }

    /// Makes everything durable, with what mappings have changed.
    pub(crate) fn sync_all_mapped(&mut self, from: From) -> Begun {
        let back = self.images.inodes().map(|ino| Job { ino, what: What::Back });
        self.passes.jobs.extend(back);
        self.passes.jobs.push_back(Job { ino: Ino(u64::MAX), what: What::SyncAll { from } });
        Begun::UnderWay
    }

    /// Whether anybody maps a file, or any file.
    pub(crate) fn is_mapped(&self, ino: Option<Ino>) -> bool {
        self.files.values().any(|file| file.mapping && ino.is_none_or(|ino| ino == file.ino))
    }

    /// A mapping of a file is gone.
    pub(crate) fn unmapped(&mut self, ino: Ino) {
        if !self.is_mapped(Some(ino)) {
            self.passes.jobs.push_back(Job { ino, what: What::Release });
        }
    }

    /// Takes passes one step on; returns whether anything moved.
    pub(crate) fn pass(&mut self) -> bool {
        let mut moved = false;
        while let Some(job) = self.passes.jobs.front().copied() {
            if !self.step(job) {
                break;
            }
            moved = true;
        }
        moved
    }

    fn step(&mut self, job: Job) -> bool {
        let step = match self.passes.step {
            Step::Begin if self.under_way.changes(job.ino) => return false,
            Step::Begin => match self.begin_pass(job) {
                Ok(()) => self.passes.next_range(),
                Err(answer) => Step::Over(Err(answer)),
            },
            Step::Read(at) => {
                let range = self.passes.ranges[0].unwrap_or((at, at));
                // What nobody has touched is as it was: nothing of a hole is read back.
                let at = match job.what {
                    What::Map { .. } => at,
                    _ => self.images.get(job.ino).map_or(range.1, |image| image.next_data(at)),
                };
                if at >= range.1 {
                    self.passes.step = self.passes.next_piece(range.1);
                    return true;
                }
                let len = (range.1 - at).min(PIECE as u64) as usize;
                let Some((_, memory)) = self.passes.memory else { return false };
                let data = Buffer { at: memory, len: len as u32 };
                if !self.ask_for_pass(Op::Read { ino: job.ino, offset: at, data }) {
                    return false;
                }
                Step::Asked(at)
            }
            Step::Asked(_) | Step::Told(..) => return false,
            Step::Compare(at, from, len) => match self.passes.changed(from) {
                None => self.passes.next_piece(at + len as u64),
                Some((begin, end)) => {
                    let Some((_, memory)) = self.passes.memory else { return false };
                    let bytes = (end - begin) as u32;
                    let data = Buffer { at: memory.offset(begin as u64), len: bytes };
                    let offset = at + begin as u64;
                    if !self.ask_for_pass(Op::Write { ino: job.ino, offset, data }) {
                        return false;
                    }
                    Step::Told(at, end, len, bytes)
                }
            },
            Step::Over(result) => {
                if !self.over(job, result) {
                    return false;
                }
                self.passes.jobs.pop_front();
                Step::Begin
            }
        };
        self.passes.step = step;
        true
    }

    fn ask_for_pass(&mut self, op: Op) -> bool {
        self.store.submit(self.now, Request { id: PASS, op, time: self.time }).is_ok()
    }

    /// Finds out what the pass has to go through.
    fn begin_pass(&mut self, job: Job) -> Result<(), i64> {
        self.passes.ranges = [None; 2];
        let ino = job.ino;
        let written = |image: &&Image| image.written;
        match job.what {
            What::SyncAll { .. } => return Ok(()),
            What::Map { range, .. } => self.begin_map(ino, range)?,
            What::Sync { range, .. } => {
                let image = self.images.get(ino).filter(written);
                self.passes.ranges[0] = image.and_then(|image| common(image.range, range));
            }
            What::Release if self.is_mapped(Some(ino)) => {}
            What::Back | What::Release => {
                // Of a file without a name that nobody has open nothing is wanted.
                let named = self.store.stat(ino).is_ok_and(|stat| stat.links > 0);
                let wanted = named || self.files.values().any(|file| file.ino == ino);
                let image = self.images.get(ino).filter(written);
                self.passes.ranges[0] = image.filter(|_| wanted).map(|image| image.range);
            }
        }
        if self.passes.ranges[0].is_none() {
            return Ok(());
        }
        let size = self.store.stat(ino).map_err(errno)?.size;
        let [first, second] = self.passes.ranges;
        let within = |range: Option<Range>| range.and_then(|range| common(range, (0, size)));
        self.passes.ranges = match (within(first), within(second)) {
            (None, second) => [second, None],
            ranges => ranges.into(),
        };
        if self.passes.memory.is_none() {
            let memory = Region::shared(PIECE).map_err(|error| wrong(&error))?;
            let at = self.store.memory().register(&memory).map_err(|_| no(Errno::NOMEM))?;
            self.passes.memory = Some((memory, at));
        }
        Ok(())
    }

    /// What an image has to be given for a range to be mapped; makes it, if there is none.
    fn begin_map(&mut self, ino: Ino, range: Range) -> Result<(), i64> {
        let stat = self.store.stat(ino).map_err(errno)?;
        let had = self.images.get(ino).map(|image| image.range).filter(|had| had.1 > 0);
        let had = had.unwrap_or((range.0, range.0));
        let more = |range: Range| (range.0 < range.1).then_some(range);
        let ranges = [more((range.0.min(had.0), had.0)), more((had.1, range.1.max(had.1)))];
        // Holes count: the store does not say where they are.
        let within = ranges.iter().flatten().filter_map(|range| common(*range, (0, stat.size)));
        let bytes: u64 = within.map(|(begin, end)| end - begin).sum();
        if bytes > 0 && available_memory().is_some_and(|available| bytes > available) {
            return Err(no(Errno::NOMEM));
        }
        if self.images.get(ino).is_none() {
            let image = Image::new(stat.size).map_err(|error| wrong(&error))?;
            self.store.open(ino).map_err(errno)?;
            self.images.insert(ino, image);
        }
        self.passes.ranges = match ranges {
            [None, second] => [second, None],
            ranges => ranges,
        };
        Ok(())
    }

    /// A request of the pass has ended.
    pub(crate) fn pass_ended(&mut self, result: Result<Outcome, Error>) {
        let Some(job) = self.passes.jobs.front().copied() else { return };
        let got = match result {
            Ok(Outcome::Bytes { len, .. }) => Ok(len),
            Ok(_) => Ok(0),
            Err(error) => Err(errno(error)),
        };
        self.passes.step = match (self.passes.step, got) {
            (_, Err(answer)) => Step::Over(Err(answer)),
            (Step::Asked(at), Ok(len)) => match self.piece(job, at, len as usize) {
                Ok(step) => step,
                Err(error) => Step::Over(Err(wrong(&error))),
            },
            // Fewer than there were: space has run out.
            (Step::Told(_, _, _, wanted), Ok(len)) if len < wanted => {
                Step::Over(Err(no(Errno::NOSPC)))
            }
            (Step::Told(at, from, len, _), Ok(bytes)) => {
                self.count_written_back(bytes);
                Step::Compare(at, from, len)
            }
            (step, Ok(_)) => step,
        };
    }

    /// A piece of the store's is there.
    fn piece(&mut self, job: Job, at: u64, len: usize) -> std::io::Result<Step> {
        let passes = &mut self.passes;
        let (Some((memory, _)), Some(image)) = (&passes.memory, self.images.get(job.ino)) else {
            return Ok(Step::Over(Ok(())));
        };
        passes.store.resize(len, 0);
        memory.read(0, &mut passes.store);
        if let What::Map { .. } = job.what {
            // Zeros are there already.
            for (i, block) in passes.store.chunks(BLOCK).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    image.write(at + (i * BLOCK) as u64, block)?;
                }
            }
            // A file is no shorter meanwhile: nobody changes it.
            return Ok(if len == 0 {
                Step::Over(Ok(()))
            } else {
                passes.next_piece(at + len as u64)
            });
        }
        passes.image.resize(len, 0);
        let got = image.read(at, &mut passes.image)?;
        // Of an image that a process has made shorter only what it has.
        memory.write(0, &passes.image[..got]);
        passes.image.truncate(got);
        Ok(if len == 0 { Step::Over(Ok(())) } else { Step::Compare(at, 0, len) })
    }

    /// Does what the pass was for; `false` if the store is busy.
    fn over(&mut self, job: Job, result: Result<(), i64>) -> bool {
        let ino = job.ino;
        match (job.what, result) {
            (What::Map { from, .. }, result) => {
                let mapped = result.and_then(|()| self.mapped(job));
                if let (What::Map { number, .. }, Err(_)) = (job.what, mapped) {
                    self.door.refuse(number);
                    let _ = self.store.close(ino);
                    if let Some(image) = self.images.get(ino) {
                        // What it was given so far may be something else the next time.
                        let _ = image.forget_outside();
                    }
                    self.unmapped(ino);
                }
                self.answer(from, mapped.unwrap_or_else(|answer| answer));
            }
            (What::Sync { from, .. }, Err(answer)) => self.answer(from, answer),
            (What::Sync { from, data_only, .. }, Ok(())) => {
                let sync = Op::Sync { ino, data_only };
                return self.ask(from, sync, Then::Answer) != Begun::Later;
            }
            (What::SyncAll { from }, _) => {
                return self.ask(from, Op::SyncAll, Then::Answer) != Begun::Later;
            }
            (What::Back, _) => {}
            (What::Release, result) => {
                if result.is_err() {
                    self.count_lost();
                }
                if !self.is_mapped(Some(ino)) && self.images.remove(ino) {
                    // It was open, by the image; a store that has failed has nothing to close.
                    let _ = self.store.close(ino);
                }
            }
        }
        true
    }

    /// A socket stands for a mapping from now on, and has a descriptor of the image; the answer.
    fn mapped(&mut self, job: Job) -> Result<i64, i64> {
        let What::Map { range, writes, number, flags, .. } = job.what else {
            return Err(no(Errno::INVAL));
        };
        let ino = job.ino;
        let image = self.images.get_mut(ino).ok_or(no(Errno::IO))?;
        image.range = match image.range {
            (_, 0) => range,
            had => (had.0.min(range.0), had.1.max(range.1)),
        };
        let memory = image.descriptor(writes).map_err(|error| wrong(&error))?;
        let end = self.door.take(number).map_err(no)?;
        hand_over(&end, &memory).map_err(no)?;
        image.written |= writes;
        if let Some(before) = self.files.remove(&number) {
            self.gone(number, &before);
        }
        let mapping = OpenFile { mapping: true, ..OpenFile::new(ino, flags, end) };
        self.files.insert(number, mapping);
        self.count_mapped();
        self.close_if_gone(number);
        Ok(ino.0 as i64)
    }
}

/// Hands a process the descriptor of an image.
fn hand_over(end: &UnixStream, memory: &std::os::fd::OwnedFd) -> Result<(), Errno> {
    let descriptors = [memory.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(end, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    end.shutdown(std::net::Shutdown::Read).map_err(|_| Errno::INVAL)
}

/// Bytes of memory that the machine can give, by its own account.
fn available_memory() -> Option<u64> {
    let all = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}
