//! [`to_text`]: JSON as text for people and programs.

use serde_json::Value;

/// Formats JSON for people and programs: one entry per line, lists of numbers on one line.
pub fn to_text(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, 0, &mut out);
    out.push('\n');
    out
}

fn write_value(value: &Value, depth: usize, out: &mut String) {
    let is_flat = |v: &Value| !matches!(v, Value::Array(_) | Value::Object(_));
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    match value {
        Value::Array(items) if !items.iter().all(is_flat) => {
            for (i, item) in items.iter().enumerate() {
                out.push(if i == 0 { '[' } else { ',' });
                line(out, depth + 1);
                write_value(item, depth + 1, out);
            }
            line(out, depth);
            out.push(']');
        }
        Value::Object(entries) if !entries.is_empty() => {
            for (i, (key, item)) in entries.iter().enumerate() {
                out.push(if i == 0 { '{' } else { ',' });
                line(out, depth + 1);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                write_value(item, depth + 1, out);
            }
            line(out, depth);
            out.push('}');
        }
        flat => out.push_str(&flat.to_string()),
    }
}
