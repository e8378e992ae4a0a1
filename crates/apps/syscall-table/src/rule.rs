//! [`Rule`]: how the effect of a call follows from its arguments and its object.

use crate::Object;

/// Effect of a call, as far as speculation is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Changes nothing outside of the process. It never waits.
    Pure,
    /// Reads or changes the volume. Its service orders it; it never waits.
    Volume,
    /// May be observed from outside. It waits until everything before it is durable.
    Output,
    /// Not known. It waits.
    Unknown,
}

impl Effect {
    /// Returns whether the call waits for pending writes.
    pub fn waits(self) -> bool {
        matches!(self, Effect::Output | Effect::Unknown)
    }

    /// Returns the name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Effect::Pure => "pure",
            Effect::Volume => "volume",
            Effect::Output => "output",
            Effect::Unknown => "unknown",
        }
    }
}

/// How the effect of a call is decided. Numbers are indexes of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Always pure.
    Pure,
    /// Always output.
    Output,
    /// Never known.
    Unknown,
    /// Reads of a path: pure, also on the volume.
    ReadPath,
    /// Reads through a descriptor.
    ReadDescriptor(u8),
    /// Changes through a descriptor.
    Descriptor(u8),
    /// Moves the position of a descriptor.
    Position(u8),
    /// Closes a descriptor: the peer of a pipe or socket may see its end.
    Close(u8),
    /// Closes the descriptor that the argument names, if it is open, to use its number again.
    Replace(u8),
    /// `ioctl`: known requests are pure, others are unknown outside of the volume.
    Control,
    /// `fcntl`: locks and leases are changes of the descriptor's object, other commands are pure.
    FileControl,
    /// `mmap`: a writable shared mapping of a file outside of the volume is unknown.
    Map,
    /// Changes a path, relative to the descriptor in `directory`.
    Path {
        /// Argument with the directory's descriptor.
        directory: Option<u8>,
        /// Argument with the path.
        path: u8,
    },
    /// Opens a path: pure, unless the flags create or truncate, or the peer of a FIFO waits for it.
    Open {
        /// Argument with the directory's descriptor.
        directory: Option<u8>,
        /// Argument with the path.
        path: u8,
        /// Argument with the flags.
        flags: u8,
    },
    /// Sends a signal to the process in the argument: pure for the own process.
    Signal(u8),
    /// `clone`: a thread is pure, a process is output.
    Clone,
}

/// Data that a call transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTransfer {
    /// None.
    None,
    /// From the file to the buffer in arguments 1 and 2.
    Read,
    /// From the file to the buffers of the `iovec` array in arguments 1 and 2.
    ReadVector,
    /// From the buffer in arguments 1 and 2 to the file.
    Write,
    /// From the buffers of the `iovec` array in arguments 1 and 2 to the file.
    WriteVector,
    /// Makes written data durable.
    Sync,
}

/// Arguments of a call that name its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Operands {
    /// Argument with the descriptor of the object.
    pub descriptor: Option<u8>,
    /// Argument with the descriptor of the directory that the path is relative to.
    pub directory: Option<u8>,
    /// Argument with the path of the object.
    pub path: Option<u8>,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Number on x86-64.
    pub number: u16,
    /// Name, as in the kernel's headers.
    pub name: &'static str,
    /// How its effect is decided.
    pub rule: Rule,
}

pub(crate) const O_ACCMODE: u64 = 0o3;
pub(crate) const O_CREAT: u64 = 0o100;
pub(crate) const O_TRUNC: u64 = 0o1000;
pub(crate) const CLONE_THREAD: u64 = 0x0001_0000;
/// Bit of `MAP_SHARED` and `MAP_SHARED_VALIDATE`, which `MAP_PRIVATE` does not have. The kernel makes
/// no mapping without either.
pub(crate) const MAP_SHARED: u64 = 0x01;
pub(crate) const MAP_ANONYMOUS: u64 = 0x20;
const PROT_WRITE: u64 = 0x2;

/// Requests of `ioctl` that change nothing outside of the process: `TCGETS`, `TIOCGPGRP`,
/// `TIOCGWINSZ`, `FIONREAD`, `FIONBIO`, `FIONCLEX`, `FIOCLEX`, `FIOASYNC`.
pub(crate) const PURE_REQUESTS: [u64; 8] =
    [0x5401, 0x540f, 0x5413, 0x541b, 0x5421, 0x5450, 0x5451, 0x5452];

