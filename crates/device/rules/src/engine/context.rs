//! The state of an input between the steps of its rules.

use crate::ids::AppId;
use crate::instruction::{HeaderRegister, LOOP_DEPTH_MAX, REGISTERS};
use crate::program::CodeRange;

use super::action::{PackedAddress, RuleInput};

/// A loop that runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoopState {
    pub(super) count: u64,
    pub(super) limit: u64,
}

/// A change of the map that takes place when the input is placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapChange {
    pub(super) lba: u64,
    pub(super) address: PackedAddress,
}

/// Where the code of a rule is, and what it has used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Execution {
    /// The next instruction of the rule's part.
    pub(super) pc: u32,
    pub(super) loops: [LoopState; LOOP_DEPTH_MAX],
    pub(super) map_change: Option<MapChange>,
    /// The operation that the host sent.
    pub(super) origin: u64,
    /// Bytes returned to the host.
    pub(super) emitted: u64,
    /// Operations used.
    pub(super) used: u64,
    /// Operations from which on the rule pauses.
    pub(super) pause_at: u64,
}

/// The kind of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InputKind {
    #[default]
    Free,
    Command,
    Background,
    Periodic,
    Moved,
}

/// The rules that are tried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Candidates {
    /// Next in the order of rules.
    pub(super) next: u32,
    pub(super) end: u32,
    /// Where the rule that runs is in the order of rules.
    pub(super) current: u32,
    pub(super) hops: u8,
}

impl Candidates {
    pub(super) fn restart(&mut self, list: CodeRange) {
        (self.next, self.end) = (list.start, list.start + list.len);
    }
}

/// The source of an input, which its rules cannot change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InputOrigin {
    pub(super) kind: InputKind,
    pub(super) app: AppId,
    /// Addresses of the application's map.
    pub(super) map_len: u64,
}

/// The begin of an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputStart {
    pub(super) origin: InputOrigin,
    /// The rules, in the order in which they are tried.
    pub(super) list: CodeRange,
    /// Operations in the worst case.
    pub(super) stated: u64,
    /// Operations from which on a rule pauses.
    pub(super) pause_at: u64,
}

/// An input with its registers and its fetched bytes.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) origin: InputOrigin,
    pub(super) candidates: Candidates,
    pub(super) exec: Execution,
    /// Operations in the worst case.
    pub(super) stated: u64,
    /// Whether the last action was a fetch.
    pub(super) fetches: bool,
    pub(super) registers: Box<[u64; REGISTERS]>,
    pub(super) page: Box<[u8]>,
    pub(super) page_len: usize,
}

impl Context {
    pub(super) fn new(page_bytes: usize) -> Context {
        Context {
            origin: InputOrigin::default(),
            candidates: Candidates::default(),
            exec: Execution::default(),
            stated: 0,
            fetches: false,
            registers: Box::new([0; REGISTERS]),
            page: vec![0; page_bytes].into(),
            page_len: 0,
        }
    }

    /// Begins an input. Nothing that an earlier input left can be read: registers have no values
    /// until they are written, and no bytes are fetched.
    #[inline]
    pub(super) fn begin(&mut self, start: InputStart) {
        self.origin = start.origin;
        self.candidates.restart(start.list);
        self.candidates.hops = 0;
        self.exec.map_change = None;
        self.exec.emitted = 0;
        self.exec.used = 0;
        self.exec.pause_at = start.pause_at;
        self.stated = start.stated;
        self.fetches = false;
        self.page_len = 0;
    }

    /// Sets the header of an input that is no command and no moved sector: rules look up one block.
    pub(super) fn set_no_header(&mut self) {
        self.registers[HeaderRegister::Sectors as usize] = 1;
    }

    #[inline]
    pub(super) fn set_header(&mut self, input: &RuleInput) {
        let header = [
            input.op as u64,
            input.lba,
            input.sectors,
            input.arg0,
            input.arg1,
            input.tag,
            input.buffer_bytes,
        ];
        self.registers[..HeaderRegister::COUNT].copy_from_slice(&header);
        self.exec.origin = input.op as u64;
    }
}
