//! `[host] machine` and `kernel`.

use super::{SMALL, parse, refused};
use crate::{HostKernel, MachineModel};

#[test]
fn a_machine_is_a_built_in_model_with_a_kernel() {
    let host = |text: &str| parse(&format!("{SMALL}[host]\n{text}")).unwrap().host.machine;
    let machine = host("machine = \"i7-4770\"\n").unwrap();
    assert_eq!((machine.model.name(), machine.kernel), ("i7-4770", HostKernel::None));
    let machine = host("machine = \"westmere-ex-8x10\"\nkernel = \"linux-3.10\"\n").unwrap();
    assert_eq!((machine.model.hardware_threads(), machine.kernel), (80, HostKernel::Linux310));
    let machine = host("machine = \"i7-5820k\"\nkernel = \"linux-nvme-2012\"\n").unwrap();
    let (kernel, threads) = (machine.kernel, machine.model.hardware_threads());
    // 9,100 cycles at 3.3 GHz without the steps of a request, in two halves.
    let [start, finish] = kernel.request_costs(&machine.model);
    assert!((2100..2758).contains(&(start + finish).0), "{start} {finish}");
    assert!(finish.0 - start.0 <= 1 && threads == 12, "{start} {finish} {threads}");
    assert!(kernel.source().contains("[NvmeIdf12]"));
    let machine = host("machine = \"i7-4770\"\nkernel = \"linux-3.2-scsi\"\n").unwrap();
    let [start, finish] = machine.kernel.request_costs(&machine.model);
    // 19,500 cycles at 3.4 GHz without the steps and five registers of 547 ns.
    assert!((2294..3001).contains(&(start + finish).0), "{start} {finish}");
    assert_eq!(host("submit_cost = \"1us\"\n"), None);
}

#[test]
fn this_machine_has_the_numbers_that_are_given() {
    let text = "machine = \"this\"\nkernel = \"linux-3.10\"\nvary = \"processor.ghz*2\"\n";
    let mut scenario = parse(&format!("{SMALL}[host]\n{text}")).unwrap();
    assert!(scenario.host.machine.is_none() && scenario.host.this_machine.is_some());
    let model = MachineModel::built_in("i7-4770").unwrap();
    scenario.set_this_machine(&model).unwrap();
    assert_eq!(scenario.host.this_machine, None);
    let machine = scenario.host.machine.as_ref().unwrap();
    assert_eq!(*machine.model, model.varied(&"processor.ghz*2".parse().unwrap()).unwrap());
    assert_eq!(machine.kernel, HostKernel::Linux310);
    // Only the machine that is asked for is given.
    let mut other = parse(&format!("{SMALL}[host]\nmachine = \"i7-5820k\"\n")).unwrap();
    other.set_this_machine(&model).unwrap();
    assert_eq!(other.host.machine.unwrap().model.name(), "i7-5820k");
    // A number that this machine lacks is told with its line.
    let text = text.replace("processor.ghz", "lines.read_board");
    let mut scenario = parse(&format!("{SMALL}[host]\n{text}")).unwrap();
    let line = scenario.text.lines().position(|line| line.starts_with("vary")).unwrap() + 1;
    let error = scenario.set_this_machine(&model).unwrap_err().to_string();
    assert!(error.contains(&format!(":{line}:8: `lines.read_board` is no number")), "{error}");
    assert!(scenario.host.this_machine.is_some(), "it still has no numbers");
}

#[test]
fn machines_that_cannot_be_are_errors_with_their_line() {
    for (text, message) in [
        ("machine = \"i7-4771\"\n", "i7-4770"),
        ("machine = \"none.toml\"\n", "none.toml: No such file"),
        ("machine = 7\n", "string"),
        ("machine = \"thi\"\n", "this"),
        ("machine = \"this\"\nvary = \"lines.hit\"\n", "KEY*FACTOR"),
        ("machine = \"this\"\nkernel = \"linux-9\"\n", "linux-3.10"),
        (
            "machine = \"this\"\nsubmit_cost = \"1us\"\n",
            "`submit_cost` is a part of what the machine models",
        ),
        ("kernel = \"linux-3.10\"\n", "a kernel needs a machine to run on"),
        ("vary = \"lines.hit*2\"\n", "there is no machine whose number could vary"),
        ("machine = \"i7-4770\"\nvary = \"lines.hit\"\n", "KEY*FACTOR"),
        ("machine = \"i7-4770\"\nvary = \"lines.miss*2\"\n", "no number that can vary"),
        ("machine = \"i7-4770\"\nvary = \"lines.read_socket*0.01\"\n", "less than the nearer"),
        ("machine = \"i7-4770\"\nkernel = \"linux-9\"\n", "linux-3.10"),
        (
            "machine = \"i7-4770\"\nsubmit_cost = \"1us\"\n",
            "`submit_cost` is a part of what the machine models",
        ),
        (
            "machine = \"i7-4770\"\ninterrupt_cost = \"1us\"\n",
            "`interrupt_cost` is a part of what the machine models",
        ),
    ] {
        let text = format!("{SMALL}[host]\n{text}");
        let (line, _, error) = refused(&text);
        assert!(line >= 4 && error.contains(message), "{text}: {error}");
    }
}
