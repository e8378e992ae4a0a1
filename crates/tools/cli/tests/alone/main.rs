//! Tests that need a process of their own: they adopt the orphans of their children (`exec_crash`),
//! or compare real time with virtual time (`virtual_and_real`).

mod exec_crash;
#[path = "../suite/served/mod.rs"]
mod served;
mod virtual_and_real;
