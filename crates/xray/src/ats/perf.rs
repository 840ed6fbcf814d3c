//! `iscsi-perf` of libiscsi, as a second, independent client.

use std::process::Command;
use std::time::Duration;

use crate::device::Endpoint;
use crate::error::Result;
use crate::load::Report;
use crate::targets::servers::{run, unusable};

/// 4 KiB random reads of a unit at depth 32.
pub fn random_reads(unit: &Endpoint, time: Duration) -> Result<Report> {
    // The program accepts only whole seconds.
    let seconds = time.as_secs_f64().ceil();
    let mut command = Command::new("iscsi-perf");
    command.args(["-m", "32", "-b", "8", "-r", "-t", &seconds.to_string()]).arg(unit.to_string());
    let output = run(&mut command)?;
    let iops =
        average(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| unusable(&command, "average"))?;
    Ok(Report { iops, ops: (iops * seconds) as u64, seconds, ..Report::default() })
}

/// The last average in its output.
fn average(text: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once("iops average ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_average_of_the_output_is_used() {
        let text = "capacity is 4\n\riops average 100 (0 MB/s), in_flight 32   \riops average 40170 (156 MB/s)   \n\n";
        assert_eq!(average(text), Some(40170.0));
        assert_eq!(average("nothing"), None);
    }
}
