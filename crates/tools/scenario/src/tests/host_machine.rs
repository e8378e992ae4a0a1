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
    assert_eq!((kernel.request_cost(), threads), (time::Nanos(2800), 12));
    assert!(kernel.source().contains("[NvmeIdf12]"));
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
