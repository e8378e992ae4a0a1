//! [`ProfileEvent`]: an event of the plugin, and its wire format.

use syscall_table::Object;

/// Words of an event in the ring. The first is its sequence number.
pub const EVENT_WORDS: usize = 16;

/// A program that runs without being profiled, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkippedProgram {
    /// It is built for another machine.
    OtherMachine,
    /// It is set-user-ID or set-group-ID.
    Privileged,
    /// It was executed by a descriptor (`execveat`).
    ByDescriptor,
    /// It has too many interpreters of scripts, or too many arguments.
    TooDeep,
}

impl SkippedProgram {
    fn from_number(number: u8) -> Option<SkippedProgram> {
        Some(match number {
            1 => SkippedProgram::OtherMachine,
            2 => SkippedProgram::Privileged,
            3 => SkippedProgram::ByDescriptor,
            4 => SkippedProgram::TooDeep,
            _ => return None,
        })
    }

    /// Returns the reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            SkippedProgram::OtherMachine => "it is no program of this machine (x86-64 ELF)",
            SkippedProgram::Privileged => "it is set-user-ID or set-group-ID",
            SkippedProgram::ByDescriptor => "it was executed by a descriptor",
            SkippedProgram::TooDeep => "it has too many interpreters or arguments",
        }
    }
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An image started: a process, or another program in it.
    Start,
    /// The process was forked.
    Fork {
        /// Its parent.
        parent: u32,
        /// Instructions that all threads of the parent had counted.
        base: u64,
    },
    /// A call returned.
    Call {
        /// Number of the call.
        number: u64,
        /// Its object.
        object: Object,
        /// Its result: negative for an error.
        result: i64,
        /// Its arguments.
        arguments: [u64; 6],
        /// Identifier of the watched buffers; zero without.
        watch: u64,
    },
    /// A call that does not return started.
    LastCall {
        /// Number of the call.
        number: u64,
        /// Its arguments.
        arguments: [u64; 6],
    },
    /// The data of a read were used, by an instruction or by a call.
    Use {
        /// Identifier of the watched buffers.
        watch: u64,
        /// Number of the call that used them; `None` for an instruction.
        by_call: Option<u64>,
    },
    /// A buffer was filled by another read before its data were used.
    Overwritten {
        /// Identifier of the watched buffers.
        watch: u64,
        /// Whether the plugin had no room for more buffers.
        is_limit: bool,
    },
    /// An instruction stored to a shared mapping.
    SharedStore {
        /// Object of the mapping.
        object: Object,
    },
    /// The image ended by `exit_group` or `execve`.
    End {
        /// Instructions of all its threads.
        instructions: u64,
    },
    /// A program was executed that is not profiled.
    NotFollowed(SkippedProgram),
}

/// An event of the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileEvent {
    /// Kind.
    pub kind: EventKind,
    /// Process.
    pub process: u32,
    /// Virtual CPU in the process. A number is used by another thread once its thread has ended.
    pub thread: u32,
    /// Instructions that the thread has executed.
    pub count: u64,
    /// Name of the program, at most 23 bytes.
    pub name: String,
}

const NAME_WORD: usize = 13;

impl ProfileEvent {
    /// Decodes the words of a slot; `None` if they are no event.
    pub fn decode(words: &[u64; EVENT_WORDS]) -> Option<ProfileEvent> {
        let half = |word: u64, upper: bool| (if upper { word >> 32 } else { word }) as u32;
        let number = u64::from(half(words[1], true));
        let object_number = (words[1] >> 16) as u8;
        let object = Object::from_number(object_number);
        let (result, extra) = (words[5].cast_signed(), words[12]);
        let [.., a1, a2, a3, a4, a5, a6, _, _, _, _] = *words;
        let arguments = [a1, a2, a3, a4, a5, a6];
        let kind = match words[1] as u16 {
            1 => EventKind::Start,
            2 => EventKind::Fork { parent: half(extra, false), base: a1 },
            3 => EventKind::Call { number, object: object?, result, arguments, watch: extra },
            4 => EventKind::LastCall { number, arguments },
            5 => {
                // Calls that use a buffer have numbers above zero: `read` does not.
                EventKind::Use { watch: extra, by_call: (number != 0).then_some(number) }
            }
            6 => EventKind::SharedStore { object: object? },
            7 => EventKind::End { instructions: extra },
            8 => EventKind::NotFollowed(SkippedProgram::from_number(object_number)?),
            9 => EventKind::Overwritten { watch: extra, is_limit: object_number != 0 },
            _ => return None,
        };
        let mut name = Vec::with_capacity(24);
        for word in &words[NAME_WORD..] {
            name.extend_from_slice(&word.to_le_bytes());
        }
        name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(23));
        Some(ProfileEvent {
            kind,
            process: half(words[2], false),
            thread: half(words[2], true),
            count: words[3],
            name: String::from_utf8_lossy(&name).into_owned(),
        })
    }
}
