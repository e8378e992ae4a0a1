//! A drive in another process: what is said on the socket of `sluice serve --socket`, and the client's
//! side of it (NVMeDirect, HotStorage 2016, section 3.1: queues are granted by who owns the device,
//! and used without it).
//!
//! The socket carries who may use what, the parts of a port (`ring::Parts`) and the memory that the
//! client registers. Commands and data never go through it.
//!
//! | file | noun |
//! |---|---|
//! | [`message`](Message) | what is said |
//! | [`wire`](Packet) | the same, byte by byte (`docs/format/socket.md`) |
//! | `fields` | what messages are made of |
//! | [`name`](Name) | what drives and their parts are called |
//! | [`rule`](Rule) | who may use what, and how much of it |
//! | [`refusal`](Refusal) | what a server does not do; why it is gone |
//! | [`socket`] | packets with descriptors |
//! | `ask` | a question and its answer, on a connection that nobody else uses |
//! | [`interval`](IntervalStats) | what a served drive has done in an interval |
//! | `life` | whether the server is there: the thread that sleeps on the socket |
//! | `session` | a connection with a part of a drive open |
//! | `queue` | a hardware queue whose requests end when the server does |
//! | [`open`](ServedConfig) | `Device::served` |
//! | [`admin`](Admin) | the table of who may use what |

mod admin;
mod ask;
mod fields;
mod interval;
mod life;
mod message;
mod name;
mod open;
mod queue;
mod refusal;
mod rule;
mod session;
pub mod socket;
mod wire;

pub use admin::Admin;
pub use interval::{FtlInterval, IntervalStats, LatencySummary, RequestCounts};
pub use message::{ClientEntry, Entry, Granted, Message, Whom};
pub use name::{NAME_BYTES, Name, NameError};
pub(crate) use open::Served;
pub use open::ServedConfig;
pub(crate) use queue::ServedQueue;
pub use refusal::{Code, Gone, Refusal, ServedError};
pub use rule::{Grant, Rule, Span, Subject};
pub use wire::{HEADER_BYTES, MAGIC, MAX_BYTES, Packet, VERSION, WireError};
