//! [`expand`]: expands environment variables and fio's keywords in the values of a job file.

/// Returns `value` with `${NAME}` replaced by the environment variable, and with `$ncpus`,
/// `$mb_memory` and `$pagesize` replaced by the values of this machine.
///
/// An unset variable expands to nothing. A value with a keyword can be a sum or product, such as
/// `2*$ncpus`.
///
/// # Errors
/// A message, if a `${` is not closed or an expression is invalid.
pub(crate) fn expand(value: &str) -> Result<String, String> {
    expand_with(value, |name| std::env::var(name).unwrap_or_default(), machine)
}

fn expand_with(
    value: &str,
    variable: impl Fn(&str) -> String,
    machine: impl Fn(&str) -> Option<u64>,
) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = value;
    while let Some(at) = rest.find("${") {
        let (before, name) = (&rest[..at], &rest[at + 2..]);
        let (name, after) =
            name.split_once('}').ok_or("`${` without `}`: a variable is `${NAME}`")?;
        out.push_str(before);
        out.push_str(&variable(name));
        rest = after;
    }
    out.push_str(rest);
    let mut keyword = false;
    for name in ["ncpus", "mb_memory", "pagesize"] {
        let word = format!("${name}");
        if out.contains(&word) {
            let number =
                machine(name).ok_or_else(|| format!("`{word}` is not known of this machine"))?;
            out = out.replace(&word, &number.to_string());
            keyword = true;
        }
    }
    if keyword && !out.bytes().all(|b| b.is_ascii_digit()) {
        let number = sum(&out).ok_or_else(|| {
            format!("`{out}` is no sum or product of whole numbers, such as 2*$ncpus")
        })?;
        return Ok(number.to_string());
    }
    Ok(out)
}

/// Evaluates sums and differences of products and quotients, without brackets.
fn sum(text: &str) -> Option<u64> {
    let mut total = 0i128;
    let mut sign = 1;
    let mut rest = text;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        total += sign * i128::from(product(&rest[..end])?);
        match rest[end..].chars().next() {
            Some(c) => sign = if c == '+' { 1 } else { -1 },
            None => return u64::try_from(total).ok(),
        }
        rest = &rest[end + 1..];
    }
}

fn product(text: &str) -> Option<u64> {
    let mut total = 1u64;
    let mut divide = false;
    let mut rest = text;
    loop {
        let end = rest.find(['*', '/']).unwrap_or(rest.len());
        let number: u64 = rest[..end].trim().parse().ok()?;
        total = if divide { total.checked_div(number)? } else { total.checked_mul(number)? };
        match rest[end..].chars().next() {
            Some(c) => divide = c == '/',
            None => return Some(total),
        }
        rest = &rest[end + 1..];
    }
}

fn machine(name: &str) -> Option<u64> {
    match name {
        "ncpus" => std::thread::available_parallelism().ok().map(|n| n.get() as u64),
        "mb_memory" => crate::runner::memory::meminfo("MemTotal:").map(|bytes| bytes >> 20),
        _ => Some(mem::PAGE_BYTES as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(value: &str) -> Result<String, String> {
        let variable = |name: &str| if name == "DEPTH" { "32".into() } else { String::new() };
        expand_with(value, variable, |name| (name != "mb_memory").then_some(4))
    }

    #[test]
    fn variables_and_keywords_become_values() {
        for (value, expected) in [
            ("${DEPTH}", "32"),
            ("rand${NOTHING}read", "randread"),
            ("${DEPTH}-${DEPTH}k", "32-32k"),
            ("$ncpus", "4"),
            ("2*$ncpus", "8"),
            ("$ncpus*${DEPTH}+8/2-1", "131"),
            ("a$b", "a$b"),
        ] {
            assert_eq!(expanded(value).as_deref(), Ok(expected), "{value}");
        }
        for bad in ["${DEPTH", "$ncpus*k", "$ncpus/0", "1-$ncpus", "$mb_memory"] {
            assert!(expanded(bad).is_err(), "{bad}");
        }
        assert!(machine("ncpus").is_some_and(|n| n > 0));
        assert_eq!(machine("pagesize"), Some(4096));
    }
}
