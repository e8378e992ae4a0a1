//! A mock controller: members with a few tags and sectors in memory, one interrupt line, and a
//! thread. The thread executes commands in order, when the test permits it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use driver::{
    BindError, CompletionEvent, HardwareQueue, LowLevelDriver, QueueState, Tag, TagError, TagSet,
};
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use sluice_block::completion::{InterruptLine, InterruptSource, StripeMember};
use sluice_block::{Features, Limits, Op, Payload, Request};
use time::Nanos;

pub(crate) const SECTOR: usize = 512;
pub(crate) const SECTORS: u64 = 1024;

#[derive(Debug, Default)]
struct MockMember {
    issued: VecDeque<(Tag, Request)>,
    completed: VecDeque<CompletionEvent>,
    data: Vec<u8>,
    removed: bool,
    /// Number of commands executed.
    done: u64,
    flushes: u64,
}

#[derive(Debug)]
struct Inner {
    cards: Vec<MockMember>,
    /// Number of commands that may still be executed; the others wait.
    commands_allowed: u64,
    /// Whether an abort completes the command.
    accepts_aborts: bool,
    stop: bool,
}

/// The controller.
#[derive(Debug)]
pub(crate) struct MockController {
    inner: Mutex<Inner>,
    work: Condvar,
    memory: AddressSpace,
    pending: AtomicU64,
    masked: AtomicBool,
    /// Whether the line is cut: the controller raises no interrupt, whatever the mask.
    cut: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// The running controller.
pub(crate) struct Running {
    pub(crate) board: Arc<MockController>,
    thread: Option<JoinHandle<()>>,
}

impl MockController {
    /// Starts a controller with `members` members of `tags` tags each, which executes all commands
    /// at once.
    pub(crate) fn start(members: u16, tags: u16) -> (Running, Vec<StripeMember<MockQueue>>) {
        let card =
            || MockMember { data: vec![0; SECTORS as usize * SECTOR], ..MockMember::default() };
        let board = Arc::new(MockController {
            inner: Mutex::new(Inner {
                cards: (0..members).map(|_| card()).collect(),
                commands_allowed: u64::MAX,
                accepts_aborts: true,
                stop: false,
            }),
            work: Condvar::new(),
            memory: AddressSpace::default(),
            pending: AtomicU64::new(0),
            masked: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            waker: Mutex::new(None),
        });
        let theirs = board.clone();
        let thread = std::thread::spawn(move || theirs.serve());
        let mut driver = MockDriver { board: board.clone(), tags, next: 0, members };
        let members = StripeMember::take_all(&mut driver);
        (Running { board, thread: Some(thread) }, members)
    }

    pub(crate) fn source(self: &Arc<MockController>) -> InterruptSource {
        InterruptSource::SharedLine(self.clone())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Permits only `count` more commands from now on.
    pub(crate) fn allow(&self, count: u64) {
        self.inner().commands_allowed = count;
        self.work.notify_all();
    }

    pub(crate) fn refuse_aborts(&self) {
        self.inner().accepts_aborts = false;
    }

    /// Cuts or restores the interrupt line.
    pub(crate) fn cut_line(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
        if !cut && self.pending.load(Ordering::SeqCst) != 0 {
            self.raise();
        }
    }

    pub(crate) fn is_masked(&self) -> bool {
        self.masked.load(Ordering::SeqCst)
    }

    /// Unplugs a member: its commands are lost.
    pub(crate) fn remove(&self, member: usize) {
        let mut inner = self.inner();
        inner.cards[member].removed = true;
        inner.cards[member].issued.clear();
        drop(inner);
        self.post(member);
    }

    /// Returns the number of commands that a member has not executed yet.
    pub(crate) fn outstanding(&self, member: usize) -> usize {
        self.inner().cards[member].issued.len()
    }

    /// Returns the number of commands that a member has executed.
    pub(crate) fn done(&self, member: usize) -> u64 {
        self.inner().cards[member].done
    }

    pub(crate) fn flushes(&self, member: usize) -> u64 {
        self.inner().cards[member].flushes
    }

    fn post(&self, member: usize) {
        let before = self.pending.fetch_or(1 << member, Ordering::SeqCst);
        if before & 1 << member == 0 && !self.masked.load(Ordering::SeqCst) {
            self.raise();
        }
    }

    fn raise(&self) {
        if self.cut.load(Ordering::SeqCst) {
            return;
        }
        if let Some(waker) = &*self.waker.lock().unwrap() {
            waker.wake();
        }
    }

    fn serve(&self) {
        let mut turn = 0;
        loop {
            let mut inner = self.inner();
            let count = inner.cards.len();
            let ready = |inner: &Inner, from: usize| {
                let mut members = (0..count).map(|i| (from + i) % count);
                members.find(|m| inner.commands_allowed > 0 && !inner.cards[*m].issued.is_empty())
            };
            let member = loop {
                if inner.stop {
                    return;
                }
                if let Some(member) = ready(&inner, turn) {
                    break member;
                }
                inner = self.work.wait(inner).unwrap();
            };
            turn = member + 1;
            if inner.commands_allowed != u64::MAX {
                inner.commands_allowed -= 1;
            }
            let card = &mut inner.cards[member];
            let (tag, request) = card.issued.pop_front().unwrap();
            let status = card.execute(&self.memory, &request);
            card.done += 1;
            card.completed.push_back(CompletionEvent { tag, status, result: 0 });
            drop(inner);
            self.post(member);
        }
    }
}

impl MockMember {
    fn execute(&mut self, memory: &AddressSpace, request: &Request) -> Status {
        let from = request.lba as usize * SECTOR;
        let range = from..from + request.sectors as usize * SECTOR;
        let Some(bytes) = self.data.get_mut(range) else { return Status::LBA_OUT_OF_RANGE };
        let found = match (request.op, request.data) {
            (Op::Read, Payload::Contiguous(at)) => memory.write(at, bytes),
            (Op::Write, Payload::Contiguous(at)) => memory.read(at, bytes),
            (Op::Discard, _) => {
                bytes.fill(0);
                Ok(())
            }
            (Op::Flush, _) => {
                self.flushes += 1;
                Ok(())
            }
            other => panic!("the block layer sent an unsupported request: {other:?}"),
        };
        found.map_or(Status::DATA_TRANSFER_ERROR, |()| Status::SUCCESS)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.board.inner().stop = true;
        self.board.work.notify_all();
        self.thread.take().unwrap().join().unwrap();
    }
}

impl InterruptLine for MockController {
    fn connect(&self, waker: Waker) {
        *self.waker.lock().unwrap() = Some(waker);
    }

