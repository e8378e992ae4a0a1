//! Where a thread's processor time goes, without a cost for the code that is measured.
//!
//! A timer of the kernel interrupts the thread at intervals of its processor time, and the signal's
//! handler counts the address of the instruction ([`ThreadSampler`]). Afterwards [`SourceLines`]
//! finds the source line of each address in the line tables of the executable.

mod sampler;
mod source_lines;

pub use sampler::{SampleError, SampledAddress, ThreadSampler, ThreadSamples};
pub use source_lines::{SourceLines, SourceLinesError};
