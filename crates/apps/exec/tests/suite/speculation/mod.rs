//! Programs whose syncs return before the data is durable: their output waits.

mod buffered;
mod failures;
mod harness;
mod observer;
mod outputs;
