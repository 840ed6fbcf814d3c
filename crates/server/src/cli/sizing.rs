//! `forebay size`: what a fleet of desktops needs.

use forebay_api::client::Client;
use forebay_api::{ActivityView, ServerView, StatsView};
use forebay_text::Size;

use super::args::SizeArgs;
use super::{CliError, output};
use crate::sizing::{Fleet, Measured, Needs};

/// The fleet that the options describe.
pub(super) fn fleet(args: &SizeArgs) -> Fleet {
    Fleet {
        desktops: args.desktops,
        profile: args.profile,
        image: args.image,
        read_cache: args.read_cache.map(|size| size.0),
        desktop_memory: args.desktop_memory.map(|size| size.0),
        hours: args.hours.into(),
    }
}

/// Computes the needs from published figures.
pub(super) fn from_model(args: &SizeArgs, json: bool) -> Result<(), CliError> {
    output::print_result(&fleet(args).needs(), json, text)
}

/// Computes the needs from the counters of a server.
pub(super) async fn from_server(client: &Client, args: &SizeArgs, json: bool) -> Result<(), CliError> {
    let stats: StatsView = client.get(&["stats"]).await?;
    let disks: Vec<ActivityView> = client.get(&["activity"]).await?;
    let server: ServerView = client.get(&["pool"]).await?;
    let measured = Measured { stats: &stats, disks: &disks, server: &server };
    let needs = measured.needs(&fleet(args)).map_err(CliError::Sizing)?;
    output::print_result(&needs, json, text)
}

fn text(needs: &Needs) -> String {
    let size = |bytes: u64| Size(bytes).to_string();
    let mut t = output::table(&[], &[]);
    for (name, value) in [
        ("RAM", format!("{}, resident", size(needs.ram_bytes))),
        ("  [memory] read_cache", size(needs.read_cache_bytes)),
        ("  [memory] desktops", size(needs.desktop_memory_bytes)),
        ("capacity", size(needs.capacity_bytes)),
        (
            "guests",
            format!("{:.0} IOPS at work, {:.0} while all boot", needs.guest_work_iops, needs.guest_boot_iops),
        ),
        (
            "store",
            format!("{:.1} IOPS at work, {:.1} while all boot", needs.store_work_iops, needs.store_boot_iops),
        ),
        ("cores", format!("{} for clients, and one for commits", needs.cores)),
    ] {
        t.add_row([name, &value]);
    }
    let assumptions: Vec<String> = needs.assumptions.iter().map(|a| format!("- {a}")).collect();
    format!("{}\n\nAssumptions:\n{}", output::render(t), assumptions.join("\n"))
}
