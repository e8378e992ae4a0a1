//! Compiles bytes. A program that compiles is verified and encoded.

use std::path::Path;

use rules::{RuleGrant, RuleProgram};
use rules_lang::{CompileOptions, RuleSourceProblem, compile};

/// Compiles a source; returns whether it is accepted. Errors are in the source, in one line.
pub(crate) fn compiles(bytes: &[u8]) -> bool {
    let grant = RuleGrant { command_ops: 1 << 25, ..RuleGrant::default() };
    let options = CompileOptions { grant, ..CompileOptions::default() };
    let compiled = compile(Path::new("fuzz.rules"), bytes, &options);
    let verified = compiled.and_then(|compiled| compiled.verify(&options.grant));
    match verified {
        Ok(verified) => {
            let decoded = RuleProgram::decode(&verified.program().encode()).expect("decodes");
            assert!(rules::verify(decoded, &options.grant).is_ok_and(|again| again == verified));
            true
        }
        Err(error) => {
            assert!(error.line > 0 && error.column > 0 && error.span.start <= error.text.len());
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            // The compiler refuses what is wrong in a rule, with a location in it.
            let is_of_compiler = matches!(&error.problem, RuleSourceProblem::Verify(problem)
                if matches!(**problem, rules::VerifyError::Rule { .. }));
            assert!(!is_of_compiler, "{error}");
            false
        }
    }
}

/// Compiles a fuzzer's bytes.
pub(crate) fn fuzz(bytes: &[u8]) {
    compiles(bytes);
}
