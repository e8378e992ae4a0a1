//! Tests of `path.completion`, `path.poll_interval` and `host.interrupt_cost`.

// guarantee: B-24

use super::*;
use crate::{CompletionMethod, CompletionPolicy};

fn path(keys: &str) -> String {
    format!("{SMALL}[path]\n{keys}")
}

/// Lines of a scenario before the keys of its path.
fn lines() -> usize {
    SMALL.lines().count() + 1
}

/// Asserts that `keys` of `[path]` are refused at their line `line`.
fn refuse(keys: &str, line: usize, caret: &str, says: &[&str]) {
    assert_refused(&path(keys), lines() + line, caret, says);
}

#[test]
fn each_method_is_a_word() {
    let policy = |keys: &str| parse(&path(keys)).unwrap().path.completion;
    assert_eq!(policy(""), None);
    for method in CompletionMethod::ALL {
        let keys = format!("queue_model = \"sq\"\ncompletion = \"{}\"\n", method.word());
        let expected = CompletionPolicy { method: *method, poll_interval: None };
        assert_eq!(policy(&keys), Some(expected));
    }
    let timer = |interval| {
        let poll_interval = Some(Nanos(interval));
        Some(CompletionPolicy { method: CompletionMethod::Poll, poll_interval })
    };
    assert_eq!(policy("poll_interval = \"16us\"\n"), timer(16_000));
    assert_eq!(policy("completion = \"poll\"\npoll_interval = \"1s\"\n"), timer(1_000_000_000));
    assert_eq!(policy("poll_interval = \"1ns\"\n"), timer(1));
    let costs = parse(&format!("{SMALL}[host]\ninterrupt_cost = \"5us\"\n")).unwrap().host;
    assert_eq!(costs.interrupt_cost, Some(Nanos(5_000)));
}

#[test]
fn an_interval_that_is_none_is_refused() {
    let range = "durations from 1 ns to 1 s";
    for wrong in ["0s", "1001ms", "2s"] {
        let caret = format!("\"{wrong}\"");
        refuse(&format!("poll_interval = {caret}\n"), 1, &caret, &["poll_interval", range]);
    }
    for method in ["interrupt", "hybrid"] {
        let keys = format!("completion = \"{method}\"\npoll_interval = \"5us\"\n");
        let says = ["has no interval between polls", "completion = \"poll\""];
        refuse(&keys, 2, "\"5us\"", &says);
    }
    refuse("completion = \"irq\"\n", 1, "\"irq\"", &["\"interrupt\"", "\"coop\""]);
}

#[test]
fn a_handler_needs_a_queue_that_it_shares() {
    for method in ["lazy", "coop"] {
        for model in ["raw", "mq"] {
            let caret = format!("\"{method}\"");
            let keys = format!("queue_model = \"{model}\"\ncompletion = {caret}\n");
            let says = [&format!("`{model}`"), "without a lock", "queue_model = \"sq\""];
            refuse(&keys, 2, &caret, &says);
        }
    }
}

#[test]
fn vector_commands_have_no_method() {
    let drive = "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n";
    let (caret, says) = ("\"interrupt\"", ["vector commands", "remove `completion`"]);
    let raw = format!("{drive}[path]\ncompletion = {caret}\n");
    assert_refused(&raw, 5, caret, &says);
    let kv = "[[target]]\nname = \"kv\"\nkind = \"kv\"\npus = \"0-3\"\n";
    let named = format!("{drive}{kv}[[path]]\nname = \"p\"\nover = \"kv\"\ncompletion = {caret}\n");
    assert_refused(&named, 11, caret, &says);
    let unnamed = format!("{drive}{kv}[path]\npoll_interval = \"5us\"\n");
    assert_refused(&unnamed, 9, "\"5us\"", &says);
    // Polling is what they do.
    assert!(parse(&format!("{drive}{kv}[path]\ncompletion = \"poll\"\n")).is_ok());
}
