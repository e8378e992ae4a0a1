//! `[host] machine` and `kernel`.

use super::{SMALL, parse, refused};
use crate::HostKernel;

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
    // 19,500 cycles at 3.4 GHz without the steps and seven registers of 547 ns.
    assert!((1200..1907).contains(&(start + finish).0), "{start} {finish}");
    assert_eq!(host("submit_cost = \"1us\"\n"), None);
}

#[test]
fn machines_that_cannot_be_are_errors_with_their_line() {
    for (text, message) in [
        ("machine = \"i7-4771\"\n", "i7-4770"),
        ("machine = \"none.toml\"\n", "none.toml: No such file"),
        ("machine = 7\n", "string"),
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
