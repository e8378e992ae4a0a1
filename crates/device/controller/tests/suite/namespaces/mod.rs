//! Several namespaces on one drive.

mod contents;
mod harness;
mod identify;
mod management;
mod power_cuts;
mod protected;
mod requests;
