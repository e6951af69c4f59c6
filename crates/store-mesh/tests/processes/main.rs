//! The mesh between real processes: overload of three shapes, and replicas that are killed under it.
//!
//! The same program is the test and, when it is called with `node`, one replica. What was admitted is counted by the replicas as they
//! hand it to their parent, so that a killed one has told all but the last millisecond.

mod fleet;
mod node;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use fleet::{Fleet, Load};

/// Units that pass at once.
const CAPACITY: u64 = 1_000;
/// Units a second.
const REFILL: u64 = 2_000;
const NODES: usize = 10;

/// Figures, or why it failed.
type Test = fn() -> Result<String, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|mode| mode == "node") {
        node::run(&arguments[2..]);
        return ExitCode::SUCCESS;
    }
    let tests: [(&str, Test); 4] = [
        ("ten_processes_share_the_limit_evenly_loaded", || overload(&[1; NODES])),
        ("ten_processes_share_the_limit_loaded_by_zipf", || {
            overload(&std::array::from_fn::<u64, NODES, _>(|index| 2_520 / (index as u64 + 1)))
        }),
        ("one_of_ten_processes_may_use_the_whole_limit", || overload(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("killed_and_restarted_under_load_the_bound_holds", killed_under_load),
    ];
    let wanted: Vec<&String> = arguments[1..].iter().filter(|argument| !argument.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in tests {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        match test() {
            Ok(figures) => println!("test {name} ... ok ({figures})"),
            Err(reason) => {
                failed += 1;
                println!("test {name} ... FAILED: {reason}");
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the fleet may admit in `span`, and what a perfect bucket would.
fn bound_and_ideal(span: Duration, nodes: usize) -> (u64, u64) {
    let refilled = u128::from(REFILL) * span.as_nanos() / 1_000_000_000;
    let ideal = CAPACITY + u64::try_from(refilled).unwrap_or(u64::MAX);
    (ideal + CAPACITY / 10 + nodes as u64 - 1, ideal)
}

/// Four times the limit for some seconds, spread by `weights`: between 97 % of the ideal and the bound is admitted.
fn overload(weights: &[u64]) -> Result<String, String> {
    let mut fleet = Fleet::start(weights.len())?;
    let span = Duration::from_secs(4);
    let total: u64 = weights.iter().sum();
    let begun = Instant::now();
    for (index, weight) in weights.iter().enumerate() {
        fleet.load(index, Load { per_second: 4 * REFILL * weight / total, span })?;
    }
    let admitted: u64 = fleet.finish()?.iter().sum();
    let (bound, _) = bound_and_ideal(begun.elapsed(), weights.len());
    let (_, ideal) = bound_and_ideal(span, weights.len());
    let figures = format!("admitted {admitted} of {ideal}, {} %, bound {bound}", admitted * 100 / ideal);
    if admitted * 100 >= ideal * 97 && admitted <= bound { Ok(figures) } else { Err(figures) }
}

/// A replica is killed and started again, several times, while all are overloaded.
fn killed_under_load() -> Result<String, String> {
    const KILLS: usize = 6;
    let mut fleet = Fleet::start(4)?;
    let span = Duration::from_secs(60);
    let begun = Instant::now();
    for index in 0..4 {
        fleet.load(index, Load { per_second: 2 * REFILL, span })?;
    }
    for kill in 0..KILLS {
        fleet.let_run(Duration::from_millis(400));
        let index = 1 + kill % 3;
        fleet.kill(index);
        fleet.let_run(Duration::from_millis(200));
        fleet.restart(index)?;
        fleet.load(index, Load { per_second: 2 * REFILL, span })?;
    }
    // Four members everywhere, no ghost, and what is refilled is used again.
    fleet.until_all_list(4)?;
    let (before, since) = (fleet.admitted(), Instant::now());
    fleet.let_run(Duration::from_secs(2));
    let (again, elapsed) = (fleet.admitted() - before, since.elapsed());
    let (admitted, (bound, _)) = (fleet.admitted(), bound_and_ideal(begun.elapsed(), 4));
    let (_, filled) = bound_and_ideal(elapsed, 4);
    let refilled = filled - CAPACITY;
    let figures = format!("{KILLS} kills, admitted {admitted}, bound {bound}; healed: {again} of {refilled}");
    if admitted <= bound && again * 100 >= refilled * 90 { Ok(figures) } else { Err(figures) }
}
