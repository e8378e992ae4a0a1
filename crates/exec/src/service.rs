//! [`Service`]: the loop. Calls are taken from slots, become requests of the store, and are answered; with
//! nothing to do it sleeps at the bell.
//!
//! Guarantee: every call is answered once, in any order; a call that cannot be taken now (the store is
//! busy, another one uses the open file's offset) is tried again, in the order in which calls came.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use block::Device;
use clock::{Component as _, Nanos, RealClock};
use ring::{Region, RegisterError};
use rustix::thread::futex;
use slots::{Call, Op as CallOp, hands};
use store::{Done, Error, Op, Request, Store, Time};

use crate::door::{Address, Door, Heard, ring, welcome};
use crate::ends::Then;
use crate::images::{Effect, Images};
use crate::left::LeftOnes;
use crate::locks::{Locks, Owner};
use crate::open_files::OpenFiles;
use crate::passes::{PASS, Passes};
use crate::patience::Patience;
use crate::session::Session;
use crate::under_way::{Asked, UnderWay};

/// Why a service cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The system refuses sockets or memory.
    #[error("the file service: {0}")]
    Io(#[from] io::Error),
    /// The volume could not be closed in order; what was made durable is there.
    #[error("the volume was not closed in order: {0}")]
    Close(Error),
}

/// What a service has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls answered.
    pub calls: u64,
    /// Writes that nobody waited for.
    pub left: u64,
    /// Calls that made no sense.
    pub refused: u64,
    /// Processes that had a session.
    pub sessions: u64,
    /// Files and directories opened.
    pub opened: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// What the store has done.
    pub store: store::Stats,
    /// Times that bytes of a file were mapped and shared.
    pub mapped: u64,
    /// Bytes that mappings had changed, and that were brought back.
    pub written_back: u64,
    /// Files of which that failed after nobody had them mapped any more.
    pub lost: u64,
}

/// Where a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct From {
    pub(crate) session: usize,
    pub(crate) slot: usize,
}

/// What came of looking at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is answered: a count, or an error number as a negative one.
    Answer(i64),
    /// The store has a request for it.
    UnderWay,
    /// Try again when something has ended.
    Later,
}

/// Tells a service from another thread that the program has ended: it returns when no process has files open.
#[derive(Clone, Debug)]
pub struct Stop {
    bell: Arc<Region>,
}

/// Where the word is that says so, in the bell's memory; only this process looks at it.
const STOPPED: usize = 128;

impl Stop {
    /// The program has ended.
    pub fn stop(&self) {
        self.bell.half_word(STOPPED).store(1, Ordering::SeqCst);
        ring(&self.bell);
    }
}

/// Rounds without work, with requests under way, before it sleeps until the device says something; at most, and
/// where that takes no longer than so.
const SPINS: (u32, Nanos) = (64, Nanos::from_micros(30));
/// Rounds without work and without requests before it sleeps, in the same way: the next call often comes at once.
const IDLE_SPINS: (u32, Nanos) = (200, Nanos::from_micros(100));
/// How long it sleeps while the device works that cannot wake it.
const NAP: Nanos = Nanos::from_micros(50);
/// Free blocks for each call that has come, below which files that were just closed are heard of before anything is
/// written: they may be what makes room. What one call writes at most, and its ends.
const BLOCKS_A_CALL: u64 = slots::DATA as u64 / store::BLOCK as u64 + 2;
/// How long it sleeps at most.
const SLEEP: Nanos = Nanos::from_millis(1000);
/// Sessions at most, of processes that live at once: the device's memory has as many places.
const SESSIONS_MAX: usize = 900;

