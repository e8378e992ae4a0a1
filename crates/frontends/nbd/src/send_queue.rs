//! [`SendQueue`]: data to be sent to one client. Headers and small payloads are copied together, so that many
//! replies need one system call and free their pool memory at once. Longer payloads stay in the
//! pool until they are sent.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::pool::{PayloadBuffer, PayloadPool, SMALL_BYTES_MAX};

/// With more than this to send, no further request is accepted from the client.
pub(super) const SEND_QUEUE_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
enum SendItem {
    /// This many next bytes of `bytes`.
    Copied(usize),
    /// A payload in the pool, from `sent` on.
    Pooled { buffer: PayloadBuffer, sent: usize, len: usize },
}

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    /// Everything was sent.
    Complete,
    /// The socket is full; wait until it is writable.
    Blocked,
    /// The client has closed the connection.
    Closed,
}

/// Bytes to be sent to one client, in order.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    bytes: Vec<u8>,
    /// Bytes of `bytes` already sent.
    head: usize,
    items: VecDeque<SendItem>,
    /// Bytes of the pool held by items.
    pooled: usize,
}

impl SendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns whether the client must read replies before it may send more requests.
    pub(super) fn is_full(&self) -> bool {
        self.copied() > SEND_QUEUE_BYTES_MAX
    }

    /// Returns the copied bytes that wait to be sent.
    pub(super) fn copied(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// Returns the pool bytes held, for which other requests may wait.
    pub(super) fn pooled(&self) -> usize {
        self.pooled
    }

    /// Appends the bytes that `write` produces.
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        let len = self.bytes.len() - before;
        match self.items.back_mut() {
            Some(SendItem::Copied(n)) => *n += len,
            _ if len > 0 => self.items.push_back(SendItem::Copied(len)),
            _ => {}
        }
    }

    /// Appends the first `len` bytes of a buffer. A small payload is copied and the buffer returned
    /// to the caller; a longer one is freed after it is sent.
    pub(super) fn append_payload<W: Copy>(
        &mut self,
        pool: &PayloadPool<W>,
        buffer: PayloadBuffer,
        len: usize,
    ) -> Option<PayloadBuffer> {
        if len <= SMALL_BYTES_MAX as usize {
            self.append(|bytes| {
                let at = bytes.len();
                bytes.resize(at + len, 0);
                pool.read(&buffer, 0, &mut bytes[at..]);
            });
            return Some(buffer);
        }
        self.pooled += buffer.footprint();
        self.items.push_back(SendItem::Pooled { buffer, sent: 0, len });
        None
    }

    /// Discards everything and frees the pool memory.
    pub(super) fn clear<W: Copy>(&mut self, pool: &mut PayloadPool<W>) {
        for item in self.items.drain(..) {
            if let SendItem::Pooled { buffer, .. } = item {
                pool.free(buffer);
            }
        }
        self.bytes.clear();
        self.head = 0;
        self.pooled = 0;
    }

    /// Sends as much as the socket accepts. `scratch` gathers fragments from different places; it
    /// is small enough to stay in the CPU cache. Returns the result and the number of bytes sent.
    pub(super) fn send<W: Copy>(
        &mut self,
        fd: BorrowedFd<'_>,
        pool: &mut PayloadPool<W>,
        scratch: &mut [u8],
    ) -> (SendResult, u64) {
        let mut total = 0;
        loop {
            let Some(front) = self.items.front() else {
                return (SendResult::Complete, total);
            };
            let piece: &[u8] = match front {
                SendItem::Copied(len) if self.items.len() == 1 => {
                    &self.bytes[self.head..self.head + len]
                }
                _ => {
                    let len = self.gather(pool, scratch);
                    &scratch[..len]
                }
            };
            match rustix::net::send(fd, piece, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => {
                    let short = n < piece.len();
                    total += n as u64;
                    self.advance(n, pool);
                    if short {
                        return (SendResult::Blocked, total);
                    }
                }
                Err(Errno::AGAIN) => return (SendResult::Blocked, total),
                Err(Errno::INTR) => {}
                Err(_) => return (SendResult::Closed, total),
            }
        }
    }

    /// Fills `scratch` from the front of the queue without removing anything.
    fn gather<W: Copy>(&self, pool: &PayloadPool<W>, scratch: &mut [u8]) -> usize {
        let (mut at, mut head) = (0, self.head);
        for item in &self.items {
            let room = scratch.len() - at;
            if room == 0 {
                break;
            }
            match item {
                SendItem::Copied(len) => {
                    let n = room.min(*len);
                    scratch[at..at + n].copy_from_slice(&self.bytes[head..head + n]);
                    head += len;
                    at += n;
                }
                SendItem::Pooled { buffer, sent, len } => {
                    let n = room.min(len - sent);
                    pool.read(buffer, *sent, &mut scratch[at..at + n]);
                    at += n;
                }
            }
        }
        at
    }

    /// Removes `n` sent bytes from the front.
    fn advance<W: Copy>(&mut self, mut n: usize, pool: &mut PayloadPool<W>) {
        while n > 0 {
            let Some(item) = self.items.front_mut() else {
                break;
            };
            match item {
                SendItem::Copied(len) => {
                    let step = n.min(*len);
                    *len -= step;
                    self.head += step;
                    n -= step;
                    if *len > 0 {
                        break;
                    }
                    self.items.pop_front();
                }
                SendItem::Pooled { sent, len, .. } => {
                    let step = n.min(*len - *sent);
                    *sent += step;
                    n -= step;
                    if *sent < *len {
                        break;
                    }
                    if let Some(SendItem::Pooled { buffer, .. }) = self.items.pop_front() {
                        self.pooled -= buffer.footprint();
                        pool.free(buffer);
                    }
                }
            }
        }
        if self.head == self.bytes.len() {
            self.bytes.clear();
            self.head = 0;
        } else if self.head > SEND_QUEUE_BYTES_MAX {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::{AddressSpace, SharedRegion};
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_and_payloads_arrive_in_order_through_a_small_socket() {
        let space = AddressSpace::default();
        let region = SharedRegion::anonymous(4 << 20).unwrap();
        let base = space.register(&region).unwrap();
        let mut pool: PayloadPool<()> = PayloadPool::new(region, base);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut outbox, mut want) = (SendQueue::default(), Vec::new());
        for i in 0..12u8 {
            outbox.append(|out| out.extend_from_slice(&[i; 28]));
            want.extend_from_slice(&[i; 28]);
            let len = if i % 3 == 0 { 200_000 } else { 5_000 };
            let buffer = pool.alloc(len).unwrap();
            let data: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(i | 1)).collect();
            pool.write(&buffer, 0, &data);
            if let Some(buffer) = outbox.append_payload(&pool, buffer, len as usize) {
                pool.free(buffer);
            }
            want.extend_from_slice(&data);
        }
        assert!(pool.in_use() > 0, "long payloads stay in the pool");
        let (mut got, mut scratch) = (Vec::new(), vec![0; 70_000]);
        let mut buf = vec![0; 30_000];
        loop {
            let (sent, _) = outbox.send(ours.as_fd(), &mut pool, &mut scratch);
            if sent == SendResult::Complete {
                break;
            }
            let n = theirs.read(&mut buf).unwrap();
            got.extend_from_slice(&buf[..n]);
        }
        drop(ours);
        theirs.read_to_end(&mut got).unwrap();
        assert!(got == want, "the same bytes");
        assert_eq!(pool.in_use(), 0);
        assert!(outbox.is_empty() && outbox.pooled() == 0);
    }
}