    fn acknowledge(&self) -> u64 {
        self.pending.swap(0, Ordering::SeqCst)
    }

    fn pending(&self) -> u64 {
        self.pending.load(Ordering::SeqCst)
    }

    fn mask(&self) {
        self.masked.store(true, Ordering::SeqCst);
    }

    fn unmask(&self) {
        self.masked.store(false, Ordering::SeqCst);
        if self.pending() != 0 {
            self.raise();
        }
    }
}

struct MockDriver {
    board: Arc<MockController>,
    tags: u16,
    next: u16,
    members: u16,
}

impl LowLevelDriver for MockDriver {
    type Queue = MockQueue;

    fn limits(&self) -> Limits {
        Limits {
            sector_bytes: SECTOR as u32,
            sectors: SECTORS,
            max_sectors: 256,
            optimal_sectors: 1,
            queue_depth: self.tags.into(),
            volatile_cache: true,
            atomic: driver::AtomicLimits::NONE,
        }
    }

    fn features(&self) -> Features {
        Features {
            segments: 0,
            fua: true,
            discard: true,
            write_zeroes: false,
            extents: false,
            atomic: driver::AtomicLimits::NONE,
        }
    }

    fn queues(&self) -> u16 {
        self.members
    }

    fn memory(&self) -> &AddressSpace {
        &self.board.memory
    }

    fn take_queue(&mut self, index: u16) -> Option<MockQueue> {
        if index != self.next || index >= self.members {
            return None;
        }
        self.next += 1;
        Some(MockQueue {
            board: self.board.clone(),
            member: index.into(),
            tags: TagSet::new(self.tags),
            bound: Vec::new(),
            resetting: false,
        })
    }
}

/// The hardware queue of a member.
pub(crate) struct MockQueue {
    board: Arc<MockController>,
    member: usize,
    tags: TagSet,
    bound: Vec<(Tag, Request)>,
    resetting: bool,
}

impl HardwareQueue for MockQueue {
    fn tags(&self) -> &TagSet {
        &self.tags
    }

    fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }

    fn memory(&self) -> &AddressSpace {
        &self.board.memory
    }

    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        self.tags.bind(tag, command.tag, now)?;
        self.bound.push((tag, *command));
        Ok(())
    }

    fn issue_tags(&mut self) -> bool {
        if self.bound.is_empty() {
            return false;
        }
        let mut inner = self.board.inner();
        let card = &mut inner.cards[self.member];
        if card.removed {
            self.bound.clear();
        }
        card.issued.extend(self.bound.drain(..));
        drop(inner);
        self.board.work.notify_all();
        true
    }

    fn check_event(&mut self) -> bool {
        !self.board.inner().cards[self.member].completed.is_empty()
    }

    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        self.board.inner().cards[self.member].completed.pop_front()
    }

    fn abort_tag(&mut self, tag: Tag, _now: Nanos) -> Result<(), TagError> {
        let mut inner = self.board.inner();
        if inner.accepts_aborts {
            let card = &mut inner.cards[self.member];
            card.issued.retain(|(issued, _)| *issued != tag);
            card.completed.push_back(CompletionEvent { tag, status: Status::ABORTED, result: 0 });
        }
        drop(inner);
        self.board.post(self.member);
        Ok(())
    }

    fn reset(&mut self, _now: Nanos) {
        let mut inner = self.board.inner();
        let card = &mut inner.cards[self.member];
        card.issued.clear();
        card.completed.clear();
        self.resetting = true;
    }

    fn state(&self) -> QueueState {
        if self.board.inner().cards[self.member].removed {
            QueueState::Removed
        } else if self.resetting {
            QueueState::Resetting
        } else {
            QueueState::Ready
        }
    }

    fn poll(&mut self, _now: Nanos) -> bool {
        std::mem::take(&mut self.resetting)
    }

    fn deadline(&self) -> Nanos {
        if self.resetting { Nanos::ZERO } else { Nanos::MAX }
    }

    fn set_waker(&mut self, _waker: Waker) {}
}
