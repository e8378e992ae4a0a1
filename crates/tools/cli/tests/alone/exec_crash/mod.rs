//! Redis, SQLite and RocksDB on a volume that is cut off under them again and again: the program is killed, the
//! file service, the server that has the drive, or everything at once as when power is lost. Whatever they had told
//! their users is durable is there afterwards, and their own checks find nothing wrong.
//!
//! Ten cuts of each kind of each; two hundred in `make test-long`.

// guarantee: D-13

#[path = "../../suite/exec/library.rs"]
mod library;

mod harness;
mod redis;
mod rocksdb;
mod sqlite;
mod tpcc;
