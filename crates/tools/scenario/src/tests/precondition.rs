//! Tests of `[precondition]`: jobs with fio's options, and their continuation.

use super::*;

fn read(keys: &str) -> Precondition {
    parse(&format!("{SMALL}[precondition]\n{keys}")).unwrap_or_else(|e| panic!("{e}")).precondition
}

#[test]
fn any_job_that_writes() {
    let words = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let zipf = read(
        "overwrite = { rw = \"randwrite\", random_distribution = \"zipf:1.1\", amount = \"3x\", bs = \"16k\" }\n",
    );
    assert_eq!(
        zipf.overwrite,
        [Overwrite {
            amount: Amount::Times(3.0),
            words: words(&[
                ("rw", "randwrite"),
                ("bs", "16k"),
                ("random_distribution", "zipf:1.1")
            ]),
        }]
    );
    let several = read(
        "overwrite = [\"random 0.5x\", \"none\", { size = \"50%\", iodepth = 4, amount = \"10G\" }]\n",
    );
    let amounts: Vec<Amount> = several.overwrite.iter().map(|o| o.amount).collect();
    assert_eq!(amounts, [Amount::Times(0.5), Amount::Bytes(10 << 30)]);
    assert_eq!(several.overwrite[1].words, words(&[("size", "50%"), ("iodepth", "4")]));
    assert_eq!(read("overwrite = \"none\"\n"), Precondition::default());
    assert_eq!(read("overwrite = []\n"), Precondition::default());
}

#[test]
fn until_steady() {
    assert_eq!(read("until = \"steady\"\n").until, Some(Until::STEADY));
    assert_eq!(read("until = \"none\"\n").until, None);
    let short = read("until = { round = \"0.1x\", rounds = 40 }\n").until;
    assert_eq!(short, Some(Until { round: 0.1, rounds_max: 40 }));
    // The last job continues, so it needs no amount.
    let zipf = read(
        "until = \"steady\"\noverwrite = [\"random 1x\", { random_distribution = \"zipf:1.1\" }]\n",
    );
    assert_eq!(zipf.overwrite[1].amount, Amount::Times(0.0));
    let random = read("until = \"steady\"\noverwrite = \"random\"\n");
    assert_eq!(random.overwrite[0].amount, Amount::Times(0.0));
}

#[test]
fn what_is_no_such_job_is_refused() {
    let case = |keys: &str, caret: &str, says: &[&str]| {
        assert_refused(&format!("{SMALL}[precondition]\n{keys}\n"), 4, caret, says);
    };
    case("overwrite = \"random\"", "\"random\"", &["random 2x", "amount"]);
    case("overwrite = \"random 1001x\"", "\"random 1001x\"", &["up to 1000 times"]);
    case("overwrite = \"random nanx\"", "\"random nanx\"", &["random 2x"]);
    case("overwrite = 3", "3", &["a table such as"]);
    case("overwrite = {}", "{}", &["needs `amount`", "2x"]);
    case("overwrite = { amount = \"0x\" }", "\"0x\"", &["cannot be \"0x\"", "\"2x\""]);
    case("overwrite = { amount = 0 }", "0", &["cannot be 0"]);
    case("overwrite = { amount = \"much\" }", "\"much\"", &["expected times", "10G"]);
    case(
        "overwrite = { rw = \"randread\", amount = \"1x\" }",
        "\"randread\"",
        &["what writes or trims"],
    );
    case("overwrite = { rw = \"sideways\", amount = \"1x\" }", "\"sideways\"", &["allowed:"]);
    case("overwrite = { bs = \"4q\", amount = \"1x\" }", "\"4q\"", &["allowed:"]);
    case(
        "overwrite = { rw = \"write\", random_distribution = \"zipf:1.1\", amount = \"1x\" }",
        "{ rw = \"write\", random_distribution = \"zipf:1.1\", amount = \"1x\" }",
        &["needs a random `rw`"],
    );
    // Options of time have no meaning here.
    for word in ["runtime", "rate_iops", "thinktime", "ramp_time"] {
        let keys = format!("overwrite = {{ amount = \"1x\", {word} = 1 }}");
        case(&keys, word, &["has no key", "allowed: amount, rw"]);
    }
    case("overwrite = { io_size = \"1G\" }", "{ io_size = \"1G\" }", &["needs `amount`"]);
    case(
        "overwrite = { amount = \"1x\", random_distributio = \"zipf:1\" }",
        "random_distributio",
        &["did you mean `random_distribution`"],
    );
    // Only the last job continues.
    assert_refused(
        &format!("{SMALL}[precondition]\noverwrite = [{{}}, {{}}]\nuntil = \"steady\"\n"),
        4,
        "{}",
        &["needs `amount`"],
    );
    case("until = \"stedy\"", "\"stedy\"", &["did you mean \"steady\"?"]);
    case("until = 5", "5", &["round = \"0.5x\""]);
    case("until = { rounds = 4 }", "4", &["from 5 to 1000"]);
    case("until = { round = \"0x\" }", "\"0x\"", &["0.01x"]);
    case("until = { round = \"half\" }", "\"half\"", &["0.01x"]);
    case("until = { kind = \"steady\", spread = 3 }", "spread", &["allowed: kind, round, rounds"]);
}

#[test]
fn a_drawn_steady_state_has_one_job_without_an_amount() {
    let read = |keys: &str| read(&format!("steady = \"sampled\"\n{keys}"));
    assert!(read("").sampled && !read("").is_none());
    assert!(read("").overwrite.is_empty());
    assert_eq!(read("overwrite = \"random\"\n").overwrite[0].words, []);
    let zipf = "overwrite = { random_distribution = \"zipf:0.9\", bs = \"8k\", randseed = 3 }\n";
    assert_eq!(read(zipf).overwrite[0].words.len(), 3);
    assert!(read("fill = \"sequential\"\n").sampled);

    let case = |keys: &str, caret: &str, says: &[&str]| {
        let text = format!("{SMALL}[precondition]\nsteady = \"sampled\"\n{keys}\n");
        assert_refused(&text, 5, caret, says);
    };
    case("overwrite = \"random 1x\"", "\"random 1x\"", &["any amount", "alone"]);
    case("overwrite = { amount = \"1x\" }", "\"1x\"", &["any amount", "remove it"]);
    case("overwrite = [{}, {}]", "[{}, {}]", &["one job"]);
    for (words, says) in [
        ("rw = \"write\"", "random writes alone"),
        ("rw = \"randrw\"", "random writes alone"),
        ("rw = \"randtrim\"", "random writes alone"),
        ("bssplit = \"4k/50:8k/50\"", "one size"),
        ("size = \"50%\"", "whole drive"),
        ("offset = \"1M\"", "whole drive"),
        ("random_distribution = \"pareto:0.2\"", "`random` and `zipf`"),
        ("norandommap = false", "norandommap"),
    ] {
        let job = format!("{{ {words} }}");
        case(&format!("overwrite = {job}"), &job, &[says]);
    }
    let refused = |keys: &str, line, caret: &str, says: &[&str]| {
        assert_refused(&format!("{SMALL}[precondition]\n{keys}\n"), line, caret, says);
    };
    refused("until = \"steady\"\nsteady = \"sampled\"", 5, "\"sampled\"", &["`until`"]);
    refused("steady = \"drawn\"", 4, "\"drawn\"", &["allowed: \"none\", \"sampled\""]);
}
