//! [`ServiceStage`]: a resource that commands pass in order, one at a time or with a fixed delay.

use std::collections::VecDeque;

use time::Nanos;
use tracepoint::Event;

/// A first-come-first-served resource. Departure times never decrease, so a plain queue is
/// sufficient.
#[derive(Clone, Debug)]
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

    /// Queues a command that occupies the resource for `time` once it is free.
    #[inline]
    pub(crate) fn enqueue(&mut self, now: Nanos, time: Nanos, command: u32) {
        let start = self.free_at.max(now);
        self.free_at = start + time;
        self.trace(now, command, start, self.free_at);
        self.queue.push_back((self.free_at, command));
    }

    /// Queues a command that is delayed by `time`; the delay is equal for all commands.
    #[inline]
    pub(crate) fn enqueue_delay(&mut self, now: Nanos, time: Nanos, command: u32) {
        self.trace(now, command, now, now + time);
        self.queue.push_back((now + time, command));
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

    /// Removes all commands.
    pub(crate) fn clear(&mut self) {
        *self = ServiceStage::new(self.kind);
    }
}

/// The stages that commands pass between the host and the media.
#[derive(Clone, Debug)]
pub(crate) struct CommandStages {
    pub(crate) fetch: ServiceStage,
    pub(crate) dma: ServiceStage,
    /// The DMA stage of write data, if that direction has its own path.
    pub(crate) dma_to_device: ServiceStage,
    pub(crate) post: ServiceStage,
}

impl CommandStages {
    pub(crate) fn new() -> CommandStages {
        CommandStages {
            fetch: ServiceStage::new(tracepoint::StageKind::Fetch),
            dma: ServiceStage::new(tracepoint::StageKind::Dma),
            dma_to_device: ServiceStage::new(tracepoint::StageKind::Dma),
            post: ServiceStage::new(tracepoint::StageKind::Completion),
        }
    }

    /// Returns the time at which the next command leaves any stage.
    #[inline]
    pub(crate) fn next_at(&self) -> Nanos {
        let (fetch, post) = (self.fetch.next_at(), self.post.next_at());
        let (dma, dma_in) = (self.dma.next_at(), self.dma_to_device.next_at());
        fetch.min(dma).min(dma_in).min(post)
    }

    /// Removes all commands.
    pub(crate) fn clear(&mut self) {
        for stage in [&mut self.fetch, &mut self.dma, &mut self.dma_to_device, &mut self.post] {
            stage.clear();
        }
    }
}
