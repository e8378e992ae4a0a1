//! [`ReadGraph`]: lookups whose reads are issued before their results are needed.
//!
//! Reads have no effect, so that a lookup may name reads that it will perhaps not need: the blocks of all
//! levels of a log-structured merge tree at once, although only the first one with the key counts. And
//! lookups do not depend on each other: while one waits for the child of a tree's node, others read theirs.
//!
//! With a depth of 1 a graph is the same lookups with one read at a time.

use std::collections::VecDeque;

use block::BlockDevice;
use nvme::Status;
use user_io::{Buffer, DirectError, Handle, IoDevice, IoError, Op, Request};

/// A read of a lookup: a page from this sector on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphRead {
    /// The first sector.
    pub lba: u64,
}

/// The next step of a lookup, after a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphStep<T> {
    /// It needs the page of its next read. A lookup without another read ends without a result.
    Next,
    /// It ends with this result. Its other reads are dropped.
    Done(T),
}

/// A lookup: a state machine of pure reads.
pub trait GraphLookup {
    /// Its result.
    type Output;

    /// Names the first reads, in the order in which their pages are wanted.
    fn begin(&mut self, reads: &mut Vec<GraphRead>);

    /// Takes the page of the next read, and names more reads, behind those that are named.
    fn step(&mut self, page: &Buffer, reads: &mut Vec<GraphRead>) -> GraphStep<Self::Output>;
}

/// Counters of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// Lookups that have ended.
    pub lookups: u64,
    /// Reads that were issued.
    pub reads: u64,
    /// Those of them whose pages no lookup took.
    pub unused: u64,
}

/// A read of a lookup that has begun.
#[derive(Clone, Copy, Debug)]
struct IssuedRead {
    lba: u64,
    /// Index of its buffer, once it was issued.
    buffer: Option<u32>,
    /// Its end.
    status: Option<Status>,
}

/// A lookup that has begun.
#[derive(Debug)]
struct ActiveLookup<L> {
    lookup: L,
    /// Its place in the order of the lookups.
    index: usize,
    reads: VecDeque<IssuedRead>,
}

/// Reads on a handle of its own, with a buffer for each that may be outstanding.
#[derive(Debug)]
pub struct ReadGraph<D> {
    handle: Handle<D>,
    page_sectors: u32,
    buffers: Vec<Buffer>,
    free: Vec<u32>,
    stats: GraphStats,
}

impl<D: BlockDevice> ReadGraph<D> {
    /// Creates a graph of reads of `page_sectors` sectors, at most `depth` at a time (at least 1), on a
    /// handle of `device` without outstanding requests.
    ///
    /// # Errors
    /// [`DirectError::Memory`] without memory for the buffers.
    pub fn new(
        device: &IoDevice,
        handle: Handle<D>,
        page_sectors: u32,
        depth: u32,
    ) -> Result<ReadGraph<D>, DirectError> {
        let bytes = handle.limits().sector_bytes as usize * page_sectors as usize;
        let depth = depth.max(1);
        let buffers = (0..depth).map(|_| device.buffer(bytes)).collect::<Result<_, _>>()?;
        let free = (0..depth).rev().collect();
        Ok(ReadGraph { handle, page_sectors, buffers, free, stats: GraphStats::default() })
    }

    /// Returns the counters.
    pub fn stats(&self) -> GraphStats {
        self.stats
    }

    /// Returns the handle below.
    pub fn into_handle(self) -> Handle<D> {
        self.handle
    }

    /// Runs lookups. Returns their results in their order; `None` for a lookup that ended without one.
    ///
    /// # Errors
    /// [`IoError`] if a page that a lookup wanted cannot be read. The failure of a read that is dropped
    /// is none.
    pub fn run<L: GraphLookup>(
        &mut self,
        lookups: impl IntoIterator<Item = L>,
    ) -> Result<Vec<Option<L::Output>>, IoError> {
        let mut run = GraphRun { graph: self, active: VecDeque::new(), results: Vec::new() };
        let ended = run.run(lookups.into_iter());
        let results = run.results;
        // After an error, reads that no lookup waits for any more use buffers until they end.
        while self.handle.wait().is_some() {}
        self.free = (0..self.buffers.len() as u32).rev().collect();
        ended.map(|()| results)
    }
}

