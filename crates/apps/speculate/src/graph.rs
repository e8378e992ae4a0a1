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
    /// Those of them whose pages no lookup will take.
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
///
/// A read that is dropped uses its buffer until it ends, but no lookup waits for that. When the graph is
/// dropped, it waits for all reads.
#[derive(Debug)]
pub struct ReadGraph<D: BlockDevice> {
    /// `None` after [`into_handle`](ReadGraph::into_handle).
    handle: Option<Handle<D>>,
    page_sectors: u32,
    depth: usize,
    /// Twice the depth.
    buffers: Vec<Buffer>,
    free: Vec<u32>,
    /// Outstanding reads that were dropped.
    dropped: usize,
    stats: GraphStats,
}

impl<D: BlockDevice> ReadGraph<D> {
    /// Creates a graph of reads of `page_sectors` sectors on a handle of `device` without outstanding
    /// requests. Lookups wait for at most `depth` reads at a time (at least 1); as many may be
    /// outstanding that were dropped.
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
        let count = depth.saturating_mul(2);
        let buffers = (0..count).map(|_| device.buffer(bytes)).collect::<Result<_, _>>()?;
        Ok(ReadGraph {
            handle: Some(handle),
            page_sectors,
            depth: depth as usize,
            buffers,
            free: (0..count).rev().collect(),
            dropped: 0,
            stats: GraphStats::default(),
        })
    }

    /// Returns the counters.
    pub fn stats(&self) -> GraphStats {
        self.stats
    }

    /// Waits for the reads that were dropped, and returns the handle below.
    ///
    /// # Panics
    /// Never.
    pub fn into_handle(mut self) -> Handle<D> {
        self.wait();
        self.handle.take().expect("graph: it has its handle until here")
    }

    fn handle(&mut self) -> &mut Handle<D> {
        self.handle.as_mut().expect("graph: it has its handle until it is consumed")
    }

    /// Waits until no read is outstanding.
    fn wait(&mut self) {
        while self.handle.as_mut().and_then(Handle::wait).is_some() {}
    }

    /// Returns whether a lookup may issue a read.
    fn has_capacity(&self) -> bool {
        let wanted = self.buffers.len() - self.free.len() - self.dropped;
        !self.free.is_empty() && wanted < self.depth
    }

    /// Drops a read that no lookup will take.
    fn drop_read(&mut self, read: &IssuedRead) {
        let Some(buffer) = read.buffer else { return };
        match read.status {
            Some(_) => self.free.push(buffer),
            None => self.dropped += 1,
        }
        self.stats.unused += 1;
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
        let GraphRun { active, results, .. } = run;
        // After an error, other lookups have reads.
        active.iter().flat_map(|active| &active.reads).for_each(|read| self.drop_read(read));
        ended.map(|()| results)
    }
}

impl<D: BlockDevice> Drop for ReadGraph<D> {
    /// The device writes to the buffers until then.
    fn drop(&mut self) {
        self.wait();
    }
}

/// Lookups that are run.
struct GraphRun<'g, D: BlockDevice, L: GraphLookup> {
    graph: &'g mut ReadGraph<D>,
    active: VecDeque<ActiveLookup<L>>,
    results: Vec<Option<L::Output>>,
}

impl<D: BlockDevice, L: GraphLookup> GraphRun<'_, D, L> {
    fn run(&mut self, mut lookups: impl Iterator<Item = L>) -> Result<(), IoError> {
        let mut named = Vec::new();
        loop {
            self.issue()?;
            while self.graph.has_capacity()
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
            if self.active.is_empty() {
                return Ok(());
            }
            let Some(completion) = self.graph.handle().wait() else { return Ok(()) };
            self.complete(completion.tag as u32, completion.status, &mut named)?;
            // All that are there, before others are issued.
            while let Some(completion) = self.graph.handle().reap() {
                self.complete(completion.tag as u32, completion.status, &mut named)?;
            }
        }
    }

    /// Issues reads of the lookups, oldest first, as long as there are buffers.
    fn issue(&mut self) -> Result<(), IoError> {
        let graph = &mut *self.graph;
        let named = self.active.iter_mut().flat_map(|active| &mut active.reads);
        for read in named.filter(|read| read.buffer.is_none()) {
            if !graph.has_capacity() {
                break;
            }
            let Some(buffer) = graph.free.pop() else { break };
            let payload = graph.buffers[buffer as usize].payload();
            let request = Request::read(read.lba, graph.page_sectors, payload, buffer.into());
            match graph.handle().submit(request) {
                Ok(()) => {}
                Err(error) => {
                    graph.free.push(buffer);
                    match error {
                        IoError::Busy(_) if graph.handle().outstanding() > 0 => break,
                        error => return Err(error),
                    }
                }
            }
            read.buffer = Some(buffer);
            graph.stats.reads += 1;
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
        // It was dropped.
        self.graph.free.push(buffer);
        self.graph.dropped -= 1;
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
        ended.reads.iter().for_each(|read| self.graph.drop_read(read));
        Ok(())
    }
}

impl IssuedRead {
    fn new(read: GraphRead) -> IssuedRead {
        IssuedRead { lba: read.lba, buffer: None, status: None }
    }
}
