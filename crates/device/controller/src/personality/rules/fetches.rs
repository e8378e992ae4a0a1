//! [`RuleFetches`]: the commands whose rules wait for sectors of the drive, and the memory for these
//! sectors. The FTL reads them as it reads for a host.
//!
//! A command with a range has the next sectors of it read ahead, as soon as its rules fetch the first
//! one. Each is read once, at an instant between the begin and the end of the command.
//!
//! Invariants: an input that waits for a sector has a context of the engine, or its program was
//! replaced; at most [`RULE_CONTEXTS`] have one, so that inputs that fetch nothing never wait for a
//! context. A command ends after the last of its reads.

use std::collections::{BTreeMap, VecDeque};

use nvme::{IoCommand, RuleCommand, Status};
use rules::{AppId, ContextId, InputOp, OpMask, RuleEngine};
use serde::{Deserialize, Serialize};

use super::stations::EngineWork;
use crate::command::table::Command;

/// Inputs of a drive at most whose rules wait for sectors. Others that may fetch a sector wait before
/// they begin, in the order of their arrival.
pub const RULE_CONTEXTS: u16 = 128;

/// Sectors of the range of a command at most that the drive reads ahead, the one that the rules wait for
/// included.
pub const RULE_READ_AHEAD: usize = 64;

/// Counters of the sectors that rules read, and of the bytes that they return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleFetchStats {
    /// Sectors that rules fetched.
    pub fetches: u64,
    /// Sectors that the drive read for that, those included that it read ahead.
    pub reads: u64,
    /// Bytes that rules returned to hosts.
    pub emitted_bytes: u64,
    /// Inputs that waited for a context.
    pub waits: u64,
}

/// The contents of a place for a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Empty,
    Reading,
    Read,
}

/// A place for a sector.
#[derive(Debug)]
struct FetchSlot {
    lba: u64,
    state: SlotState,
    /// The status of the read.
    status: Status,
    /// Whether `bytes` are those of the sector. Else another one, of any application, may have left them.
    is_filled: bool,
    bytes: Box<[u8]>,
}

impl FetchSlot {
    fn new(bytes: usize) -> FetchSlot {
        let bytes = vec![0; bytes].into();
        let (state, status) = (SlotState::Empty, Status::SUCCESS);
        FetchSlot { lba: 0, state, status, is_filled: false, bytes }
    }

    /// Has the place for another sector, in this state.
    fn set(&mut self, lba: u64, state: SlotState, status: Status) {
        (self.lba, self.state, self.status, self.is_filled) = (lba, state, status, false);
    }
}

/// The progress of an input that fetched a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchProgress {
    /// Its rules wait for a sector.
    NeedsSector,
    /// Its rules have ended. An engine still works on it.
    Decided,
    /// This follows the last read.
    Ended(EngineWork),
}

/// A command whose rules fetched a sector.
#[derive(Debug)]
struct RuleFetch {
    /// The input among those of its command.
    at: u32,
    /// `None` once the rules have ended, or if their program was replaced.
    context: Option<ContextId>,
    progress: FetchProgress,
    /// Whether the input is in an engine, until that has taken its time.
    is_in_engine: bool,
    /// The sector that the rules wait for.
    lba: u64,
    /// Operations before the last fetch.
    ops: u64,
    /// The first ones of these are in use.
    slots: Vec<FetchSlot>,
    used_slots: usize,
    /// Reads in progress.
    reading: u32,
}

impl RuleFetch {
    /// Creates a fetch that is not begun.
    fn new() -> RuleFetch {
        RuleFetch {
            at: 0,
            context: None,
            progress: FetchProgress::NeedsSector,
            is_in_engine: false,
            lba: 0,
            ops: 0,
            slots: Vec::new(),
            used_slots: 0,
            reading: 0,
        }
    }

    /// Begins a fetch with empty places.
    fn restart(&mut self, places: usize, sector_bytes: usize) {
        (self.context, self.reading, self.used_slots) = (None, 0, places);
        if self.slots.len() < places {
            self.slots.resize_with(places, || FetchSlot::new(sector_bytes));
        }
        for slot in &mut self.slots[..places] {
            slot.set(0, SlotState::Empty, Status::SUCCESS);
        }
    }

