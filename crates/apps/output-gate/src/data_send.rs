//! [`DataSend`]: a stopped call that only sends data, and copies of its caller's memory and
//! descriptors.
//!
//! A supervisor that makes such a call itself must know that what it has copied was the caller's:
//! [`Listener::is_valid`](crate::Listener::is_valid) afterwards says that the thread was still
//! stopped, so that its number had not been used again.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::StoppedCall;

/// Maximum number of buffers of a call: `UIO_MAXIOV`.
const PARTS_MAX: usize = 1024;
/// Words of `struct msghdr`: name and its length, buffers and their count, control data and its
/// length, flags.
const MESSAGE_WORDS: usize = 7;

/// A call that sends data through a descriptor, and does nothing else: `write`, `writev`, `sendto`
/// without an address, `sendmsg` without an address and control data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSend {
    /// The descriptor.
    pub descriptor: i32,
    /// Flags of `send(2)`; `None` for `write` and `writev`.
    pub flags: Option<u32>,
    /// Sum of the lengths of all buffers, in bytes.
    pub len: usize,
    thread: u32,
    parts: Vec<libc::iovec>,
}

impl DataSend {
    /// Returns the call as one that only sends data; `None` if it does something else, or if its
    /// arguments cannot be read. The kernel then answers it best.
    pub fn of(call: &StoppedCall) -> Option<DataSend> {
        let [descriptor, buffer, len, flags, name, _] = call.arguments;
        let (parts, flags) = match i64::try_from(call.number).ok()? {
            libc::SYS_write => (vec![part(buffer, len)], None),
            libc::SYS_writev => (read_parts(call.thread, buffer, len)?, None),
            libc::SYS_sendto if name == 0 => (vec![part(buffer, len)], Some(flags as u32)),
            libc::SYS_sendmsg => {
                let mut message = [0; MESSAGE_WORDS];
                read_words(call.thread, buffer, &mut message)?;
                let [name, _, parts, count, control, control_len, _] = message;
                if name != 0 || control != 0 && control_len != 0 {
                    return None;
                }
                (read_parts(call.thread, parts, count)?, Some(len as u32))
            }
            _ => return None,
        };
        let len = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
        let descriptor = descriptor as u32 as i32;
        Some(DataSend { descriptor, flags, len, thread: call.thread, parts })
    }

    /// Copies the data; `None` if a part of it cannot be read.
    pub fn copy(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        read_memory(self.thread, &self.parts, &mut bytes)?;
        Some(bytes)
    }
}

/// Copies a descriptor of a thread that is stopped.
///
/// # Errors
/// The kernel's error: if the descriptor is not open, if this process may not copy it, or before
/// Linux 6.9 for other threads than the first of a process.
pub fn copy_descriptor(thread: u32, descriptor: i32) -> io::Result<OwnedFd> {
    /// `PIDFD_THREAD`: the descriptors of this thread, which may be others than its process has.
    const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    let thread = thread.filter(|_| descriptor >= 0).ok_or(io::ErrorKind::InvalidInput)?;
    // Without the flag, a thread that is not the first is an error.
    let of = pidfd_open(thread, OF_THREAD).or_else(|_| pidfd_open(thread, PidfdFlags::empty()))?;
    Ok(pidfd_getfd(&of, descriptor, PidfdGetfdFlags::empty())?)
}

fn part(address: u64, len: u64) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len as usize }
}

fn read_words(thread: u32, address: u64, words: &mut [u64]) -> Option<()> {
    let mut bytes = vec![0; size_of_val(words)];
    read_memory(thread, &[part(address, bytes.len() as u64)], &mut bytes)?;
    let (read, _) = bytes.as_chunks::<8>();
    words.iter_mut().zip(read).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    Some(())
}

/// Reads an array of `struct iovec`.
fn read_parts(thread: u32, address: u64, count: u64) -> Option<Vec<libc::iovec>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX)?;
    let mut words = vec![0; 2 * count];
    read_words(thread, address, &mut words)?;
    let (pairs, _) = words.as_chunks::<2>();
    Some(pairs.iter().map(|[address, len]| part(*address, *len)).collect())
}

