//! [`HostMachine`]: `machine` and `kernel` of `[host]`, the modeled machine on which the host's
//! software runs in virtual time; [`ThisMachine`] is one whose numbers the program measures.

use std::ops::Range;
use std::sync::Arc;

use ::machine::{MachineModel, Variation, VariationError};
use block::Step;
use time::Nanos;

use crate::error::{ProblemKind, ScenarioError};
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceText;

/// Keys of `[host]` that a machine replaces.
const COSTS: [&str; 3] = ["submit_cost", "complete_cost", "interrupt_cost"];

/// System calls, the file system and asynchronous I/O of a kernel, which the stack does not have: a
/// time per request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostKernel {
    /// Programs use the stack directly, as a library.
    #[default]
    None,
    /// Linux 3.10 with fio and libaio, as \[SYSTOR13\] measured it.
    Linux310,
    /// Linux 3.2 with its SCSI layer.
    Linux32Scsi,
    /// A Linux of 2012 with its NVMe driver, which has neither the SCSI layer nor the request queue.
    LinuxNvme2012,
}

impl HostKernel {
    /// All kernels.
    pub const ALL: [HostKernel; 4] = [
        HostKernel::None,
        HostKernel::Linux310,
        HostKernel::Linux32Scsi,
        HostKernel::LinuxNvme2012,
    ];

    /// Returns the word of a scenario.
    pub const fn word(self) -> &'static str {
        match self {
            HostKernel::None => "none",
            HostKernel::Linux310 => "linux-3.10",
            HostKernel::Linux32Scsi => "linux-3.2-scsi",
            HostKernel::LinuxNvme2012 => "linux-nvme-2012",
        }
    }

    /// Returns the times of a request outside of the stack, before the block layer and after it.
    ///
    /// A source that measured a whole stack has measured the steps, too, that the machine charges
    /// itself for a request that is alone: they are subtracted. No such source divides its sum: half
    /// of the rest is before the block layer.
    pub fn request_costs(self, model: &MachineModel) -> [Nanos; 2] {
        match self {
            HostKernel::None => [Nanos::ZERO; 2],
            HostKernel::Linux310 => [Nanos(975), Nanos::ZERO],
            HostKernel::Linux32Scsi => rest(model, 19_500, AHCI_READS),
            HostKernel::LinuxNvme2012 => rest(model, 9100, 0),
        }
    }

    /// Returns the source of those times.
    pub const fn source(self) -> &'static str {
        match self {
            HostKernel::None => "no kernel",
            HostKernel::Linux310 => {
                "78 % of 1 s / 800,000, [SYSTOR13 §1, §5.1]: no evidence for that paper's figures"
            }
            HostKernel::Linux32Scsi => {
                "19,500 cycles per I/O of the storage stack with SAS, [NvmeIdf12], without the steps \
                 that the machine charges itself"
            }
            HostKernel::LinuxNvme2012 => {
                "9,100 cycles per I/O of the storage stack with NVMe, [NvmeIdf12], without the steps \
                 that the machine charges itself"
            }
        }
    }
}

/// Steps of a request of a waiting thread that is alone.
const OWN_STEPS: [Step; 20] = [
    Step::WaitSubmit,
    Step::Submit,
    Step::Run,
    Step::Unplug,
    Step::Start,
    Step::Command,
    Step::Issue,
    Step::Settle,
    Step::Handle,
    Step::Run,
    Step::Event,
    Step::Fetch,
    Step::Deliver,
    Step::Settle,
    Step::Notify,
    Step::Resume,
    Step::Collect,
    Step::Reap,
    Step::Collect,
    Step::Finish,
];

/// Registers of an AHCI controller that the interrupt of one request reads: IS at its begin and at
/// its end, PxIS to acknowledge it, and PxSACT twice to find one completion and no other.
const AHCI_READS: u64 = 5;

/// Returns what is left of a stack's cycles without the steps that the machine charges itself.
fn rest(model: &MachineModel, cycles: u64, register_reads: u64) -> [Nanos; 2] {
    let steps = &model.costs().steps;
    let own: u64 = OWN_STEPS.iter().map(|step| steps.picos(*step)).sum();
    let own = own + register_reads * steps.picos(Step::ReadRegister);
    let left = model.cycles(cycles).since(Nanos(own / 1000));
    [Nanos(left.0 / 2), Nanos(left.0 - left.0 / 2)]
}