    fn places(&self) -> &[FetchSlot] {
        &self.slots[..self.used_slots]
    }

    fn place_mut(&mut self, place: u16) -> Option<&mut FetchSlot> {
        self.slots[..self.used_slots].get_mut(usize::from(place))
    }

    fn place_of(&self, lba: u64) -> usize {
        (lba % self.used_slots as u64) as usize
    }

    /// Whether the next step can follow.
    fn is_ready(&self) -> bool {
        if self.is_in_engine {
            return false;
        }
        match (self.progress, self.context) {
            (FetchProgress::NeedsSector, Some(_)) => {
                let place = &self.slots[self.place_of(self.lba)];
                place.lba == self.lba && place.state == SlotState::Read
            }
            _ => self.reading == 0,
        }
    }
}

/// An input that waits for a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingInput {
    pub(super) id: u32,
    /// The input among those of its command.
    pub(super) at: u32,
}

/// A read of a sector for the rules of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FetchRead {
    /// The place for the sector.
    pub(crate) place: u16,
    pub(crate) lba: u64,
}

/// The step of a command that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchStep {
    /// The rules have their sector.
    Resume(WaitingInput),
    /// The sector cannot be read: the command ends with this status.
    Fail(u64, Status),
    /// The program was replaced: the input begins again.
    Restart(WaitingInput),
    /// The command has no reads any more.
    Execute(EngineWork),
}

/// The fetches of commands, and the memory of those that have ended.
#[derive(Debug, Default)]
struct FetchTable {
    /// By command.
    fetches: Vec<Option<RuleFetch>>,
    count: usize,
    spare: Vec<RuleFetch>,
}

impl FetchTable {
    #[inline]
    fn get(&self, id: u32) -> Option<&RuleFetch> {
        self.fetches.get(id as usize)?.as_ref()
    }

    #[inline]
    fn get_mut(&mut self, id: u32) -> Option<&mut RuleFetch> {
        self.fetches.get_mut(id as usize)?.as_mut()
    }

    /// Returns the fetch of a command, which begins if it has none.
    fn get_or_begin(&mut self, id: u32, places: usize, sector_bytes: usize) -> &mut RuleFetch {
        let at = id as usize;
        if self.fetches.len() <= at {
            self.fetches.resize_with(at + 1, || None);
        }
        self.fetches[at].get_or_insert_with(|| {
            self.count += 1;
            let mut fetch = self.spare.pop().unwrap_or_else(RuleFetch::new);
            fetch.restart(places, sector_bytes);
            fetch
        })
    }

    fn remove(&mut self, id: u32) {
        if let Some(fetch) = self.fetches.get_mut(id as usize).and_then(Option::take) {
            self.count -= 1;
            self.spare.push(fetch);
        }
    }

    /// Returns the fetches in the order of the commands' numbers.
    fn iter(&self) -> impl Iterator<Item = (u32, &RuleFetch)> {
        let all = (0..).zip(&self.fetches);
        all.filter_map(|(id, fetch)| Some((id, fetch.as_ref()?)))
    }

    /// As [`iter`](FetchTable::iter), to change them.
    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut RuleFetch)> {
        let all = (0..).zip(&mut self.fetches);
        all.filter_map(|(id, fetch)| Some((id, fetch.as_mut()?)))
    }
}

/// The commands whose rules fetch sectors.
#[derive(Debug)]
pub(super) struct RuleFetches {
    /// The operations of the first application that may fetch a sector.
    ops: OpMask,
    /// Those of the others.
    other_ops: Vec<OpMask>,
    sector_bytes: usize,
    inside: FetchTable,
    /// Contexts in use.
    in_use: usize,
    /// Commands that may be ready, in that order.
    ready: VecDeque<u32>,
    waiting: VecDeque<WaitingInput>,
    /// The inputs that wait for a context once the engine has taken its time for those before them, by
    /// command.
    entering: BTreeMap<u32, u32>,
    pub(super) stats: RuleFetchStats,
}

impl RuleFetches {
    /// Creates the table of a program. `ops` are, of each application, the operations that may fetch a
    /// sector.
    pub(super) fn new(mut ops: Vec<OpMask>, sector_bytes: usize) -> RuleFetches {
        let other_ops = ops.split_off(ops.len().min(1));
        RuleFetches {
            ops: ops.first().copied().unwrap_or(OpMask::NONE),
            other_ops,
            sector_bytes,
            inside: FetchTable::default(),
            in_use: 0,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            entering: BTreeMap::new(),
            stats: RuleFetchStats::default(),
        }
    }

