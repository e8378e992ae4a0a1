//! Redis, SQLite and RocksDB on a volume with repeated cuts: the test kills the program, the file
//! service, the server that has the drive, or all of them as in a power failure. Everything that a
//! program had reported as durable must be there afterwards, and the program's own checks must
//! pass.
//!
//! Ten cuts of each kind per program; two hundred in `make test-long`.
//!
//! `databases` cuts power of MariaDB and PostgreSQL without their protection against torn pages.

// guarantee: D-13

#[path = "../../suite/exec/library.rs"]
mod library;

mod databases;
mod engine;
mod harness;
mod redis;
mod rocksdb;
mod speculating;
mod sqlite;
mod tpcc;
