//! The io_uring driver on files in the temporary directory, and on a loop device if the tests are
//! allowed to create one.

// guarantee: B-15

mod bad_input;
mod commands;
mod fixture;
mod notification;
mod random;
mod reset;
mod threads;
