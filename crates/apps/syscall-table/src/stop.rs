//! [`StopCondition`]: the calls that a filter of system calls must stop.
//!
//! A filter (`seccomp(2)`) sees the number of a call and its arguments. It does not see the object
//! of the call, nor memory that an argument points to. So it must stop every call that
//! [waits](crate::Effect::waits) on some object outside of the volume.

use crate::rule::{
    CLONE_THREAD, MAP_ANONYMOUS, MAP_SHARED, O_ACCMODE, O_CREAT, O_TRUNC, PURE_REQUESTS,
    SHARED_COMMANDS,
};
use crate::{Rule, SystemCall};

/// Condition under which a filter must stop a call. Only the lower 32 bits of an argument count, as
/// for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCondition {
    /// No call of this number waits.
    Never,
    /// Every call of this number may wait.
    Always,
    /// Calls with one of the bits in an argument.
    AnyBit {
        /// Index of the argument.
        argument: u8,
        /// The bits.
        mask: u32,
    },
    /// Calls with this value in some bits of an argument.
    Masked {
        /// Index of the argument.
        argument: u8,
        /// The bits that are compared.
        mask: u32,
        /// Their value.
        value: u32,
    },
    /// Calls with one of the values in an argument.
    OneOf {
        /// Index of the argument.
        argument: u8,
        /// The values.
        values: &'static [u64],
    },
    /// Calls with none of the values in an argument.
    NoneOf {
        /// Index of the argument.
        argument: u8,
        /// The values.
        values: &'static [u64],
    },
}

impl StopCondition {
    /// Returns whether a filter must stop a call with these arguments.
    pub fn stops(self, arguments: &[u64; 6]) -> bool {
        let low = |index: u8| arguments.get(usize::from(index)).map_or(0, |word| *word as u32);
        let has = |index, values: &[u64]| values.contains(&u64::from(low(index)));
        match self {
            StopCondition::Never => false,
            StopCondition::Always => true,
            StopCondition::AnyBit { argument, mask } => low(argument) & mask != 0,
            StopCondition::Masked { argument, mask, value } => low(argument) & mask == value,
            StopCondition::OneOf { argument, values } => has(argument, values),
            StopCondition::NoneOf { argument, values } => !has(argument, values),
        }
    }
}

impl SystemCall {
    /// Returns which calls of this number a filter must stop.
    pub fn stop(&self) -> StopCondition {
        match self.rule {
            Rule::Pure | Rule::ReadPath | Rule::ReadDescriptor(_) | Rule::Position(_) => {
                StopCondition::Never
            }
            Rule::Output
            | Rule::Unknown
            | Rule::Descriptor(_)
            | Rule::Path { .. }
            | Rule::Close(_)
            | Rule::Replace(_)
            | Rule::Signal(_) => StopCondition::Always,
            Rule::Open { flags, .. } => {
                let mask = (O_CREAT | O_TRUNC | O_ACCMODE) as u32;
                StopCondition::AnyBit { argument: flags, mask }
            }
            Rule::Clone => {
                StopCondition::Masked { argument: 0, mask: CLONE_THREAD as u32, value: 0 }
            }
            // Later protections of a mapping are not seen, so a mapping without writes counts too.
            Rule::Map => {
                let (mask, value) = ((MAP_SHARED | MAP_ANONYMOUS) as u32, MAP_SHARED as u32);
                StopCondition::Masked { argument: 3, mask, value }
            }
            Rule::Control => StopCondition::NoneOf { argument: 1, values: &PURE_REQUESTS },
            Rule::FileControl => StopCondition::OneOf { argument: 1, values: &SHARED_COMMANDS },
        }
    }

    /// Returns whether a runtime has the call fail with `ENOSYS`, after which programs use another
    /// one. The calls of io_uring transfer data without further calls, and the flags of `clone3`
    /// are in memory, where a filter does not see them.
    pub fn is_denied(&self) -> bool {
        let names = ["io_uring_setup", "io_uring_enter", "io_uring_register", "clone3"];
        names.contains(&self.name)
    }

    /// Returns whether others may read the memory of the process later on, without further calls,
    /// once a stopped call with these arguments was made. A file that is mapped and shared may be
    /// open for reading only, and is then not written by others' readers.
    pub fn shares_memory(&self, arguments: &[u64; 6]) -> bool {
        const MSG_ZEROCOPY: u64 = 0x0400_0000;
        let [_, _, second, third, ..] = *arguments;
        match self.name {
            "mmap" | "shmat" | "vmsplice" | "ptrace" | "userfaultfd" => true,
            "sendto" | "sendmmsg" => third & MSG_ZEROCOPY != 0,
            "sendmsg" => second & MSG_ZEROCOPY != 0,
            _ => false,
        }
    }
}
