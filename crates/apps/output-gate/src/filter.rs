//! The program of the filter, from the table of system calls.
//!
//! The kernel caches which calls pass whatever their arguments are, and does not run the filter for
//! them. So numbers are decided first, by a binary search over runs of numbers with one decision.

// guarantee: B-125

use exec_proto::gate;
use syscall_table::{CALLS_MAX, StopCondition, find};

/// An instruction of a filter: `struct sock_filter` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterInstruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the comparison holds.
    pub if_true: u8,
    /// Instructions to skip if it does not.
    pub if_false: u8,
    /// Operand.
    pub operand: u32,
}

/// `BPF_LD | BPF_W | BPF_ABS`: loads a word of `struct seccomp_data`.
const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`.
const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JA`.
const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const IF_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`.
const IF_AT_LEAST: u16 = 0x35;
/// `BPF_JMP | BPF_JSET | BPF_K`.
const IF_ANY_BIT: u16 = 0x45;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;

/// Offset of the number in `struct seccomp_data`.
const NUMBER: u32 = 0;
/// Offset of the architecture.
const ARCHITECTURE: u32 = 4;
/// Offset of the instruction pointer.
const INSTRUCTION: u32 = 8;
/// Offset of the first argument.
const ARGUMENTS: u32 = 16;
/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;
/// `SECCOMP_RET_ALLOW`.
const ALLOW: u32 = 0x7fff_0000;
/// `SECCOMP_RET_USER_NOTIF`.
const STOP: u32 = 0x7fc0_0000;
/// `SECCOMP_RET_ERRNO` with `ENOSYS`.
const DENY: u32 = 0x0005_0000 + 38;

/// Treatment of a number by the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Deny,
    Stop(StopCondition),
}

fn decide(number: u64) -> Decision {
    match find(number) {
        Some(call) if call.is_denied() => Decision::Deny,
        Some(call) => Decision::Stop(call.stop()),
        None => Decision::Stop(StopCondition::Always),
    }
}

/// Numbers with one decision, from `begin` up to the next run.
#[derive(Clone, Copy, Debug)]
struct NumberRun {
    begin: u32,
    decision: Decision,
}

fn instruction(code: u16, operand: u32) -> FilterInstruction {
    FilterInstruction { code, if_true: 0, if_false: 0, operand }
}

fn branch(code: u16, operand: u32, if_true: u8, if_false: u8) -> FilterInstruction {
    FilterInstruction { code, if_true, if_false, operand }
}

/// Returns the filter. It stops the calls that [`SystemCall::stop`](syscall_table::SystemCall::stop)
/// names and all unknown ones, unless the gate's instruction makes them.
pub fn filter() -> Vec<FilterInstruction> {
    let mut runs: Vec<NumberRun> = Vec::new();
    for begin in 0..=CALLS_MAX as u32 {
        let decision = decide(begin.into());
        if runs.last().is_none_or(|run| run.decision != decision) {
            runs.push(NumberRun { begin, decision });
        }
    }
    let mut search = Vec::new();
    emit_search(&runs, &mut search);
    let mut all = vec![
        instruction(LOAD, ARCHITECTURE),
        branch(IF_EQUAL, X86_64, 1, 0),
        instruction(RETURN, DENY),
        instruction(LOAD, NUMBER),
    ];
    // Calls that may have to stop jump behind the search.
    let end = search.len();
    all.extend(search.into_iter().enumerate().map(|(at, one)| match one.code {
        JUMP if one.operand == STOP => instruction(JUMP, (end - at - 1) as u32),
        _ => one,
    }));
    all.extend([
        instruction(LOAD, INSTRUCTION),
        branch(IF_EQUAL, gate::CALL_END as u32, 0, 3),
        instruction(LOAD, INSTRUCTION + 4),
        branch(IF_EQUAL, (gate::CALL_END >> 32) as u32, 0, 1),
        instruction(RETURN, ALLOW),
        instruction(RETURN, STOP),
    ]);
    all
}

/// Emits the search among runs. A jump to [`STOP`] stands for one behind the search.
fn emit_search(runs: &[NumberRun], into: &mut Vec<FilterInstruction>) {
    let (lower, upper) = runs.split_at(runs.len() / 2);
    let [first, ..] = upper else { return };
    if lower.is_empty() {
        return emit_decision(first.decision, into);
    }
    let mut left = Vec::new();
    emit_search(lower, &mut left);
    into.push(branch(IF_AT_LEAST, first.begin, 0, 1));
    into.push(instruction(JUMP, left.len() as u32));
    into.extend(left);
    emit_search(upper, into);
}

fn emit_decision(decision: Decision, into: &mut Vec<FilterInstruction>) {
    // The words of an argument are little-endian.
    let load = |argument: u8| instruction(LOAD, ARGUMENTS + 8 * u32::from(argument));
    let (stop, allow) = (instruction(JUMP, STOP), instruction(RETURN, ALLOW));
    match decision {
        Decision::Deny => into.push(instruction(RETURN, DENY)),
        Decision::Stop(StopCondition::Never) => into.push(allow),
        Decision::Stop(StopCondition::Always) => into.push(stop),
        Decision::Stop(StopCondition::AnyBit { argument, mask }) => {
            into.extend([load(argument), branch(IF_ANY_BIT, mask, 0, 1), stop, allow]);
        }
        Decision::Stop(StopCondition::Masked { argument, mask, value }) => {
            into.extend([load(argument), instruction(AND, mask)]);
            into.extend([branch(IF_EQUAL, value, 0, 1), stop, allow]);
        }
        Decision::Stop(StopCondition::OneOf { argument, values }) => {
            into.push(load(argument));
            for value in values {
                into.extend([branch(IF_EQUAL, *value as u32, 0, 1), stop]);
            }
            into.push(allow);
        }
        Decision::Stop(StopCondition::NoneOf { argument, values }) => {
            into.push(load(argument));
            for value in values {
                into.extend([branch(IF_EQUAL, *value as u32, 0, 1), allow]);
            }
            into.push(stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use syscall_table::calls;

    use super::*;

    /// A call as a filter sees it.
    struct Seen {
        number: u32,
        architecture: u32,
        instruction: u64,
        arguments: [u64; 6],
    }

    impl Seen {
        fn word(&self, at: u32) -> u32 {
            let whole = |word: u64, at: u32| (word >> (8 * (at % 8))) as u32;
            match at {
                NUMBER => self.number,
                ARCHITECTURE => self.architecture,
                8..16 => whole(self.instruction, at),
                _ => whole(self.arguments[(at - ARGUMENTS) as usize / 8], at),
            }
        }
    }

    /// Runs a filter as the kernel does.
    fn run(filter: &[FilterInstruction], call: &Seen) -> u32 {
        let (mut at, mut value) = (0, 0u32);
        loop {
            let FilterInstruction { code, if_true, if_false, operand } = filter[at];
            at += 1;
            let skip = |holds: bool| usize::from(if holds { if_true } else { if_false });
            match code {
                LOAD => value = call.word(operand),
                AND => value &= operand,
                JUMP => at += operand as usize,
                IF_EQUAL => at += skip(value == operand),
                IF_AT_LEAST => at += skip(value >= operand),
                IF_ANY_BIT => at += skip(value & operand != 0),
                RETURN => return operand,
                code => panic!("operation {code:#x}"),
            }
        }
    }

    fn seen(number: u32, arguments: [u64; 6]) -> Seen {
        Seen { number, architecture: X86_64, instruction: 0x7f00_1234_5678, arguments }
    }

    #[test]
    fn the_filter_does_what_the_table_says() {
        let filter = filter();
        assert!(filter.len() < 4096, "the kernel's limit: {}", filter.len());
        let words = (0..26).map(|bit| 1u64 << bit).chain([0, 3, 0x21, 0x5401, u64::MAX]);
        for arguments in words.map(|word| [word; 6]) {
            for number in 0..CALLS_MAX as u32 + 9 {
                let call = find(number.into());
                let wanted = match call {
                    Some(call) if call.is_denied() => DENY,
                    Some(call) if !call.stop().stops(&arguments) => ALLOW,
                    _ => STOP,
                };
                let name = call.map_or("none", |call| call.name);
                assert_eq!(run(&filter, &seen(number, arguments)), wanted, "{number} {name}");
            }
        }
        // The numbers of the x32 interface have this bit.
        assert_eq!(run(&filter, &seen(0x4000_0001, [0; 6])), STOP);
    }

    #[test]
    fn the_gates_instruction_passes_and_no_other_one() {
        let filter = filter();
        let write = calls().iter().find(|call| call.name == "write").expect("write").number;
        let at = |instruction: usize| Seen {
            instruction: instruction as u64,
            ..seen(write.into(), [1; 6])
        };
        assert_eq!(run(&filter, &at(gate::CALL_END)), ALLOW);
        for other in [gate::CALL_END - 1, gate::CALL_END + 1, gate::CALL_END + (1 << 32), 0] {
            assert_eq!(run(&filter, &at(other)), STOP, "{other:#x}");
        }
    }

    #[test]
    fn calls_of_another_architecture_fail() {
        let i386 = Seen { architecture: 0x4000_0003, ..seen(0, [0; 6]) };
        assert_eq!(run(&filter(), &i386), DENY);
    }
}