/// Commands of `fcntl` that others can observe: `F_SETLK`, `F_SETLKW`, `F_OFD_SETLK`,
/// `F_OFD_SETLKW`, `F_SETLEASE`, `F_NOTIFY`, `F_SETPIPE_SZ`, `F_ADD_SEALS`.
pub(crate) const SHARED_COMMANDS: [u64; 8] = [6, 7, 37, 38, 1024, 1026, 1031, 1033];

impl SystemCall {
    /// Returns the effect of a call with these arguments on this object, made by the process
    /// `process`.
    pub fn effect(&self, object: Object, arguments: &[u64; 6], process: u32) -> Effect {
        let argument = |index: u8| arguments.get(usize::from(index)).copied().unwrap_or(0);
        let change = match object {
            Object::None | Object::Null => Effect::Pure,
            Object::Volume => Effect::Volume,
            _ => Effect::Output,
        };
        let read = if object == Object::Volume { Effect::Volume } else { Effect::Pure };
        match self.rule {
            Rule::Pure | Rule::ReadPath => Effect::Pure,
            Rule::Output => Effect::Output,
            Rule::Unknown => Effect::Unknown,
            Rule::ReadDescriptor(_) | Rule::Position(_) => read,
            Rule::Descriptor(_) | Rule::Path { .. } => change,
            Rule::Close(_) | Rule::Replace(_) => match object {
                Object::Pipe | Object::Socket => Effect::Output,
                _ => read,
            },
            // A descriptor's type is in the low half of the register.
            Rule::Control if PURE_REQUESTS.contains(&(argument(1) & 0xffff_ffff)) => Effect::Pure,
            Rule::Control => match object {
                Object::None => Effect::Pure,
                Object::Volume => Effect::Volume,
                _ => Effect::Unknown,
            },
            Rule::FileControl if SHARED_COMMANDS.contains(&(argument(1) & 0xffff_ffff)) => change,
            Rule::FileControl => Effect::Pure,
            Rule::Map if is_shared_writable_file(arguments) && object.is_outside() => {
                Effect::Unknown
            }
            Rule::Map => Effect::Pure,
            Rule::Open { flags, .. } if argument(flags) & (O_CREAT | O_TRUNC) != 0 => change,
            Rule::Open { flags, .. }
                if argument(flags) & O_ACCMODE != 0 && object == Object::Pipe =>
            {
                Effect::Output
            }
            Rule::Open { .. } => Effect::Pure,
            Rule::Signal(of) if argument(of) & 0xffff_ffff == u64::from(process) => Effect::Pure,
            Rule::Signal(_) => Effect::Output,
            Rule::Clone if argument(0) & CLONE_THREAD != 0 => Effect::Pure,
            Rule::Clone => Effect::Output,
        }
    }

    /// Returns whether the call stops a speculation by the rule of [Spec14 §3]: every call with a
    /// side effect stops it, and table 2 of the paper has `lseek` and `close` among them. Reads do
    /// not.
    pub fn stops_paper_rule(&self, effect: Effect) -> bool {
        match self.rule {
            Rule::ReadDescriptor(_) | Rule::ReadPath => false,
            Rule::Position(_) | Rule::Close(_) => true,
            _ => effect != Effect::Pure,
        }
    }

    /// Returns the arguments that name the object of the call.
    pub fn operands(&self) -> Operands {
        let descriptor = |descriptor| Operands { descriptor, ..Operands::default() };
        match self.rule {
            Rule::ReadDescriptor(of)
            | Rule::Descriptor(of)
            | Rule::Position(of)
            | Rule::Close(of)
            | Rule::Replace(of) => descriptor(Some(of)),
            Rule::Control | Rule::FileControl => descriptor(Some(0)),
            Rule::Map => descriptor(Some(4)),
            Rule::Path { directory, path } | Rule::Open { directory, path, .. } => {
                Operands { descriptor: None, directory, path: Some(path) }
            }
            _ => descriptor(None),
        }
    }

    /// Returns the data that the call transfers.
    pub fn transfer(&self) -> CallTransfer {
        match self.name {
            "read" | "pread64" => CallTransfer::Read,
            "readv" | "preadv" | "preadv2" => CallTransfer::ReadVector,
            "write" | "pwrite64" => CallTransfer::Write,
            "writev" | "pwritev" | "pwritev2" => CallTransfer::WriteVector,
            "fsync" | "fdatasync" | "sync_file_range" | "syncfs" => CallTransfer::Sync,
            _ => CallTransfer::None,
        }
    }
}

fn is_shared_writable_file(arguments: &[u64; 6]) -> bool {
    let [_, _, protection, flags, ..] = *arguments;
    flags & MAP_SHARED != 0 && flags & MAP_ANONYMOUS == 0 && protection & PROT_WRITE != 0
}