    /// Whether any input may fetch a sector, or a command still has reads.
    pub(super) fn is_used(&self) -> bool {
        let mut ops = std::iter::once(&self.ops).chain(&self.other_ops);
        ops.any(|ops| *ops != OpMask::NONE) || !self.is_empty()
    }

    /// Returns the operations of an application that may fetch a sector.
    #[inline]
    fn ops_of(&self, app: AppId) -> OpMask {
        match app.index().checked_sub(1) {
            None => self.ops,
            Some(other) => self.other_ops[other],
        }
    }

    /// Returns the number of contexts in use.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Returns the bytes of a sector, which is a block of the host.
    pub(super) fn sector_bytes(&self) -> u64 {
        self.sector_bytes as u64
    }

    /// Whether all contexts for inputs that may fetch are in use.
    pub(super) fn is_full(&self) -> bool {
        self.in_use >= RULE_CONTEXTS.into()
    }

    /// Whether an input of an application may fetch a sector.
    #[inline]
    pub(super) fn may_fetch(&self, app: AppId, op: InputOp) -> bool {
        self.ops_of(app).has(op)
    }

    /// Whether a new input of an application must wait for a context.
    #[inline]
    pub(super) fn must_wait(&self, app: AppId, op: InputOp) -> bool {
        self.ops_of(app).has(op) && (self.is_full() || !self.waiting.is_empty())
    }

    /// Returns the operations of the input of a command before its last fetch.
    #[inline]
    pub(super) fn ops_before(&self, id: u32) -> u64 {
        self.inside.get(id).map_or(0, |fetch| fetch.ops)
    }

    /// Records that an input waits for a sector from now on. `ops` are its operations so far.
    pub(super) fn suspend(
        &mut self,
        input: WaitingInput,
        command: &Command,
        context: ContextId,
        lba: u64,
        ops: u64,
    ) {
        let WaitingInput { id, at } = input;
        let places = match command.io {
            IoCommand::Rule(RuleCommand { nlb, .. }) => (nlb as usize).min(RULE_READ_AHEAD),
            _ => 1,
        };
        let fetch = self.inside.get_or_begin(id, places, self.sector_bytes);
        self.in_use += usize::from(fetch.context.is_none());
        (fetch.at, fetch.context, fetch.progress) = (at, Some(context), FetchProgress::NeedsSector);
        (fetch.is_in_engine, fetch.lba, fetch.ops) = (true, lba, ops);
    }

    /// Records that the rules of an input have ended, and that its context is free.
    pub(super) fn decided(&mut self, id: u32) {
        let Some(fetch) = self.inside.get_mut(id) else { return };
        self.in_use -= usize::from(fetch.context.take().is_some());
        (fetch.progress, fetch.is_in_engine) = (FetchProgress::Decided, true);
        if fetch.reading == 0 {
            self.inside.remove(id);
        }
    }

