//! [`EngineContexts`]: the contexts of a set of drives as tasks of a modeled machine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::completion::{ContextHost, ContextInterval, ContextKind, ContextWork, RunningContext};
use driver::{IrqRunHistogram, IrqRunRecorder};
use event::Waker;
use machine::{Engine, Modeled, ModeledThread, TaskClass, TaskId, TaskSpec};

/// The hardware thread that gets the controller's interrupt, on which its soft interrupt runs, too:
/// Linux 3.2 leaves a request on the core of the interrupt if that shares its last-level cache with
/// the core of the submitter.
pub(super) const INTERRUPT_CORE: usize = 0;

/// Priority of an interrupt thread, as in Linux.
const IRQ_THREAD: TaskClass = TaskClass::Fifo { priority: 50 };

/// Starts contexts as tasks of an engine.
pub(super) struct EngineContexts<'a>(pub(super) &'a mut Engine);

/// A context on the machine.
#[derive(Debug)]
struct ModeledContext {
    task: TaskId,
    is_handler: bool,
    state: Arc<ModeledContextState>,
}

#[derive(Debug, Default)]
struct ModeledContextState {
    stop: AtomicBool,
    runs: IrqRunRecorder,
}

impl ModeledContextState {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn run(&self, work: &mut ContextWork) {
        let start = machine::now();
        work();
        self.runs.record(machine::now().since(start));
    }
}

impl EngineContexts<'_> {
    fn spawn(
        &mut self,
        kind: ContextKind,
        body: impl FnOnce(&ModeledContextState) + Send + 'static,
    ) -> io::Result<ModeledContext> {
        let (name, class, core) = match kind {
            ContextKind::HardIrq => ("interrupt", TaskClass::HardInterrupt, true),
            ContextKind::SoftIrq => ("soft interrupt", TaskClass::SoftInterrupt, true),
            ContextKind::IrqThread => ("interrupt thread", IRQ_THREAD, true),
            ContextKind::QueueRun => ("queue run", TaskClass::Fair, false),
            ContextKind::Poll => ("poll thread", TaskClass::Fair, false),
            ContextKind::Watch => ("watch", TaskClass::Fair, false),
        };
        let core = core.then_some(INTERRUPT_CORE);
        let spec = TaskSpec { class, core, ..TaskSpec::thread(name) };
        let state = Arc::new(ModeledContextState::default());
        let theirs = state.clone();
        let task = self.0.spawn(spec, move || body(&theirs)).map_err(io::Error::other)?;
        let is_handler = matches!(class, TaskClass::HardInterrupt | TaskClass::SoftInterrupt);
        Ok(ModeledContext { task, is_handler, state })
    }
}

impl ContextHost<Modeled> for EngineContexts<'_> {
    fn start_woken(
        &mut self,
        kind: ContextKind,
        mut work: ContextWork,
    ) -> io::Result<(Waker, Box<dyn RunningContext>)> {
        let context = self.spawn(kind, move |state| {
            // A handler begins at its first interrupt, a thread waits for its first wake-up.
            if !matches!(kind, ContextKind::HardIrq | ContextKind::SoftIrq) {
                machine::park();
            }
            while !state.is_stopped() {
                state.run(&mut work);
                machine::park();
            }
        })?;
        let task = context.task;
        let waker = match kind {
            ContextKind::HardIrq => Waker::calling(move || machine::raise(task)),
            _ => Waker::calling(move || machine::unpark(task)),
        };
        Ok((waker?, Box::new(context)))
    }

    fn start_timed(
        &mut self,
        kind: ContextKind,
        interval: ContextInterval,
        mut work: ContextWork,
    ) -> io::Result<(ModeledThread, Box<dyn RunningContext>)> {
        let context = self.spawn(kind, move |state| {
            while !state.is_stopped() {
                match interval() {
                    None => machine::park(),
                    Some(interval) => {
                        machine::sleep_until(machine::now() + interval);
                        if !state.is_stopped() {
                            state.run(&mut work);
                        }
                    }
                }
            }
        })?;
        Ok((context.task.into(), Box::new(context)))
    }
}

impl RunningContext for ModeledContext {
    fn is_realtime(&self) -> bool {
        true
    }

    fn runs(&self) -> (IrqRunHistogram, IrqRunHistogram) {
        let runs = self.state.runs.read();
        (runs.clone(), runs)
    }

    fn reset_runs(&self) {
        self.state.runs.reset();
    }
}

impl Drop for ModeledContext {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        match self.is_handler {
            true => machine::raise(self.task),
            false => machine::unpark(self.task),
        }
    }
}
