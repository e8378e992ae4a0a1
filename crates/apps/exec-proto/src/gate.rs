//! The gate: the one instruction whose calls pass the filter of system calls that a program has
//! under `sluice exec --speculate` (docs/speculation.md).
//!
//! The preload library maps a page at a fixed address, with a function that makes the system call
//! of its first argument with the others, as `syscall(3)` does. Before an output it compares the
//! number of acknowledged syncs with that of durable ones, and checks that the outbox is empty. All
//! three words are in the doorbell's memory.

/// Address of the gate's page: where the kernel, allocators and sanitizers put nothing by default.
pub const ADDRESS: usize = 0x2051_7ce0_0000;
/// Bytes of the page.
pub const PAGE_BYTES: usize = 4096;
/// The function's code. Its calling convention is that of C: number, and six arguments.
pub const CODE: [u8; 27] = [
    0x48, 0x89, 0xf8, // mov rax, rdi
    0x48, 0x89, 0xf7, // mov rdi, rsi
    0x48, 0x89, 0xd6, // mov rsi, rdx
    0x48, 0x89, 0xca, // mov rdx, rcx
    0x4d, 0x89, 0xc2, // mov r10, r8
    0x4d, 0x89, 0xc8, // mov r8, r9
    0x4c, 0x8b, 0x4c, 0x24, 0x08, // mov r9, [rsp + 8]
    0x0f, 0x05, // syscall
    0x90, 0xc3, // nop; ret
];
/// Address after the system call, which is the one that the filter sees.
pub const CALL_END: usize = ADDRESS + 25;
const _: () = assert!(CODE[23] == 0x0f && CODE[24] == 0x05);

/// Environment variable that says that the program has the filter.
pub const ENV_FILTER: &str = "SLUICE_EXEC_FILTER";
/// Offset of the word with the number of acknowledged syncs, in the doorbell's memory. Programs and
/// the service count ([`slot_protocol::acknowledge_sync`](crate::slot_protocol::acknowledge_sync)).
pub const ACKNOWLEDGED: usize = 320;
/// Offset of the word with the number of the last sync that is durable with all earlier ones, on the
/// same cache line.
pub const DURABLE: usize = 328;
/// Offset of the flag that programs may acknowledge syncs themselves.
pub const POSTS_SYNCS: usize = 336;
/// Offset of the word with the number of sends in the outbox, on the same cache line. The supervisor
/// adds a send before it answers the call, and removes it after the kernel has taken the data.
pub const BUFFERED: usize = 344;
/// Offset of the counter of outputs that passed without a wait.
pub const PASSED: usize = 384;