/// Reads memory of a process; `None` unless all of it can be read.
fn read_memory(thread: u32, parts: &[libc::iovec], into: &mut [u8]) -> Option<()> {
    let thread = libc::pid_t::try_from(thread).ok()?;
    let own = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the kernel writes at most `into.len()` bytes to the buffer, which outlives the call,
    // and checks the addresses of the other process.
    let read = unsafe {
        let count = parts.len() as libc::c_ulong;
        libc::process_vm_readv(thread, &raw const own, 1, parts.as_ptr(), count, 0)
    };
    (usize::try_from(read) == Ok(into.len())).then_some(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn call(number: libc::c_long, arguments: [u64; 6]) -> StoppedCall {
        // The thread of the test may not be the first of its process.
        StoppedCall { id: 0, thread: std::process::id(), number: number as u64, arguments }
    }

    fn address<T>(of: &T) -> u64 {
        std::ptr::from_ref(of).addr() as u64
    }

    #[test]
    fn the_data_of_each_kind_of_send_is_copied() {
        let bytes = *b"out of memory";
        let parts = [part(address(&bytes), 3), part(0, 0), part(address(&bytes) + 6, 7)];
        let mut message = [0, 0, address(&parts), 3, 0, 0, 0];
        for (number, arguments, wanted) in [
            (libc::SYS_write, [1, address(&bytes), 13, 0, 0, 0], &b"out of memory"[..]),
            (libc::SYS_sendto, [1, address(&bytes), 3, 0x4000, 0, 0], b"out"),
            (libc::SYS_writev, [1, address(&parts), 3, 0, 0, 0], b"out memory"),
            (libc::SYS_sendmsg, [1, address(&message), 0x40, 0, 0, 0], b"out memory"),
        ] {
            let send = DataSend::of(&call(number, arguments)).unwrap();
            let flags = match number {
                libc::SYS_sendto => Some(0x4000),
                libc::SYS_sendmsg => Some(0x40),
                _ => None,
            };
            assert_eq!((send.descriptor, send.flags, send.len), (1, flags, wanted.len()));
            assert_eq!(send.copy().unwrap(), wanted);
        }
        // Descriptors in a message, and an address.
        message[4..6].copy_from_slice(&[address(&bytes), 8]);
        let send = call(libc::SYS_sendmsg, [1, address(&message), 0, 0, 0, 0]);
        assert_eq!(DataSend::of(&send), None);
        let send = call(libc::SYS_sendto, [1, address(&bytes), 3, 0, address(&bytes), 8]);
        assert_eq!(DataSend::of(&send), None);
        assert_eq!(DataSend::of(&call(libc::SYS_close, [1; 6])), None);
    }

    #[test]
    fn arguments_that_cannot_be_read_are_left_to_the_kernel() {
        let bytes = [0u64; 2];
        let send = DataSend::of(&call(libc::SYS_write, [1, 1, 4, 0, 0, 0])).unwrap();
        assert_eq!(send.copy(), None);
        for arguments in [[1, 1, 1, 0, 0, 0], [1, address(&bytes), 1025, 0, 0, 0]] {
            assert_eq!(DataSend::of(&call(libc::SYS_writev, arguments)), None);
        }
        let parts = [part(0, u64::MAX), part(0, 2)];
        let send = call(libc::SYS_writev, [1, address(&parts), 2, 0, 0, 0]);
        assert_eq!(DataSend::of(&send), None, "lengths whose sum overflows");
    }

    #[test]
    fn a_copied_descriptor_is_the_same_open_file() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let copy = copy_descriptor(std::process::id(), writer.as_raw_fd()).unwrap();
        writer.write_all(b"a").unwrap();
        std::fs::File::from(copy).write_all(b"b").unwrap();
        drop(writer);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"ab");
        for invalid in [-1, -100, i32::MIN, i32::MAX] {
            assert!(copy_descriptor(std::process::id(), invalid).is_err());
        }
    }
}