/// The file service of one volume.
#[derive(Debug)]
pub struct Service<D> {
    pub(crate) store: Store<D>,
    pub(crate) now: Nanos,
    pub(crate) time: Time,
    pub(crate) door: Door,
    pub(crate) bell: Arc<Region>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) files: OpenFiles,
    pub(crate) locks: Locks,
    pub(crate) later: VecDeque<(From, Call)>,
    pub(crate) left: LeftOnes,
    pub(crate) under_way: UnderWay,
    pub(crate) images: Images,
    pub(crate) passes: Passes,
    pub(crate) path: Vec<u8>,
    heard: Vec<Heard>,
    posted: Vec<(From, Option<Call>)>,
    counters: Counters,
    /// The last call that was taken was one for durability.
    after_sync: bool,
    /// What was last taken was only left: its program is elsewhere.
    after_left: bool,
}

impl<D: Device> Service<D> {
    /// A service of an open volume, which can be reached at once.
    ///
    /// # Errors
    /// [`ServiceError::Io`]: the name is taken, no memory, no threads.
    pub fn new(store: Store<D>, address: &Address) -> Result<Service<D>, ServiceError> {
        let bell = Region::shared(slots::BELL_BYTES)?;
        let door = Door::open(address, bell.clone())?;
        Ok(Service {
            store,
            now: Nanos::ZERO,
            time: Time(0),
            door,
            bell,
            sessions: Vec::new(),
            files: OpenFiles::new(),
            locks: Locks::default(),
            later: VecDeque::new(),
            left: LeftOnes::default(),
            under_way: UnderWay::default(),
            images: Images::default(),
            passes: Passes::default(),
            path: Vec::new(),
            heard: Vec::new(),
            posted: Vec::new(),
            counters: Counters::default(),
            after_sync: false,
            after_left: false,
        })
    }

    /// What ends it.
    pub fn stop(&self) -> Stop {
        Stop { bell: self.bell.clone() }
    }

    /// Counters.
    pub fn counters(&self) -> Counters {
        Counters { store: self.store.stats(), ..self.counters }
    }

