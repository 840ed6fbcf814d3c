//! `forebay status`: the server on one screen.
//!
//! Exit status: 0 if clients are served, also with a warning; 1 for a problem, or without a server.

use forebay_api::client::Client;
use forebay_api::{ConditionView, HealthState, HealthView, JobState, JobView, ServerView, StatsView};
use forebay_host::clock::unix_ms;
use forebay_text::Size;
use serde::Serialize;

use super::space::free_for_writes;
use super::{CliError, output};

/// What the screen shows.
#[derive(Debug, Serialize)]
struct Status {
    server: ServerView,
    health: HealthView,
    stats: StatsView,
    /// Jobs that are running or waiting.
    jobs: Vec<JobView>,
}

pub(super) async fn run(client: &Client, json: bool) -> Result<(), CliError> {
    // At the same time: a slow answer delays the screen once. The first error in this order is reported.
    let (health, server, stats, jobs) = tokio::join!(
        client.get::<HealthView>(&["health"]),
        client.get(&["pool"]),
        client.get(&["stats"]),
        client.get::<Vec<JobView>>(&["jobs"]),
    );
    let mut status = Status { health: health?, server: server?, stats: stats?, jobs: jobs? };
    status.jobs.retain(|job| job.state == JobState::Running);
    // A reader that has closed the pipe does not change the exit status.
    let printed = output::print_result(&status, json, |status| screen(status, unix_ms()));
    match status.health.conditions.into_iter().find(|found| found.state == HealthState::Problem) {
        Some(problem) => Err(CliError::Unhealthy(problem.message)),
        None => printed,
    }
}

fn screen(status: &Status, now_ms: u64) -> String {
    let Status { server, health, stats, jobs } = status;
    let mut lines = vec![match health.state {
        HealthState::Ok => "health   ok".to_owned(),
        HealthState::Warning => "health   WARNING".to_owned(),
        HealthState::Problem => "health   PROBLEM".to_owned(),
    }];
    health.conditions.iter().for_each(|condition| lines.extend(describe(condition, now_ms)));
    lines.push(format!(
        "server   {} (process {}), ready for {}",
        server.version,
        server.pid,
        output::age(now_ms, now_ms.saturating_sub(server.uptime_s * 1000)),
    ));
    lines.push(format!("pool     {}", server.pool));
    if let Some(owner) = &server.owner {
        let standbys = owner.standbys.iter().flatten().filter(|standby| standby.alive).count();
        lines.push(format!("owner    {}, {standbys} standbys", owner.server));
    }
    lines.push(format!(
        "room     {} in use: {} of {} free for writes; this pool stores {}",
        output::percent(stats.store_in_use),
        Size(free_for_writes(stats.store_free_bytes, stats.store_reserve_bytes)),
        Size(stats.store_total_bytes),
        Size(stats.stored_bytes),
    ));
    lines.push(format!("disks    {}", stats.disks));
    lines.push(format!(
        "clients  {} connections, {} iSCSI sessions, {} NVMe controllers",
        stats.clients.connections, stats.clients.iscsi_sessions, stats.clients.nvme_controllers
    ));
    lines.push(format!("memory   {}; {} not yet durable", Size(stats.memory_bytes), Size(stats.dirty_bytes)));
    let running =
        if jobs.is_empty() { "none".to_owned() } else { format!("{} ('forebay job list')", jobs.len()) };
    lines.push(format!("jobs     {running}"));
    let (nbd, iscsi, nvme, nfs) = (&server.nbd, &server.iscsi, &server.nvme, &server.nfs);
    for (name, addresses) in [("nbd", nbd), ("iscsi", iscsi), ("nvme", nvme), ("nfs", nfs)] {
        if !addresses.is_empty() {
            lines.push(format!("{name:8} {}", addresses.join(", ")));
        }
    }
    lines.push(match &server.http {
        Some(address) => format!("http     {address}"),
        None => "http     off: with --http 127.0.0.1:8080 the server has a dashboard".to_owned(),
    });
    lines.join("\n")
}

/// The lines that describe a condition.
fn describe(condition: &ConditionView, now_ms: u64) -> Vec<String> {
    let ConditionView { message, remedy, since_ms, disks, .. } = condition;
    let mut lines = vec![format!("  - {message} (since {})", output::age(now_ms, *since_ms))];
    if !disks.is_empty() {
        lines.push(format!("    disks: {}", disks.join(", ")));
    }
    lines.push(format!("    {remedy}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_stands_first_with_its_remedy() {
        let condition = ConditionView {
            code: "memory_lost".into(),
            state: HealthState::Problem,
            message: "1 disk lost acknowledged writes".into(),
            remedy: "stop the clients".into(),
            since_ms: 1_000,
            disks: vec!["pc-001".into()],
        };
        let status = Status {
            server: ServerView {
                version: "0.1.0".into(),
                host: "node1".into(),
                data: "/srv/forebay".into(),
                pool: "/srv/forebay".into(),
                pid: 7,
                uptime_s: 60,
                nbd: vec!["unix:/run/nbd".into()],
                iscsi: Vec::new(),
                nvme: Vec::new(),
                nfs: Vec::new(),
                http: None,
                owner: None,
            },
            health: HealthView { state: HealthState::Problem, conditions: vec![condition] },
            stats: StatsView {
                disks: 3,
                store_total_bytes: 1 << 40,
                store_free_bytes: 3 << 30,
                store_reserve_bytes: Some(1 << 30),
                store_in_use: Some(0.998),
                ..StatsView::default()
            },
            jobs: Vec::new(),
        };
        let text = screen(&status, 61_000);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "health   PROBLEM");
        assert_eq!(lines[1], "  - 1 disk lost acknowledged writes (since 1 min)");
        assert_eq!(lines[2..4], ["    disks: pc-001", "    stop the clients"]);
        assert!(text.contains("room     99.8 % in use: 2 GiB of 1 TiB free for writes"), "{text}");
        assert!(
            text.contains("disks    3\n") && text.contains("\nnbd      unix:/run/nbd\nhttp     off"),
            "{text}"
        );
    }
}