    /// Whether any command has fetched a sector.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.inside.count == 0
    }

    /// Whether a step of a command may follow, or an input waits for a context.
    #[inline]
    pub(super) fn has_steps(&self) -> bool {
        !self.ready.is_empty() || !self.waiting.is_empty()
    }

    /// Delays what follows the decision about a command until its reads have ended. Returns whether it
    /// has to wait for them.
    pub(super) fn defer(&mut self, id: u32, work: EngineWork) -> bool {
        let Some(fetch) = self.inside.get_mut(id) else { return false };
        if fetch.reading == 0 {
            self.inside.remove(id);
            return false;
        }
        (fetch.progress, fetch.is_in_engine) = (FetchProgress::Ended(work), false);
        true
    }

    /// Returns the reads that begin, once the engine has taken its time: of the sector that the rules
    /// wait for, and of those behind it in the range of the command. Past `capacity` there is no sector.
    pub(super) fn begin(&mut self, id: u32, io: &IoCommand, capacity: u64) -> Vec<FetchRead> {
        let Some(fetch) = self.inside.get_mut(id) else { return Vec::new() };
        fetch.is_in_engine = false;
        let is_waiting = fetch.progress == FetchProgress::NeedsSector && fetch.context.is_some();
        let (first, mut reads) = (fetch.lba, Vec::new());
        if is_waiting && first >= capacity {
            let place = fetch.place_of(first);
            let place = &mut fetch.slots[place];
            if place.state != SlotState::Reading {
                let status = Status::RULE_BAD_ADDRESS.do_not_retry();
                place.set(first, SlotState::Read, status);
            }
        } else if is_waiting {
            let end = match *io {
                IoCommand::Rule(RuleCommand { slba, nlb, .. })
                    if first >= slba && first < slba + u64::from(nlb) =>
                {
                    (first + fetch.used_slots as u64).min(slba + u64::from(nlb))
                }
                _ => first + 1,
            };
            for lba in first..end {
                let place = fetch.place_of(lba);
                let slot = &mut fetch.slots[place];
                match slot.state {
                    SlotState::Reading => continue,
                    SlotState::Read if slot.lba == lba => continue,
                    SlotState::Read | SlotState::Empty => {}
                }
                slot.set(lba, SlotState::Reading, Status::SUCCESS);
                fetch.reading += 1;
                reads.push(FetchRead { place: place as u16, lba });
            }
        }
        self.stats.reads += reads.len() as u64;
        self.ready.push_back(id);
        reads
    }

    /// Returns the block of a sector that is read, and the memory that the caller fills with it.
    pub(super) fn sector_mut(&mut self, id: u32, place: u16) -> Option<(u64, &mut [u8])> {
        let place = self.inside.get_mut(id)?.place_mut(place)?;
        place.is_filled = true;
        Some((place.lba, &mut place.bytes))
    }

    /// Returns the block of a sector that is read.
    pub(super) fn block(&self, id: u32, place: u16) -> Option<u64> {
        Some(self.inside.get(id)?.places().get(usize::from(place))?.lba)
    }

    /// Records that a sector fails a check.
    pub(super) fn fail(&mut self, id: u32, place: u16, status: Status) {
        let place = self.inside.get_mut(id).and_then(|fetch| fetch.place_mut(place));
        if let Some(place) = place {
            place.status = status;
        }
    }

    /// Records the end of a read.
    pub(super) fn read_done(&mut self, id: u32, place: u16, status: Status) {
        let Some(fetch) = self.inside.get_mut(id) else {
            unreachable!("a command ends after its reads")
        };
        fetch.reading -= 1;
        let place = &mut fetch.slots[usize::from(place)];
        place.state = SlotState::Read;
        if place.status.is_success() {
            // Without its data, the sector cannot be read.
            let is_filled = place.is_filled || !status.is_success();
            place.status = if is_filled { status } else { Status::INTERNAL };
        }
        // The rules may wait for another sector, whose place was in use.
        self.ready.push_back(id);
    }

    /// Returns the next command whose step follows, or whose sector has to be read now that there is a
    /// place for it.
    pub(super) fn next_step(&mut self) -> Option<(u32, Option<FetchStep>)> {
        loop {
            let id = self.ready.pop_front()?;
            let Some(fetch) = self.inside.get(id) else { continue };
            if !fetch.is_ready() {
                let place = &fetch.slots[fetch.place_of(fetch.lba)];
                let is_blocked = !fetch.is_in_engine
                    && fetch.context.is_some()
                    && place.state != SlotState::Reading;
                if is_blocked {
                    return Some((id, None));
                }
                continue;
            }
            let input = WaitingInput { id, at: fetch.at };
            let step = match (fetch.progress, fetch.context) {
                (FetchProgress::NeedsSector, Some(_)) => {
                    let place = &fetch.slots[fetch.place_of(fetch.lba)];
                    match place.status.is_success() {
                        true => FetchStep::Resume(input),
                        false => FetchStep::Fail(fetch.lba, place.status),
                    }
                }
                (FetchProgress::NeedsSector | FetchProgress::Decided, _) => {
                    FetchStep::Restart(input)
                }
                (FetchProgress::Ended(work), _) => FetchStep::Execute(work),
            };
            if !matches!(step, FetchStep::Resume(_) | FetchStep::Fail(..)) {
                self.inside.remove(id);
            }
            return Some((id, Some(step)));
        }
    }

    /// Returns the context of an input that is resumed, and the memory of its sector. The next fetch reads
    /// the sector again, whatever the caller leaves there.
    pub(super) fn take_sector(&mut self, id: u32) -> Option<(ContextId, &mut Box<[u8]>)> {
        let fetch = self.inside.get_mut(id)?;
        let (context, place) = (fetch.context?, fetch.place_of(fetch.lba));
        let place = &mut fetch.slots[place];
        place.state = SlotState::Empty;
        self.stats.fetches += 1;
        Some((context, &mut place.bytes))
    }

    /// Ends an input whose rules wait for a sector; `work` follows its reads. Returns whether there is
    /// one.
    pub(super) fn end(&mut self, id: u32, work: EngineWork, engine: &mut RuleEngine) -> bool {
        let fetch = self.inside.get_mut(id);
        let Some(fetch) = fetch.filter(|fetch| fetch.progress == FetchProgress::NeedsSector) else {
            return false;
        };
        if let Some(context) = fetch.context.take() {
            engine.cancel(context);
            self.in_use -= 1;
        }
        fetch.progress = FetchProgress::Ended(work);
        self.ready.push_back(id);
        true
    }

    /// Returns the commands whose rules wait for a sector, in the order of their numbers.
    pub(super) fn needing_sectors(&self) -> Vec<u32> {
        let needs = |fetch: &RuleFetch| fetch.progress == FetchProgress::NeedsSector;
        self.inside.iter().filter(|(_, fetch)| needs(fetch)).map(|(id, _)| id).collect()
    }

    /// Has the inputs that wait for sectors begin again, because their program is replaced.
    pub(super) fn replace(&mut self, mut ops: Vec<OpMask>, engine: &mut RuleEngine) {
        self.other_ops = ops.split_off(ops.len().min(1));
        self.ops = ops.first().copied().unwrap_or(OpMask::NONE);
        for (id, fetch) in self.inside.iter_mut() {
            if let Some(context) = fetch.context.take() {
                engine.cancel(context);
                self.ready.push_back(id);
            }
        }
        self.in_use = 0;
    }

    /// Records an input that will wait for a context.
    pub(super) fn enter(&mut self, WaitingInput { id, at }: WaitingInput) {
        self.stats.waits += 1;
        self.entering.insert(id, at);
    }

    /// Queues the input of a command that waits for a context from now on.
    pub(super) fn wait(&mut self, id: u32) {
        if let Some(at) = self.entering.remove(&id) {
            self.waiting.push_back(WaitingInput { id, at });
        }
    }

    /// Removes and returns the first input that waits, if there is a context for it.
    pub(super) fn next_waiting(&mut self) -> Option<WaitingInput> {
        match self.in_use < RULE_CONTEXTS.into() {
            true => self.waiting.pop_front(),
            false => None,
        }
    }

    /// Removes and returns the inputs that wait for a context and that `is_ended` selects.
    pub(super) fn take_waiting(&mut self, is_ended: impl Fn(u32) -> bool) -> Vec<WaitingInput> {
        let (ended, waiting) = self.waiting.drain(..).partition(|input| is_ended(input.id));
        self.waiting = waiting;
        ended.into()
    }

    /// Loses all inputs, as a power cut does.
    pub(super) fn power_cut(&mut self, engine: &mut RuleEngine) {
        for (_, fetch) in std::mem::take(&mut self.inside).iter() {
            fetch.context.into_iter().for_each(|context| engine.cancel(context));
        }
        self.in_use = 0;
        self.ready.clear();
        self.waiting.clear();
        self.entering.clear();
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn check_invariants(&self) {
        let with_context = self.inside.iter().filter(|(_, fetch)| fetch.context.is_some()).count();
        assert_eq!(with_context, self.in_use, "contexts in use");
        assert!(self.in_use <= RULE_CONTEXTS.into(), "{} contexts", self.in_use);
        for (id, fetch) in self.inside.iter() {
            let is_read = |place: &&FetchSlot| place.state == SlotState::Reading;
            let reading = fetch.places().iter().filter(is_read).count();
            assert_eq!(reading, fetch.reading as usize, "reads of command {id}");
            assert!(
                fetch.context.is_none() || fetch.progress == FetchProgress::NeedsSector,
                "command {id} has a context after its end"
            );
        }
    }
}
