//! [`ServiceStage`]: a resource that commands pass in order, one at a time or with a fixed delay.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use time::Nanos;
use tracepoint::Event;

/// A first-come-first-served resource. Departure times never decrease, so a plain queue is
/// sufficient.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServiceStage {
    kind: tracepoint::StageKind,
    free_at: Nanos,
    queue: VecDeque<(Nanos, u32)>,
}

impl ServiceStage {
    pub(crate) fn new(kind: tracepoint::StageKind) -> ServiceStage {
        ServiceStage { kind, free_at: Nanos::ZERO, queue: VecDeque::new() }
    }

    /// Emits the tracepoint of a command's time in the stage.
    #[inline(always)]
    fn trace(&self, now: Nanos, id: u32, start: Nanos, end: Nanos) {
        let station = self.kind;
        tracepoint::trace_at(now, || Event::CommandStage { id, stage: station, start, end });
    }

    /// Queues a command that occupies the resource for `time` once it is free. Returns the time at
    /// which it leaves.
    #[inline]
    pub(crate) fn enqueue(&mut self, now: Nanos, time: Nanos, command: u32) -> Nanos {
        let start = self.free_at.max(now);
        self.free_at = start + time;
        self.trace(now, command, start, self.free_at);
        self.queue.push_back((self.free_at, command));
        self.free_at
    }

    /// Queues a command that is delayed by `time`; the delay is equal for all commands. Returns the
    /// time at which it leaves.
    #[inline]
    pub(crate) fn enqueue_delay(&mut self, now: Nanos, time: Nanos, command: u32) -> Nanos {
        self.trace(now, command, now, now + time);
        self.queue.push_back((now + time, command));
        now + time
    }

    /// Returns the time at which the next command leaves.
    #[inline]
    pub(crate) fn next_at(&self) -> Nanos {
        self.queue.front().map_or(Nanos::MAX, |q| q.0)
    }

    /// Removes and returns the next command that has left by `now`.
    #[inline]
    pub(crate) fn dequeue(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        if self.next_at() > now {
            return None;
        }
        self.queue.pop_front()
    }
}

/// The stages that commands pass between the host and the media.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommandStages {
    stages: [ServiceStage; 4],
    /// The times at which the next commands leave the stages.
    due: [Nanos; 4],
    /// The earlier of the times at which the next command leaves any stage, and of `interrupt`.
    next_at: Nanos,
    /// A time at which the controller has something to do that is not about a command.
    interrupt: Nanos,
}

/// A stage of [`CommandStages`], in the order in which commands leave that are due at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Fetch,
    Dma,
    /// The DMA stage of write data, if that direction has its own path.
    DmaToDevice,
    Post,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::Fetch, Stage::Dma, Stage::DmaToDevice, Stage::Post];
}

impl CommandStages {
    pub(crate) fn new() -> CommandStages {
        use tracepoint::StageKind::{Completion, Dma, Fetch};
        let stages = [Fetch, Dma, Dma, Completion].map(ServiceStage::new);
        CommandStages { stages, due: [Nanos::MAX; 4], next_at: Nanos::MAX, interrupt: Nanos::MAX }
    }

    /// Returns the time at which the next command leaves any stage, or of the interrupt.
    #[inline]
    pub(crate) fn next_at(&self) -> Nanos {
        self.next_at
    }

    /// Returns whether any command is in a stage.
    #[inline]
    pub(crate) fn is_occupied(&self, stage: Stage) -> bool {
        self.due[stage as usize] != Nanos::MAX
    }

    /// Sets the time of the interrupt; [`Nanos::MAX`] for none.
    pub(crate) fn set_interrupt(&mut self, at: Nanos) {
        self.interrupt = at;
        self.update_next();
    }

    #[inline]
    fn update_next(&mut self) {
        self.next_at = self.due.iter().fold(self.interrupt, |next, due| next.min(*due));
    }

    /// Queues a command that occupies a stage for `time` once the stage is free.
    #[inline]
    pub(crate) fn enqueue(&mut self, stage: Stage, now: Nanos, time: Nanos, command: u32) {
        let leaves = self.stages[stage as usize].enqueue(now, time, command);
        self.update_due(stage, leaves);
    }

    /// Queues a command that a stage delays by `time`; the delay is equal for all commands.
    #[inline]
    pub(crate) fn enqueue_delay(&mut self, stage: Stage, now: Nanos, time: Nanos, command: u32) {
        let leaves = self.stages[stage as usize].enqueue_delay(now, time, command);
        self.update_due(stage, leaves);
    }

    /// Records that a command that entered a stage leaves it at `leaves`.
    #[inline]
    fn update_due(&mut self, stage: Stage, leaves: Nanos) {
        // Commands that entered earlier leave first.
        let due = &mut self.due[stage as usize];
        if *due == Nanos::MAX {
            *due = leaves;
            self.next_at = leaves.min(self.next_at);
        }
    }

    /// Removes the next command that has left its stage by `now`. Returns the stage, the time at
    /// which it left, and the command; `None` if only the interrupt is due, or nothing.
    #[inline]
    pub(crate) fn dequeue(&mut self, now: Nanos) -> Option<(Stage, Nanos, u32)> {
        if self.next_at > now {
            return None;
        }
        let stage = Stage::ALL.into_iter().find(|stage| self.due[*stage as usize] <= now)?;
        let queue = &mut self.stages[stage as usize];
        let (at, command) = queue.dequeue(now)?;
        self.due[stage as usize] = queue.next_at();
        self.update_next();
        Some((stage, at, command))
    }

    /// Removes all commands, but not the interrupt.
    pub(crate) fn clear(&mut self) {
        *self = CommandStages { interrupt: self.interrupt, ..CommandStages::new() };
        self.update_next();
    }
}
