//! [`on_first_cpu()`]: measurements on one CPU.

use std::thread;

use event::AllowedCpus;

use super::BenchError;

/// Runs `work` on a new thread on the first CPU and waits for it. The calling thread remains
/// unpinned.
///
/// # Errors
/// If no thread can be started; errors of `work`.
pub fn on_first_cpu<T: Send>(
    cpus: &AllowedCpus,
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || {
            cpus.pin(0);
            work()
        })?;
        thread.join().map_err(|_| BenchError::Thread("a measurement"))?
    })
}
