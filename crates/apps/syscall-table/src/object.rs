//! [`Object`]: the kind of file that a descriptor or a path refers to.

/// The kind of file that a descriptor or a path refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Object {
    /// No file: an invalid descriptor, or a call without one.
    #[default]
    None = 0,
    /// A regular file or a directory of the volume.
    Volume = 1,
    /// A regular file, a directory or a symbolic link outside of the volume.
    OutsideFile = 2,
    /// A pipe or FIFO.
    Pipe = 3,
    /// A socket.
    Socket = 4,
    /// A terminal.
    Terminal = 5,
    /// A character or block device that is neither a terminal nor `/dev/null`.
    Device = 6,
    /// `/dev/null`: what is written to it reaches no one.
    Null = 7,
    /// A file of the kernel's own file systems, such as `/proc`.
    Kernel = 8,
    /// A descriptor without a file: `eventfd`, `epoll`, `timerfd`, `inotify`.
    Anonymous = 9,
}

impl Object {
    /// All kinds.
    pub const ALL: [Object; 10] = [
        Object::None,
        Object::Volume,
        Object::OutsideFile,
        Object::Pipe,
        Object::Socket,
        Object::Terminal,
        Object::Device,
        Object::Null,
        Object::Kernel,
        Object::Anonymous,
    ];

    /// Returns the kind with a number; `None` for a number that no kind has.
    pub fn from_number(number: u8) -> Option<Object> {
        Object::ALL.get(usize::from(number)).copied()
    }

    /// Returns whether changes of the object are seen outside of the process and of the volume.
    pub fn is_outside(self) -> bool {
        !matches!(self, Object::None | Object::Volume | Object::Null)
    }
}
