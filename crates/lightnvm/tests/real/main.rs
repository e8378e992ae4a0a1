//! pblk over the emulated drive, media and all: what fails, and what users of kernel pblk ran into.

mod bench;
mod errors;
mod health;
mod known;
mod matrix;
