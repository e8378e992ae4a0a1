//! [`csv`] and [`json`]: the rows of a sweep for other programs.

use serde_json::{Map, Value, json};
use sim::to_text;

use crate::{Row, columns_of};

/// Returns the rows as CSV (RFC 4180, with line feeds): the keys of the sweep, the seed, job and
/// direction, the status, the error and the command that repeats the run, and [`COLUMNS`](crate::COLUMNS), those
/// of a modeled machine if a row has them.
pub fn csv(keys: &[String], rows: &[Row]) -> String {
    let fixed = ["seed", "job", "direction", "status", "error", "replay"];
    let names = keys.iter().map(String::as_str).chain(fixed);
    let columns = columns_of(rows.iter());
    let measured = columns.iter().map(|(_, column)| column.name);
    let mut out = line(names.chain(measured).map(str::to_owned));
    for row in rows {
        let seed = row.seed.map_or_else(String::new, |seed| seed.to_string());
        let fixed = [
            seed,
            row.job.clone(),
            row.direction.clone(),
            row.status.word().to_owned(),
            row.error.clone(),
            row.replay.clone(),
        ];
        let values = columns.iter().map(|(index, _)| {
            row.values[*index].as_ref().map_or_else(String::new, ToString::to_string)
        });
        out += &line(row.parameters.iter().cloned().chain(fixed).chain(values));
    }
    out
}

fn line(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| quoted(&cell)).collect::<Vec<_>>().join(",") + "\n"
}

fn quoted(cell: &str) -> String {
    match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

/// Returns the rows as a JSON list of objects, with the parameters in an object of their own.
pub fn json(keys: &[String], rows: &[Row]) -> String {
    let columns = columns_of(rows.iter());
    let object = |row: &Row| {
        let parameters = keys.iter().cloned().zip(row.parameters.iter().map(|v| json!(v)));
        let mut object = json!({
            "parameters": parameters.collect::<Map<String, Value>>(),
            "seed": row.seed,
            "job": row.job,
            "direction": row.direction,
            "status": row.status.word(),
            "error": row.error,
            "replay": row.replay,
        });
        for (index, column) in &columns {
            object[column.name] = json!(row.values[*index]);
        }
        object
    };
    to_text(&rows.iter().map(object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{COLUMNS, GridPoint, failed_row};

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        let mut row = failed_row(&GridPoint::default(), Some(1), "sluice sim a", "it is \"x\", y");
        row.parameters = vec!["a,b".into()];
        let text = csv(&["target.kind".into()], &[row.clone()]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("target.kind,seed,job,direction,status,error,replay,elapsed_ns,")
        );
        assert!(lines[1].starts_with("\"a,b\",1,,,failed,\"it is \"\"x\"\", y\",sluice sim a,,"));
        assert_eq!(lines[0].split(',').count(), 7 + COLUMNS.len() - 2, "no machine");
        let parsed: Value = serde_json::from_str(&json(&["target.kind".into()], &[row])).unwrap();
        assert_eq!(parsed[0]["parameters"]["target.kind"], "a,b");
        assert_eq!(parsed[0]["iops"], Value::Null);
    }
}
