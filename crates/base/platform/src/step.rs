//! [`Step`]: the steps of host software whose processor time a modeled machine charges.

/// The layers of host software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// The program that issues requests.
    Application,
    /// System calls, the file system and asynchronous I/O, which are not part of the stack.
    Kernel,
    /// The block layer.
    Block,
    /// A target on host-managed flash.
    Target,
    /// The low-level driver.
    Driver,
}

impl Layer {
    /// All layers, from the program to the device.
    pub const ALL: [Layer; 5] =
        [Layer::Application, Layer::Kernel, Layer::Block, Layer::Target, Layer::Driver];

    /// Returns the name as results show it.
    pub const fn word(self) -> &'static str {
        match self {
            Layer::Application => "application",
            Layer::Kernel => "kernel",
            Layer::Block => "block",
            Layer::Target => "target",
            Layer::Driver => "driver",
        }
    }
}

/// A step of host software.
///
/// The instructions of each step are counted by single steps of the processor (`make
/// instructions`); a sheet says how long an instruction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The program decides on a request and prepares it.
    Decide,
    /// The program processes a completion.
    Complete,
    /// Block layer: accepts a request in the submitter's table, and plugs it.
    Submit,
    /// Block layer: begins a run of the queues.
    Run,
    /// Block layer: takes a request out of the plug.
    Unplug,
    /// Block layer: inserts a request into the staging queue and takes it out again.
    Stage,
    /// Block layer: starts a request: tag, accounting, command.
    Start,
    /// Driver: makes bound commands known to the device.
    Issue,
    /// Block layer: fetches a completion and gives its tag back.
    Fetch,
    /// Block layer: gives a completion to its submitter, on a run of the queues.
    Deliver,
    /// Block layer: ends a run of the queues: whom to wake, and when to run again.
    Settle,
    /// Block layer: returns a completion.
    Reap,
    /// Block layer: looks for work and completions.
    Poll,
    /// Work of a kernel for a request before the block layer, which is not part of the stack.
    KernelStart,
    /// Work of a kernel for a request after the block layer.
    KernelFinish,
    /// Waiting threads: starts a request, in a slot of its thread.
    WaitSubmit,
    /// Waiting threads: a thread continues, and examines its slot.
    Resume,
    /// Waiting threads: takes the completions of a drive that others have found.
    Collect,
    /// Waiting threads: finishes a request, but for the copy of its data.
    Finish,
    /// Waiting threads: finds the thread of a completion and wakes it, or the soft interrupt.
    Notify,
    /// Waiting threads: a context turns to a drive.
    Handle,
    /// Waiting threads: copies a cache line of data.
    CopyLine,
    /// Driver: reads a register of the device.
    ReadRegister,
    /// Driver: makes a command of a request, and writes the doorbell.
    Command,
    /// Driver: takes a completion from its queue.
    Event,
    /// Target: looks a sector up that is read.
    Lookup,
    /// Target: takes a sector that is written, with its part of the write unit.
    Admit,
    /// Target: moves a sector, for garbage collection.
    Move,
    /// Key-value target: finds a key that is read, and reads its value.
    Find,
    /// Key-value target: puts a record, with its part of the write unit, and enters it in the index.
    Store,
    /// Key-value target: relocates a record, for compaction, with the work for superseded ones beside
    /// it.
    Relocate,
    /// Key-value target: copies a cache line of a record, or computes its part of the checksum.
    RecordLine,
    /// Key-value target: a cache line of a record that the drive has written, for the first pass.
    DriveLine,
    /// Key-value target: a poll that finds something to do, which asks all parts of the target.
    Turn,
}

impl Step {
    /// All steps.
    pub const ALL: [Step; 34] = [
        Step::Decide,
        Step::Complete,
        Step::Submit,
        Step::Run,
        Step::Unplug,
        Step::Stage,
        Step::Start,
        Step::Issue,
        Step::Fetch,
        Step::Deliver,
        Step::Settle,
        Step::Reap,
        Step::Poll,
        Step::KernelStart,
        Step::KernelFinish,
        Step::WaitSubmit,
        Step::Resume,
        Step::Collect,
        Step::Finish,
        Step::Notify,
        Step::Handle,
        Step::CopyLine,
        Step::ReadRegister,
        Step::Command,
        Step::Event,
        Step::Lookup,
        Step::Admit,
        Step::Move,
        Step::Find,
        Step::Store,
        Step::Relocate,
        Step::RecordLine,
        Step::DriveLine,
        Step::Turn,
    ];

