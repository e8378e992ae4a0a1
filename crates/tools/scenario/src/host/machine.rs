//! [`HostMachine`]: `machine` and `kernel` of `[host]`, the modeled machine on which the host's
//! software runs in virtual time.

use std::sync::Arc;

use ::machine::MachineModel;
use time::Nanos;

use crate::section::{Keyword, Result, Section};

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
    /// A Linux of 2012 with its NVMe driver, as Intel measured it.
    LinuxNvme2012,
}

impl HostKernel {
    /// All kernels.
    pub const ALL: [HostKernel; 3] =
        [HostKernel::None, HostKernel::Linux310, HostKernel::LinuxNvme2012];

    /// Returns the word of a scenario.
    pub const fn word(self) -> &'static str {
        match self {
            HostKernel::None => "none",
            HostKernel::Linux310 => "linux-3.10",
            HostKernel::LinuxNvme2012 => "linux-nvme-2012",
        }
    }

    /// Returns the time of a request outside of the stack.
    pub const fn request_cost(self) -> Nanos {
        match self {
            HostKernel::None => Nanos::ZERO,
            HostKernel::Linux310 => Nanos(975),
            HostKernel::LinuxNvme2012 => Nanos(2800),
        }
    }

    /// Returns the source of that time.
    pub const fn source(self) -> &'static str {
        match self {
            HostKernel::None => "no kernel",
            HostKernel::Linux310 => {
                "78 % of 1 s / 800,000, [SYSTOR13 §1, §5.1]: no evidence for that paper's figures"
            }
            HostKernel::LinuxNvme2012 => {
                "2.8 us of the storage stack with an NVMe driver, Core i5-2500K, 3.3 GHz, \
                 [NvmeIdf12]: with its block layer and driver, besides those of the stack here"
            }
        }
    }
}

/// The modeled machine of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostMachine {
    /// The numbers of the machine.
    pub model: Arc<MachineModel>,
    /// The kernel.
    pub kernel: HostKernel,
}

impl HostMachine {
    /// Reads `machine` and `kernel`.
    pub(crate) fn read(s: &mut Section<'_>) -> Result<Option<HostMachine>> {
        let kernel = s.get("kernel");
        let Some(value) = s.get("machine") else {
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
        let name = value.string()?;
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
            let names: Vec<&str> = MachineModel::names().collect();
            MachineModel::built_in(name).ok_or_else(|| value.refuse_name(&names))?
        };
        let kernel = match kernel {
            Some(kernel) => {
                kernel.choice(&HostKernel::ALL.map(|kernel| Keyword(kernel.word(), kernel)))?
            }
            None => HostKernel::None,
        };
        Ok(Some(HostMachine { model: Arc::new(model), kernel }))
    }
}
