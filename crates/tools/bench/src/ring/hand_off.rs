//! Alternatives to queue pairs for passing commands to another thread: queues behind a lock with a
//! condition variable, and the channel of the standard library. Entries have the size of NVMe
//! entries.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// An entry with the size of a submission queue entry.
pub type Entry = [u64; 8];
/// An entry with the size of a completion queue entry.
pub type Answer = [u64; 2];

/// A queue behind a lock, with a condition variable for the reader.
#[derive(Debug)]
struct Locked<T> {
    queue: Mutex<VecDeque<T>>,
    filled: Condvar,
}

impl<T> Default for Locked<T> {
    fn default() -> Locked<T> {
        Locked { queue: Mutex::new(VecDeque::with_capacity(256)), filled: Condvar::new() }
    }
}

impl<T> Locked<T> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        // No code under the lock panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes for a busy-polling reader.
    fn push(&self, value: T) {
        self.lock().push_back(value);
    }

    /// Pushes for a reader that may sleep; the notification is a system call in either case.
    fn push_and_wake(&self, value: T) {
        self.push(value);
        self.filled.notify_one();
    }

    fn pop(&self) -> Option<T> {
        self.lock().pop_front()
    }

    fn wait(&self) -> T {
        let mut queue = self.lock();
        loop {
            match queue.pop_front() {
                Some(value) => return value,
                None => queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Queues behind locks for commands and for answers.
#[derive(Debug, Default)]
pub struct LockedQueues {
    commands: Locked<Entry>,
    answers: Locked<Answer>,
}

impl LockedQueues {
    /// Sends a batch and its answers, with both ends on this thread.
    pub fn batch(&self, batch: u16) {
        for i in 0..u64::from(batch) {
            self.commands.push(black_box([i; 8]));
        }
        while let Some(command) = self.commands.pop() {
            self.answers.push([command[0], command[7]]);
        }
        while let Some(answer) = self.answers.pop() {
            black_box(answer);
        }
    }

    /// Sends one command and receives its answer; the other end runs
    /// [`serve`](LockedQueues::serve).
    pub fn round_trip(&self, number: u64) -> Answer {
        self.commands.push_and_wake([number; 8]);
        self.answers.wait()
    }

    /// Answers `count` commands, sleeping between them.
    pub fn serve(&self, count: u64) {
        for _ in 0..count {
            let command = self.commands.wait();
            self.answers.push_and_wake([command[0], command[7]]);
        }
    }
}

/// The host's end of two channels.
#[derive(Debug)]
pub struct ChannelHost {
    commands: Sender<Entry>,
    answers: Receiver<Answer>,
}

/// The drive's end of two channels.
#[derive(Debug)]
pub struct ChannelDrive {
    commands: Receiver<Entry>,
    answers: Sender<Answer>,
}

/// Returns two channels of the standard library, one per direction.
pub fn channels() -> (ChannelHost, ChannelDrive) {
    let ((send_command, commands), (send_answer, answers)) = (channel(), channel());
    (
        ChannelHost { commands: send_command, answers },
        ChannelDrive { commands, answers: send_answer },
    )
}

impl ChannelHost {
    /// Sends `count` commands with at most `depth` outstanding, busy-polling, and receives every
    /// answer. Returns whether all were answered.
    pub fn drive_through(&self, count: u64, depth: u64) -> bool {
        let (mut sent, mut done) = (0, 0);
        while done < count {
            while sent < count && sent - done < depth {
                if self.commands.send(black_box([sent; 8])).is_err() {
                    return false;
                }
                sent += 1;
            }
            match self.answers.try_recv() {
                Ok(answer) => {
                    black_box(answer);
                    done += 1;
                }
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }
}

impl ChannelDrive {
    /// Answers commands, busy-polling, until the host has closed its end.
    pub fn serve(&self) {
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if self.answers.send([command[0], command[7]]).is_err() {
                        return;
                    }
                }
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_comes_back() {
        let queues = LockedQueues::default();
        queues.batch(32);
        assert!(queues.commands.pop().is_none() && queues.answers.pop().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| queues.serve(50));
            for n in 0..50 {
                assert_eq!(queues.round_trip(n), [n, n]);
            }
        });
        let (host, drive) = channels();
        std::thread::scope(|scope| {
            scope.spawn(move || drive.serve());
            assert!(host.drive_through(1000, 32));
            drop(host);
        });
        let (host, drive) = channels();
        drop(drive);
        assert!(!host.drive_through(1, 1));
    }
}