    /// Returns the layer that does this work.
    pub const fn layer(self) -> Layer {
        match self {
            Step::Decide | Step::Complete => Layer::Application,
            Step::KernelStart | Step::KernelFinish => Layer::Kernel,
            Step::Issue | Step::Command | Step::Event | Step::ReadRegister => Layer::Driver,
            Step::Lookup | Step::Admit | Step::Move => Layer::Target,
            Step::Find | Step::Store | Step::Relocate => Layer::Target,
            Step::RecordLine | Step::DriveLine | Step::Turn => Layer::Target,
            _ => Layer::Block,
        }
    }

    /// Returns the name as sheets and results show it.
    pub const fn word(self) -> &'static str {
        match self {
            Step::Decide => "decide",
            Step::Complete => "complete",
            Step::Submit => "submit",
            Step::Run => "run",
            Step::Unplug => "unplug",
            Step::Stage => "stage",
            Step::Start => "start",
            Step::Issue => "issue",
            Step::Fetch => "fetch",
            Step::Deliver => "deliver",
            Step::Settle => "settle",
            Step::Reap => "reap",
            Step::Poll => "poll",
            Step::KernelStart => "kernel_start",
            Step::KernelFinish => "kernel_finish",
            Step::WaitSubmit => "wait_submit",
            Step::Resume => "resume",
            Step::Collect => "collect",
            Step::Finish => "finish",
            Step::Notify => "notify",
            Step::Handle => "handle",
            Step::CopyLine => "copy_line",
            Step::ReadRegister => "read_register",
            Step::Command => "command",
            Step::Event => "event",
            Step::Lookup => "lookup",
            Step::Admit => "admit",
            Step::Move => "move",
            Step::Find => "find",
            Step::Store => "store",
            Step::Relocate => "relocate",
            Step::RecordLine => "record_line",
            Step::DriveLine => "drive_line",
            Step::Turn => "turn",
        }
    }

    /// Returns the instructions of a step on x86-64, as `cargo bench --package sluice-block --bench
    /// steps` counts them: a step has one number, although the compiler's code for it differs
    /// between owned and shared queues; the sum over a request is within 3 % on both. Those of the
    /// program are not counted: the program is a job of a scenario
    /// or a bench, which has its own time.
    pub const fn instructions(self) -> u32 {
        match self {
            Step::Decide | Step::Complete => 0,
            // Times of their own: of a kernel, of a line of the last-level cache, of a register.
            Step::KernelStart | Step::KernelFinish | Step::ReadRegister => 0,
            Step::CopyLine | Step::DriveLine => 0,
            Step::WaitSubmit => 282,
            Step::Resume => 60,
            Step::Collect => 250,
            Step::Finish => 76,
            Step::Notify => 120,
            Step::Handle => 60,
            Step::Submit => 131,
            Step::Run => 110,
            Step::Unplug => 48,
            Step::Stage => 200,
            Step::Start => 64,
            Step::Issue => 33,
            Step::Fetch => 126,
            Step::Deliver => 60,
            Step::Settle => 154,
            Step::Reap => 8,
            Step::Poll => 60,
            // The case `raw-read` of the instructions of pblk's requests: 290 in all.
            Step::Command => 190,
            Step::Event => 100,
            // `pblk-read` and `pblk-write` without `raw-read`: 641 and 701 in all.
            Step::Lookup => 351,
            Step::Admit => 411,
            // A read and a write.
            Step::Move => 1342,
            // `cargo bench --package sluice-kv --bench steps`.
            Step::Find => 2320,
            Step::Store => 3990,
            Step::Relocate => 13_850,
            Step::RecordLine => 29,
            Step::Turn => 650,
        }
    }
}
