//! [`Cores`]: the block layer's queues, one per core, as one device.
//!
//! Whoever submits is dealt to a core: job `i` to core `i` modulo the cores, by the part of the tag
//! that names it ([`workload::job_of_tag`]). In virtual time all cores are here, and take turns in
//! their order; what one has done, the others see at the same instant.

use block::{BlockLayer, Busy, Completion, Device, Group, Limits, Queue, Request};
use clock::{Component, Nanos, Waker};
use driver::EmulatedQueue;
use ring::AddressSpace;
use workload::job_of_tag;

/// The block layer of one drive, with all its cores.
#[derive(Debug)]
pub struct Cores {
    kind: &'static str,
    layer: BlockLayer,
    queues: Box<[Queue<EmulatedQueue>]>,
    /// Of each job; jobs beyond are in group 0.
    groups: Vec<Group>,
    /// A completion that the last poll found, if it has not been reaped.
    found: Option<Completion>,
    /// Which core is polled first: whoever finds completions is the first to use the tags that they
    /// free, so all take turns at it.
    first: usize,
    /// When that last changed.
    turned: Nanos,
    /// Of every core the same.
    limits: Limits,
}

impl Cores {
    /// The cores of `layer`, which is called `kind`; `None` if there is none.
    pub(super) fn new(
        kind: &'static str,
        layer: BlockLayer,
        queues: Vec<Queue<EmulatedQueue>>,
    ) -> Option<Cores> {
        let limits = *queues.first()?.limits();
        let queues = queues.into();
        Some(Cores {
            kind,
            layer,
            queues,
            groups: Vec::new(),
            found: None,
            first: 0,
            turned: Nanos::ZERO,
            limits,
        })
    }

    /// `"sq"` or `"mq"`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The layer, for its counters.
    pub fn layer(&self) -> &BlockLayer {
        &self.layer
    }

    /// Each core's end, in order.
    pub fn queues_mut(&mut self) -> &mut [Queue<EmulatedQueue>] {
        &mut self.queues
    }

    /// Says which group each job is in, clones counted one by one.
    pub fn set_groups(&mut self, groups: Vec<Group>) {
        self.groups = groups;
    }

    #[inline]
    fn take(&mut self) -> Option<Completion> {
        self.queues.iter_mut().find_map(Device::reap)
    }
}

impl Component for Cores {
    /// Polls every core until none moves: a completion that one has found may be another's, and so
    /// may the tag that it frees.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        loop {
            let mut again = false;
            let (before, from) = self.queues.split_at_mut(self.first);
            for queue in from.iter_mut().chain(before) {
                again |= queue.poll(now);
            }
            if !again {
                break;
            }
            moved = true;
        }
        // Once per instant at which something happens: how often somebody looks changes no result.
        if moved && now > self.turned {
            self.turned = now;
            self.first = (self.first + 1) % self.queues.len();
        }
        if self.found.is_none() {
            self.found = self.take();
            moved |= self.found.is_some();
        }
        moved
    }

    /// A completion that nobody has reaped is due at once: the layer answers some requests itself,
    /// and then no drive calls for attention.
    #[inline]
    fn deadline(&self) -> Nanos {
        if self.found.is_some() {
            return Nanos::ZERO;
        }
        self.queues.iter().map(Component::deadline).min().unwrap_or(Nanos::MAX)
    }
}

impl Device for Cores {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        let job = job_of_tag(request.tag);
        // There is at least one.
        let core = job % self.queues.len();
        let queue = &mut self.queues[core];
        queue.set_group(self.groups.get(job).copied().unwrap_or_default());
        queue.submit(now, request)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        match self.found.take() {
            Some(completion) => Some(completion),
            None => self.take(),
        }
    }

    fn memory(&self) -> &AddressSpace {
        self.queues[0].memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        for queue in &mut self.queues {
            queue.set_waker(waker.clone());
        }
    }
}
