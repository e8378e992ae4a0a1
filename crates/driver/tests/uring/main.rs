//! The io_uring driver over real files of the temporary directory, and over a loop device where the
//! tests may make one.

mod bad_input;
mod commands;
mod fixture;
mod notification;
mod random;
mod reset;
mod threads;