/// Lookups that are run.
struct GraphRun<'g, D, L: GraphLookup> {
    graph: &'g mut ReadGraph<D>,
    active: VecDeque<ActiveLookup<L>>,
    results: Vec<Option<L::Output>>,
}

impl<D: BlockDevice, L: GraphLookup> GraphRun<'_, D, L> {
    fn run(&mut self, mut lookups: impl Iterator<Item = L>) -> Result<(), IoError> {
        let mut named = Vec::new();
        loop {
            self.issue()?;
            while !self.graph.free.is_empty()
                && let Some(mut lookup) = lookups.next()
            {
                lookup.begin(&mut named);
                let reads = named.drain(..).map(IssuedRead::new).collect();
                let index = self.results.len();
                self.results.push(None);
                self.active.push_back(ActiveLookup { lookup, index, reads });
                self.advance(self.active.len() - 1, &mut named)?;
                self.issue()?;
            }
            if self.active.is_empty() && self.graph.free.len() == self.graph.buffers.len() {
                return Ok(());
            }
            let Some(completion) = self.graph.handle.wait() else { return Ok(()) };
            self.complete(completion.tag as u32, completion.status, &mut named)?;
            // All that are there, before others are issued.
            while let Some(completion) = self.graph.handle.reap() {
                self.complete(completion.tag as u32, completion.status, &mut named)?;
            }
        }
    }

    /// Issues reads of the lookups, oldest first, as long as there are buffers.
    fn issue(&mut self) -> Result<(), IoError> {
        let ReadGraph { handle, page_sectors, buffers, free, stats } = &mut *self.graph;
        let named = self.active.iter_mut().flat_map(|active| &mut active.reads);
        for read in named.filter(|read| read.buffer.is_none()) {
            let Some(buffer) = free.pop() else { break };
            let payload = buffers[buffer as usize].payload();
            let request = Request::read(read.lba, *page_sectors, payload, buffer.into());
            match handle.submit(request) {
                Ok(()) => {}
                Err(error) => {
                    free.push(buffer);
                    match error {
                        IoError::Busy(_) if handle.outstanding() > 0 => break,
                        error => return Err(error),
                    }
                }
            }
            read.buffer = Some(buffer);
            stats.reads += 1;
        }
        Ok(())
    }

    /// Records the end of a read, and goes on with its lookup.
    fn complete(
        &mut self,
        buffer: u32,
        status: Status,
        named: &mut Vec<GraphRead>,
    ) -> Result<(), IoError> {
        for at in 0..self.active.len() {
            let mut reads = self.active[at].reads.iter_mut();
            if let Some(read) = reads.find(|read| read.buffer == Some(buffer)) {
                read.status = Some(status);
                return self.advance(at, named);
            }
        }
        // Its lookup has ended.
        self.graph.free.push(buffer);
        self.graph.stats.unused += 1;
        Ok(())
    }

    /// Has a lookup take the pages that are there.
    fn advance(&mut self, at: usize, named: &mut Vec<GraphRead>) -> Result<(), IoError> {
        loop {
            let active = &mut self.active[at];
            let Some(IssuedRead { lba, buffer, status }) = active.reads.front().copied() else {
                return self.end(at, None);
            };
            let (Some(buffer), Some(status)) = (buffer, status) else { return Ok(()) };
            active.reads.pop_front();
            self.graph.free.push(buffer);
            if !status.is_success() {
                let sectors = self.graph.page_sectors;
                return Err(IoError::Status { op: Op::Read, lba, sectors, status });
            }
            let step = active.lookup.step(&self.graph.buffers[buffer as usize], named);
            active.reads.extend(named.drain(..).map(IssuedRead::new));
            if let GraphStep::Done(result) = step {
                return self.end(at, Some(result));
            }
        }
    }

    /// Ends a lookup. Pages that are there are dropped, and those that are not when they arrive.
    fn end(&mut self, at: usize, result: Option<L::Output>) -> Result<(), IoError> {
        let Some(ended) = self.active.remove(at) else { return Ok(()) };
        self.results[ended.index] = result;
        self.graph.stats.lookups += 1;
        for read in ended.reads {
            if let (Some(buffer), Some(_)) = (read.buffer, read.status) {
                self.graph.free.push(buffer);
                self.graph.stats.unused += 1;
            }
        }
        Ok(())
    }
}

impl IssuedRead {
    fn new(read: GraphRead) -> IssuedRead {
        IssuedRead { lba: read.lba, buffer: None, status: None }
    }
}
