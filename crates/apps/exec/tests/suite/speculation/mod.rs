//! Programs whose syncs return before the data is durable: their output waits.

// guarantee: B-119

mod failures;
mod harness;
mod observer;
mod outputs;
