//! Speculated writes and graphs of reads, over a file that completes requests late and in any order.

mod graphs;
mod late_file;
mod writes;