/// The modeled machine of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostMachine {
    /// The numbers of the machine.
    pub model: Arc<MachineModel>,
    /// The kernel.
    pub kernel: HostKernel,
}

/// The word of a scenario for the machine that runs the program.
const THIS: &str = "this";

/// `machine = "this"`: the machine that runs the program. A scenario does not measure: its numbers
/// are given to [`Scenario::set_this_machine`](crate::Scenario::set_this_machine).
#[derive(Clone, Debug, PartialEq)]
pub struct ThisMachine {
    kernel: HostKernel,
    /// The number that varies, and the byte range of its text.
    vary: Option<(Variation, Range<usize>)>,
}

impl ThisMachine {
    /// Returns the machine with these numbers. `source` is the text of the scenario.
    pub(crate) fn measured(
        &self,
        model: &MachineModel,
        source: &SourceText,
    ) -> Result<HostMachine> {
        let model = match &self.vary {
            Some((variation, span)) => model.varied(variation).map_err(|error| {
                let (message, help) = (error.to_string(), VARY_HELP.to_owned());
                let problem = ProblemKind::Conflict { message, help };
                ScenarioError::new(source, span.clone(), problem)
            })?,
            None => model.clone(),
        };
        Ok(HostMachine { model: Arc::new(model), kernel: self.kernel })
    }
}

/// The machine of a scenario.
pub(crate) enum MachineChoice {
    /// A machine whose numbers are known.
    Known(HostMachine),
    /// The machine that runs the program.
    This(ThisMachine),
}

/// Remedy of an impossible `vary`.
const VARY_HELP: &str = "write KEY*FACTOR, with a key of the machine's numbers";

/// Reads `vary`.
fn read_variation(value: &Value<'_>) -> Result<Variation> {
    let wrong = |error: VariationError| value.conflict(error.to_string(), VARY_HELP);
    value.string()?.parse().map_err(wrong)
}

impl HostMachine {
    /// Reads `machine` and `kernel`.
    pub(crate) fn read(s: &mut Section<'_>) -> Result<Option<MachineChoice>> {
        let kernel = s.get("kernel");
        let Some(value) = s.get("machine") else {
            if let Some(vary) = s.get("vary") {
                let help = "set `machine`, or remove the key";
                return Err(vary.conflict("there is no machine whose number could vary", help));
            }
            return match kernel {
                Some(kernel) => {
                    let help = "set `machine`, or remove the key";
                    Err(kernel.conflict("a kernel needs a machine to run on", help))
                }
                None => Ok(None),
            };
        };
        if let Some((key, _)) = s.first_of(&COSTS) {
            let message = format!("`{key}` is a part of what the machine models");
            return Err(value.conflict(message, format!("remove `{key}`, or `machine`")));
        }
        let kernel = match kernel {
            Some(kernel) => {
                kernel.choice(&HostKernel::ALL.map(|kernel| Keyword(kernel.word(), kernel)))?
            }
            None => HostKernel::None,
        };
        let vary = match s.get("vary") {
            Some(value) => Some((read_variation(&value)?, value)),
            None => None,
        };
        let name = value.string()?;
        if name == THIS {
            let vary = vary.map(|(variation, value)| (variation, value.source_span().span));
            return Ok(Some(MachineChoice::This(ThisMachine { kernel, vary })));
        }
        let model = if name.ends_with(".toml") {
            let path = value.resolve(name);
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(&path).map_err(|error| {
                value.conflict(format!("{shown}: {error}"), "name the sheet of a machine")
            })?;
            MachineModel::parse(&text).map_err(|error| {
                let help = "see docs/scenario.md, `[host]`";
                value.conflict(format!("{shown}: {}", error.to_string().trim_end()), help)
            })?
        } else {
            let names: Vec<&str> = MachineModel::names().chain([THIS]).collect();
            MachineModel::built_in(name).ok_or_else(|| value.refuse_name(&names))?
        };
        let model = match vary {
            Some((variation, value)) => model
                .varied(&variation)
                .map_err(|error| value.conflict(error.to_string(), VARY_HELP))?,
            None => model,
        };
        Ok(Some(MachineChoice::Known(HostMachine { model: Arc::new(model), kernel })))
    }
}
