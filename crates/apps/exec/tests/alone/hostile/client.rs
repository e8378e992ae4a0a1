//! A program without the library, which sends arbitrary data to the service.

use std::fs::File;
use std::io::{IoSliceMut, Write as _};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use exec_proto::{Call, CallOp};
use mem::SharedRegion;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketType, recvmsg,
};
use testkit::PollBudget;

/// Longer than any operation on a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A session.
pub(crate) struct Client {
    pub(crate) slots: Arc<SharedRegion>,
    doorbell: Arc<SharedRegion>,
    name: String,
}

pub(crate) fn address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

/// Connects and sends the token, or other text.
pub(crate) fn hello(name: &str, token: &str) -> UnixStream {
    let mut stream = UnixStream::connect_addr(&address(name)).unwrap();
    // The service may have closed the connection already.
    let _ = stream.write_all(token.as_bytes());
    stream
}

/// Returns the two descriptors of a greeting; `None` if the service refuses.
pub(crate) fn welcome(stream: &UnixStream) -> Option<Vec<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut greeting = [0; 8];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut greeting)], &mut ancillary, flags).ok()?;
    if got.bytes != 8 || u64::from_le_bytes(greeting) != exec_proto::MAGIC {
        return None;
    }
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    Some(ancillary.drain().flat_map(rights).collect())
}

/// Returns a socket with an autobind name, which can represent an open file, and the number in that
/// name.
pub(crate) fn named(name: &str) -> (OwnedFd, u64) {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    // Linux: binding an unnamed address requests an autobind name.
    let unnamed = SocketAddrUnix::new_unnamed();
    rustix::net::bind(&socket, &unnamed).unwrap();
    let to = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    let own = SocketAddrUnix::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let digits = std::str::from_utf8(own.abstract_name().unwrap()).unwrap();
    let number = exec_proto::FILE_HANDLE_BASE + u64::from_str_radix(digits, 16).unwrap();
    (socket, number)
}

impl Client {
    pub(crate) fn new(name: &str, token: &str) -> Client {
        let stream = hello(name, token);
        let mut memory = welcome(&stream).expect("a session").into_iter();
        let mut map = |len| SharedRegion::file(File::from(memory.next().unwrap()), len).unwrap();
        let (slots, doorbell) = (map(exec_proto::SESSION_BYTES), map(exec_proto::DOORBELL_BYTES));
        Client { slots, doorbell, name: name.to_owned() }
    }

    /// Writes the words of a call, and submits it.
    pub(crate) fn submit(&self, slot: usize, words: [u64; exec_proto::CALL_WORDS]) {
        self.write_call(slot, words, (exec_proto::SUBMITTED, exec_proto::SUBMITTED_BITS));
        self.ring_doorbell();
    }

    /// Writes the words of a call, and marks it as a posted write.
    pub(crate) fn post_write(&self, slot: usize, words: [u64; exec_proto::CALL_WORDS]) {
        self.write_call(slot, words, (exec_proto::POSTED_WRITE, exec_proto::POSTED_WRITE_BITS));
    }

    fn write_call(
        &self,
        slot: usize,
        words: [u64; exec_proto::CALL_WORDS],
        (state, bits): (u32, usize),
    ) {
        let header = exec_proto::header_offset(slot);
        for (i, word) in words.into_iter().enumerate() {
            let at = header + exec_proto::CALL_OFFSET + i * 8;
            self.slots.atomic_u64(at).store(word, Ordering::Relaxed);
        }
        self.slots.atomic_u32(header).store(state, Ordering::Release);
        self.slots.atomic_u64(bits).fetch_or(1 << slot, Ordering::AcqRel);
    }

    /// Waits until the service has freed the slot of a posted write.
    pub(crate) fn wait_until_free(&self, slot: usize) {
        let state = self.slots.atomic_u32(exec_proto::header_offset(slot));
        PollBudget::within(TIMEOUT).poll_until(
            || state.load(Ordering::Acquire) == exec_proto::FREE,
            || format!("slot {slot} is not given back"),
        );
    }

    pub(crate) fn ring_doorbell(&self) {
        let word = self.doorbell.atomic_u32(exec_proto::DOORBELL);
        word.fetch_add(1, Ordering::SeqCst);
        // Rings whether or not the service sleeps.
        let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
    }

    pub(crate) fn is_completed(&self, slot: usize) -> bool {
        let state = self.slots.atomic_u32(exec_proto::header_offset(slot));
        state.load(Ordering::Acquire) == exec_proto::COMPLETED
    }

    pub(crate) fn answer(&self, slot: usize) -> i64 {
        PollBudget::within(TIMEOUT)
            .poll_until(|| self.is_completed(slot), || format!("slot {slot} is not answered"));
        self.slots
            .atomic_u64(exec_proto::header_offset(slot) + exec_proto::REPLY_OFFSET)
            .load(Ordering::Relaxed) as i64
    }

    /// Makes a valid call.
    pub(crate) fn call(&self, op: CallOp, handle: u64, args: [u64; 4], data: &[u8]) -> i64 {
        self.slots.write(exec_proto::data_offset(0), data);
        self.submit(0, Call { op, handle, args, len: data.len() }.words());
        self.answer(0)
    }

    /// Opens a file; returns its socket and number.
    pub(crate) fn open(&self, path: &str, flags: u64) -> (OwnedFd, u64) {
        let (socket, number) = named(&self.name);
        assert_eq!(
            self.call(CallOp::Open, 0, [flags, 0o600, number, 0], path.as_bytes()),
            0,
            "{path}"
        );
        (socket, number)
    }
}
