//! Tests of grids, and of the errors of their points.

use super::*;

const TEXT: &str = "title = \"t\"\n[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 24, pages = 32 }\n\
    [[job]]\nname = \"reader\"\nrw = \"randread\"\nbs = \"4k\"\nsize = \"1m\"\n";

fn base(text: &str) -> BaseScenario {
    BaseScenario::new(Path::new("a.toml"), text)
}

fn grid(sets: &[&str], seeds: Option<&str>) -> Grid {
    let settings = sets.iter().map(|set| Setting::parse(set).unwrap()).collect();
    Grid::new(settings, seeds.map(|seeds| seeds.parse().unwrap())).unwrap()
}

fn build(text: &str, sets: &[&str]) -> Result<Vec<Result<Scenario, SweepError>>, SweepError> {
    scenarios(&base(text), &grid(sets, None).points(), &[])
}

/// Returns the error of a grid with these settings, which no point can have.
fn refused(text: &str, sets: &[&str]) -> String {
    build(text, sets).unwrap_err().to_string()
}

#[test]
fn points_are_all_combinations_with_the_seed_changing_first() {
    let grid = grid(&["a=1,2", "b=x,y"], Some("3..5"));
    let texts: Vec<String> = grid.points().iter().map(GridPoint::text).collect();
    assert_eq!(texts.len(), 8);
    assert_eq!(texts[..3], ["a=1, b=x, seed 3", "a=1, b=x, seed 4", "a=1, b=y, seed 3"]);
    assert_eq!(texts[7], "a=2, b=y, seed 4");
    assert_eq!(Grid::default().points(), [GridPoint::default()]);
}

#[test]
fn seeds_are_a_number_or_a_range() {
    let parse = |text: &str| text.parse::<Seeds>().map(|Seeds(range)| range);
    assert_eq!(parse("40").unwrap(), 0..40);
    assert_eq!(parse("5..7").unwrap(), 5..7);
    for wrong in ["", "0", "7..7", "8..7", "x", "1..", "-1..2", "1.5"] {
        assert!(matches!(parse(wrong), Err(SweepError::Seeds { .. })), "{wrong}");
    }
}

#[test]
fn repeated_keys_seeds_and_too_many_runs_are_errors() {
    let settings = |sets: &[&str]| sets.iter().map(|s| Setting::parse(s).unwrap()).collect();
    let error = Grid::new(settings(&["a.b=1", "a.b=2"]), None).unwrap_err();
    assert_eq!(error.to_string(), "--set a.b=2: `a.b` is set twice; remove one");
    let seeds = Some("0..4".parse().unwrap());
    let error = Grid::new(settings(&["seed=1"]), seeds).unwrap_err();
    assert!(matches!(error, SweepError::SeedsAndSet));
    let seeds = Some(format!("0..{}", RUNS_MAX + 1).parse().unwrap());
    assert!(matches!(Grid::new(Vec::new(), seeds), Err(SweepError::TooMany { .. })));
}

#[test]
fn the_scenario_of_a_point_has_its_values_and_its_title_says_them() {
    let sets = ["drive.geometry.chunks=32", "job.reader.bs=8k"];
    let mut point = grid(&sets, None).points().swap_remove(0);
    point.seed = Some(7);
    let scenario = base(TEXT).at(&point, &[]).unwrap();
    assert_eq!(scenario.title, "t (drive.geometry.chunks=32, job.reader.bs=8k, seed 7)");
    assert_eq!(scenario.seed, 7);
    assert!(scenario.jobs[0].pairs.iter().any(|(key, value, _)| key == "bs" && value == "8k"));
    let whole = Scenario::parse(Path::new("a.toml"), &scenario.text).unwrap();
    assert_eq!(whole.drives[0].capacity, scenario.drives[0].capacity, "the text is complete");
    let plain = base(TEXT).at(&GridPoint::default(), &[]).unwrap();
    assert_eq!(plain, Scenario::parse(Path::new("a.toml"), TEXT).unwrap());
}

#[test]
fn an_unknown_key_has_the_nearest_names() {
    let error = refused(TEXT, &["drive.ftl.over_provisionin=0.1,0.2"]);
    assert!(error.starts_with("--set drive.ftl.over_provisionin=0.1,0.2: "), "{error}");
    assert!(error.contains("did you mean `over_provisioning`?"), "{error}");
    let error = refused(TEXT, &["targt.active_pus=4"]);
    assert!(error.contains("did you mean `target`?"), "{error}");
    let error = refused(TEXT, &["job.reader.iodept=4"]);
    assert!(error.contains("did you mean") && error.contains("iodepth"), "{error}");
    let error = refused(TEXT, &["job.readr.iodepth.x=4"]);
    assert!(error.starts_with("--set job.readr.iodepth.x=4"), "{error}");
}

#[test]
fn a_value_of_the_wrong_type_names_the_setting() {
    for (set, part) in [
        ("drive.ftl.over_provisioning=many", "cannot be the string \"many\""),
        ("drive.cell=7", "expected a string"),
        ("seed=true", "expected a whole number"),
        ("job.reader.bs=many", "job.reader.bs=many"),
        ("title=", "it has no value"),
    ] {
        let error = match Setting::parse(set) {
            Ok(_) => refused(TEXT, &[set]),
            Err(error) => error.to_string(),
        };
        assert!(error.starts_with(&format!("--set {set}: ")) && error.contains(part), "{error}");
    }
}

#[test]
fn one_impossible_value_of_several_is_an_error_before_any_run() {
    let error = refused(TEXT, &["job.reader.iodepth=1,2", "drive.ftl.over_provisioning=0.1,many"]);
    assert!(error.contains("over_provisioning=many"), "{error}");
}

#[test]
fn values_that_exclude_each_other_are_errors_of_their_point() {
    // Two channels with 24 chunks do not hold so much.
    let built = build(TEXT, &["drive.geometry.chunks=24,4000", "drive.capacity=8M,4G"]).unwrap();
    let errors: Vec<String> =
        built.iter().filter_map(|point| point.as_ref().err()).map(ToString::to_string).collect();
    assert_eq!((built.len(), errors.len()), (4, 1), "{errors:?}");
    assert!(errors[0].contains("4G"), "{errors:?}");
}

#[test]
fn an_error_of_the_scenario_itself_has_its_own_line() {
    let text = format!("{TEXT}\n[path]\nqueue_modl = \"mq\"\n");
    let error = build(&text, &["seed=1,2"]).unwrap_err();
    assert!(matches!(error, SweepError::Scenario(_)), "{error}");
    assert!(error.to_string().starts_with("a.toml:12:1: "), "{error}");
    let error = build("not toml", &["seed=1"]).unwrap_err();
    assert!(matches!(error, SweepError::Scenario(_)), "{error}");
}

#[test]
fn a_scenario_may_be_complete_only_with_the_settings() {
    let text = TEXT.replace("preset = \"femu-default\"\n", "");
    assert!(build(&text, &["seed=1,2"]).is_err());
    let built = build(&text, &["drive.preset=femu-default"]).unwrap();
    assert!(built[0].is_ok());
}
