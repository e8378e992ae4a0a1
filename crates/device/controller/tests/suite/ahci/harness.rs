//! A controller and its host in virtual time.

#![allow(unreachable_pub, reason = "shared by the tests of one target")]

use std::sync::Arc;

use controller::{AhciConfig, AhciController, SataData, SataDriveConfig};
use driver::{
    AhciHost, AhciPort, BindError, CompletionEvent, HardwareQueue, Payload, Request, Tag,
};
use mem::{Iova, SharedRegion};
use nvme::Status;
use time::{Component, Nanos, VirtualRunner};

/// A controller and its host in virtual time.
pub struct Harness {
    pub controller: AhciController,
    pub runner: VirtualRunner,
    pub host: AhciHost,
    pub queues: Vec<AhciPort>,
    /// Registered memory for payloads.
    pub region: Arc<SharedRegion>,
    pub at: Iova,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    pub queue: usize,
    pub user: u64,
    pub status: Status,
    pub latency: Nanos,
}

pub fn config(drives: usize, sectors: u64, data: SataData) -> AhciConfig {
    AhciConfig::uniform(drives, &SataDriveConfig { sectors, data, ..SataDriveConfig::default() })
}

impl Harness {
    pub fn new(config: &AhciConfig) -> Harness {
        let function = config.function().unwrap();
        let mut controller = AhciController::new(function.clone(), config).unwrap();
        let mut runner = VirtualRunner::new();
        let mut progress = || {
            runner.step(&mut [&mut controller], Nanos::MAX);
        };
        let mut host = AhciHost::connect(function, &mut progress, 1000).unwrap();
        let queues = host.take_queues();
        let region = SharedRegion::anonymous(64 << 20).unwrap();
        let at = controller.function().memory().register(&region).unwrap();
        Harness { controller, runner, host, queues, region, at }
    }

    pub fn now(&self) -> Nanos {
        self.runner.now()
    }

    /// Binds and issues a request.
    pub fn submit(&mut self, queue: usize, request: &Request) -> Result<Tag, BindError> {
        let (queue, now) = (&mut self.queues[queue], self.runner.now());
        let mut tag = [Tag(0)];
        if queue.get_free_tags(&mut tag) == 0 {
            return Err(BindError::Busy);
        }
        if let Err(error) = queue.bind_tag_cmd(tag[0], request, now) {
            queue.release_tags(&tag).unwrap();
            return Err(error);
        }
        queue.issue_tags();
        Ok(tag[0])
    }

    /// Reaps all completions; every event must belong to a command.
    pub fn reap(&mut self, into: &mut Vec<CompletedRequest>) {
        let now = self.runner.now();
        for (index, queue) in self.queues.iter_mut().enumerate() {
            while let Some(CompletionEvent { tag, status, result }) = queue.fetch_event() {
                assert_eq!(result, 0);
                let command = queue.detach_tag_cmd(tag).expect("an event without a command");
                queue.release_tags(&[tag]).unwrap();
                let latency = AhciPort::end_cmd(&command, now);
                into.push(CompletedRequest { queue: index, user: command.user, status, latency });
            }
        }
    }

    /// Runs all work at the present time, then advances to the next deadline. Returns whether there
    /// was one.
    pub fn step(&mut self) -> bool {
        self.settle();
        let host = self.queues.iter().map(|queue| queue.deadline()).min();
        let next = self.controller.deadline().min(host.unwrap_or(Nanos::MAX));
        if next == Nanos::MAX {
            return false;
        }
        self.runner.advance_to(next);
        true
    }

    pub fn settle(&mut self) {
        loop {
            let now = self.runner.now();
            let mut moved = self.controller.poll(now);
            for queue in &mut self.queues {
                moved |= queue.poll(now);
            }
            if !moved {
                break;
            }
        }
    }

    /// Runs until `count` requests have completed.
    pub fn wait(&mut self, count: usize) -> Vec<CompletedRequest> {
        let mut ended = Vec::new();
        loop {
            self.settle();
            self.reap(&mut ended);
            if ended.len() >= count {
                assert_eq!(ended.len(), count, "more requests completed than expected");
                return ended;
            }
            assert!(
                self.step(),
                "{} of {count} requests completed, and no event is pending",
                ended.len()
            );
        }
    }

    /// Executes one request.
    pub fn run(&mut self, queue: usize, request: &Request) -> CompletedRequest {
        self.submit(queue, request).unwrap();
        self.wait(1)[0]
    }

    /// Advances time, and runs events at their times.
    pub fn pass(&mut self, time: Nanos) {
        let until = self.now() + time;
        loop {
            self.settle();
            let host = self.queues.iter().map(|queue| queue.deadline()).min();
            let next = self.controller.deadline().min(host.unwrap_or(Nanos::MAX));
            if next > until {
                break;
            }
            self.runner.advance_to(next);
        }
        self.runner.advance_to(until);
        self.settle();
    }

    /// Returns the payload at byte `offset` of the registered memory.
    pub fn payload(&self, offset: usize) -> Payload {
        Payload::Contiguous(self.at.offset(offset as u64))
    }
}

/// Returns the contents of a sector after its `version`th write.
pub fn stamp(queue: usize, lba: u64, version: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = (queue as u64) << 56 ^ lba << 24 ^ version << 8 ^ i as u64;
        word.copy_from_slice(&value.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    bytes
}