    /// Serves until it is told to [`stop`](Stop::stop) and no process that has a session is left. Then
    /// the volume is closed in order, and its device given back.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run(mut self, clock: RealClock) -> Result<(D, Counters), ServiceError> {
        // While the device works; when the last call was a sync, after which programs do something else first;
        // otherwise.
        let mut waits = [SPINS, IDLE_SPINS, IDLE_SPINS].map(Patience::new);
        let (mut idle, mut slept) = (0, false);
        let (mut wait, mut since) = (0, Nanos::ZERO);
        self.store.set_waker(self.door.waker());
        loop {
            self.now = clock.now();
            let bell = hands::listen(self.bell.half_word(slots::BELL));
            if self.turn()? {
                if idle > 0 && !slept && !self.after_left {
                    waits[wait].came(self.now - since);
                }
                (idle, slept) = (0, false);
                continue;
            }
            let stopped = self.bell.half_word(STOPPED).load(Ordering::SeqCst) != 0;
            let at_rest = self.under_way.is_empty() && self.passes.is_empty();
            if stopped
                && at_rest
                && self.sessions.iter().all(Session::is_over)
                && !self.is_mapped(None)
            {
                break;
            }
            let busy = self.store.under_way() > 0;
            if idle == 0 {
                wait = if busy { 0 } else { 2 - usize::from(self.after_sync) };
                since = self.now;
            }
            idle += 1;
            // Nobody hurries with what is left: it comes in numbers, or before a call.
            slept |= self.after_left && !busy;
            if idle <= waits[wait].rounds() && !slept {
                std::thread::yield_now();
                continue;
            }
            if !slept {
                waits[wait].missed();
                slept = true;
            }
            self.sleep(bell, busy, clock)?;
        }
        self.close(clock)
    }

    /// Takes calls and requests one step on; returns whether anything moved.
    fn turn(&mut self) -> Result<bool, ServiceError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.time = Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
        let mut posted = std::mem::take(&mut self.posted);
        for (session, of) in self.sessions.iter_mut().enumerate() {
            let mut bits = of.posted();
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                posted.push((From { session, slot }, of.call(slot)));
                bits &= bits - 1;
            }
        }
        // What a process closed before it called is heard of before its call is looked at, where it matters. What it
        // left before either is done before both.
        let mut moved = !posted.is_empty();
        if moved {
            self.make_room(&posted);
        }
        let hears = self.door.has_knocked() || moved && self.minds_closes(&posted);
        if hears {
            self.door.hear(&mut self.heard)?;
        }
        if self.take_left() {
            (self.after_left, moved) = (posted.is_empty(), true);
        }
        if hears {
            moved |= self.act();
        }
        for (from, call) in posted.drain(..) {
            match call {
                Some(call) => self.take(from, call),
                None => {
                    self.counters.refused += 1;
                    self.answer(from, -i64::from(rustix::io::Errno::INVAL.raw_os_error()));
                }
            }
        }
        self.posted = posted;
        moved |= self.store.poll(self.now);
        let mut ended = false;
        while let Some(Done { id, result }) = self.store.reap() {
            ended = true;
            match id {
                PASS => self.pass_ended(result),
                _ => self.ended(id, result),
            }
        }
        ended |= self.pass();
        ended |= self.begin_left();
        self.watch_no_more();
        if ended {
            for _ in 0..self.later.len() {
                if let Some((from, call)) = self.later.pop_front() {
                    self.take(from, call);
                }
            }
        }
        Ok(moved | ended)
    }

    /// Whether a call among these may depend on what was closed before.
    fn minds_closes(&self, posted: &[(From, Option<Call>)]) -> bool {
        let room = self.store.has_room(posted.len() as u64 * BLOCKS_A_CALL);
        posted.iter().flat_map(|(_, call)| call).any(|call| match call.op {
            CallOp::Write | CallOp::WriteAt => !room,
            CallOp::Read
            | CallOp::ReadAt
            | CallOp::Seek
            | CallOp::Sync
            | CallOp::Stat
            | CallOp::Flags
            | CallOp::SetFlags => false,
            _ => true,
        })
    }

    fn take(&mut self, from: From, call: Call) {
        self.after_sync = matches!(call.op, CallOp::Sync | CallOp::SyncAll);
        self.after_left = false;
        if self.waits_for_left(&call) {
            return self.later.push_back((from, call));
        }
        match self.begin(from, &call) {
            Begun::Answer(answer) => self.answer(from, answer),
            Begun::UnderWay => {}
            Begun::Later => self.later.push_back((from, call)),
        }
    }

    pub(crate) fn answer(&mut self, from: From, answer: i64) {
        self.counters.calls += 1;
        self.sessions[from.session].answer(from.slot, answer);
        self.take_room_back(from.session);
    }

    /// A write that nobody waited for has ended.
    pub(crate) fn free(&mut self, from: From) {
        self.counters.left += 1;
        self.sessions[from.session].free(from.slot);
        self.take_room_back(from.session);
    }

    /// Gives the store a request.
    pub(crate) fn ask(&mut self, from: From, op: Op, then: Then) -> Begun {
        self.ask_with(from, op, then, (self.time, 0))
    }

    /// The same, of a time, and with blocks that are reserved for it.
    pub(crate) fn ask_with(
        &mut self,
        from: From,
        op: Op,
        then: Then,
        (time, room): (Time, u64),
    ) -> Begun {
        let effect = Effect::of(&op);
        if effect.changes().is_some_and(|ino| self.passes.is_at(ino)) {
            return Begun::Later;
        }
        let id = self.under_way.next();
        if self.store.submit_reserved(self.now, Request { id, op, time }, room).is_err() {
            return Begun::Later;
        }
        self.under_way.put(id, Asked { from, then, effect });
        Begun::UnderWay
    }

    /// Acts upon what was heard at the door.
    fn act(&mut self) -> bool {
        let mut heard = std::mem::take(&mut self.heard);
        let moved = !heard.is_empty();
        for what in heard.drain(..) {
            match what {
                Heard::Hello { stream, process, pidfd } => {
                    // A process that cannot be served sees its connection closed.
                    if let Ok(session) = self.session(process, pidfd) {
                        let _ = welcome(&stream, [&self.sessions[session].region, &self.bell]);
                    }
                }
                Heard::File(number) => self.close_if_gone(number),
                Heard::Ended(session) => {
                    if let Some(ended) = self.sessions.get_mut(session) {
                        ended.pidfd = None;
                        self.locks.gone(Owner::Process(ended.process));
                    }
                    self.take_room_back(session);
                }
            }
        }
        self.heard = heard;
        moved
    }

    /// A session for a process: the memory of one that is over, or new memory. A program that a process
    /// has become by `exec` takes the place of the one before.
    fn session(&mut self, process: u32, pidfd: rustix::fd::OwnedFd) -> io::Result<usize> {
        for before in 0..self.sessions.len() {
            if self.sessions[before].process == process {
                self.sessions[before].pidfd = None;
                self.take_room_back(before);
            }
        }
        let none = |error: RegisterError| io::Error::other(error.to_string());
        let session = match self.sessions.iter().position(Session::is_over) {
            Some(session) => session,
            None if self.sessions.len() == SESSIONS_MAX => {
                return Err(io::Error::other("too many processes"));
            }
            None => {
                let region = Region::shared(slots::SESSION_BYTES)?;
                let at = self.store.memory().register(&region).map_err(none)?;
                let (under_way, taken, room) = (0, 0, 0);
                let new = Session { region, at, process, pidfd: None, under_way, taken, room };
                self.sessions.push(new);
                self.sessions.len() - 1
            }
        };
        self.door.watch(session, &pidfd)?;
        let taken = &mut self.sessions[session];
        taken.clear();
        (taken.process, taken.pidfd) = (process, Some(pidfd));
        self.counters.sessions += 1;
        Ok(session)
    }

    pub(crate) fn count_refused(&mut self) {
        self.counters.refused += 1;
    }

    pub(crate) fn count_opened(&mut self) {
        self.counters.opened += 1;
    }

    pub(crate) fn count_mapped(&mut self) {
        self.counters.mapped += 1;
    }

    pub(crate) fn count_written_back(&mut self, bytes: u32) {
        self.counters.written_back += u64::from(bytes);
    }

    pub(crate) fn count_lost(&mut self) {
        self.counters.lost += 1;
    }

    /// Sleeps until the bell rings; with requests under way, the device rings it, too, if it can.
    fn sleep(&mut self, bell: u32, busy: bool, clock: RealClock) -> Result<(), ServiceError> {
        // Of a device that wakes nobody completions are looked for, between naps.
        let rings = busy && self.store.device().wakes();
        if rings {
            self.door.falls_asleep();
            // What has ended since the last look rang for nobody.
            self.now = clock.now();
            if self.turn()? {
                self.door.is_up();
                return Ok(());
            }
        }
        let until = self.store.deadline();
        let sleeps = until > self.now && rings == busy;
        let most = if sleeps { SLEEP.min(until - self.now) } else { NAP };
        let (word, asleep) = (self.bell.half_word(slots::BELL), self.bell.half_word(slots::ASLEEP));
        hands::fall_asleep(asleep);
        let (tv_sec, tv_nsec) = ((most.0 / 1_000_000_000) as i64, (most.0 % 1_000_000_000) as _);
        let timeout = futex::Timespec { tv_sec, tv_nsec };
        // Woken, too late, interrupted: it looks in every case.
        let _ = futex::wait(word, futex::Flags::empty(), bell, Some(&timeout));
        hands::wake_up(asleep);
        if rings {
            self.door.is_up();
        }
        self.counters.sleeps += 1;
        Ok(())
    }

    fn close(mut self, clock: RealClock) -> Result<(D, Counters), ServiceError> {
        let id = u64::MAX;
        let request = Request { id, op: Op::Close, time: self.time };
        while self.store.submit(clock.now(), request).is_err() {
            self.store.poll(clock.now());
        }
        loop {
            self.store.poll(clock.now());
            while let Some(done) = self.store.reap() {
                if done.id == id {
                    done.result.map_err(ServiceError::Close)?;
                    let counters = self.counters();
                    return Ok((self.store.into_device(), counters));
                }
            }
            std::thread::yield_now();
        }
    }
}
