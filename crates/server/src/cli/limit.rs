//! `forebay volume limit` and `forebay tenant`: limits of volumes and tenants.

use std::str::FromStr;

use clap::Args;
use forebay_api::client::Client;
use forebay_api::{LimitSet, TenantView, VolumeLimits};
use forebay_text::Size;
use serde_json::Value;

use super::CliError;
use super::args::TenantCommand;
use super::output::{print_result, render, table};

/// A new value, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<T>(Option<T>);

impl FromStr for Change<u64> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Change(None));
        }
        let number = text.parse().ok().filter(|n| *n > 0);
        number
            .map(|n| Change(Some(n)))
            .ok_or_else(|| format!("'{text}' is not a number from 1 on, or 'none'"))
    }
}

impl FromStr for Change<Size> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Change(None)),
            _ => text
                .parse()
                .map(|size| Change(Some(size)))
                .map_err(|e: forebay_text::SizeError| e.to_string()),
        }
    }
}

/// Changes of limits; those that are absent stay as they are. `none` removes a limit.
#[derive(Debug, Clone, Default, Args)]
pub struct LimitArgs {
    /// Operations per second; a request counts one for each 256 KiB
    #[arg(long, value_name = "N|none")]
    iops: Option<Change<u64>>,
    /// Reads per second
    #[arg(long, value_name = "N|none")]
    iops_read: Option<Change<u64>>,
    /// Writes and discards per second
    #[arg(long, value_name = "N|none")]
    iops_write: Option<Change<u64>>,
    /// Operations at once after a pause [default: a tenth of a second's worth]
    #[arg(long, value_name = "N|none")]
    iops_burst: Option<Change<u64>>,
    /// Bytes per second
    #[arg(long, value_name = "SIZE|none")]
    bandwidth: Option<Change<Size>>,
    /// Bytes per second of reads
    #[arg(long, value_name = "SIZE|none")]
    bandwidth_read: Option<Change<Size>>,
    /// Bytes per second of writes
    #[arg(long, value_name = "SIZE|none")]
    bandwidth_write: Option<Change<Size>>,
    /// Bytes at once after a pause [default: a tenth of a second's worth]
    #[arg(long, value_name = "SIZE|none")]
    bandwidth_burst: Option<Change<Size>>,
    /// Share of the server where volumes compete, from 1 to 10000 [default: 100]
    #[arg(long, value_name = "N|none")]
    weight: Option<Change<u64>>,
    /// Remove all limits first
    #[arg(long)]
    clear: bool,
}

impl LimitArgs {
    fn is_empty(&self) -> bool {
        let numbers = [self.iops, self.iops_read, self.iops_write, self.iops_burst, self.weight];
        let sizes = [self.bandwidth, self.bandwidth_read, self.bandwidth_write, self.bandwidth_burst];
        !self.clear && numbers.iter().all(Option::is_none) && sizes.iter().all(Option::is_none)
    }

    /// The limits after the changes. A weight that is too large is refused by the server.
    fn apply(&self, before: LimitSet) -> LimitSet {
        fn number(change: Option<Change<u64>>, before: Option<u64>) -> Option<u64> {
            change.map_or(before, |change| change.0)
        }
        fn size(change: Option<Change<Size>>, before: Option<u64>) -> Option<u64> {
            change.map_or(before, |change| change.0.map(|size| size.0))
        }
        let before = if self.clear { LimitSet::default() } else { before };
        let weight = number(self.weight, before.weight.map(u64::from));
        LimitSet {
            iops: number(self.iops, before.iops),
            iops_read: number(self.iops_read, before.iops_read),
            iops_write: number(self.iops_write, before.iops_write),
            iops_burst: number(self.iops_burst, before.iops_burst),
            bandwidth: size(self.bandwidth, before.bandwidth),
            bandwidth_read: size(self.bandwidth_read, before.bandwidth_read),
            bandwidth_write: size(self.bandwidth_write, before.bandwidth_write),
            bandwidth_burst: size(self.bandwidth_burst, before.bandwidth_burst),
            weight: weight.map(|weight| u16::try_from(weight).unwrap_or(u16::MAX)),
            quota: before.quota,
        }
    }
}

/// `forebay volume limit`: shows or changes the limits of a volume. `tenant` is its new tenant, or `none`.
pub(super) async fn volume(
    client: &Client,
    name: &str,
    tenant: Option<String>,
    args: &LimitArgs,
    as_json: bool,
) -> Result<(), CliError> {
    let path = ["volumes", name, "limits"];
    let mut limits: VolumeLimits = client.get(&path).await?;
    if tenant.is_some() || !args.is_empty() {
        limits.limits = args.apply(limits.limits);
        if let Some(tenant) = tenant {
            limits.tenant = (tenant != "none").then_some(tenant);
        }
        limits = client.put(&path, &limits).await?;
    }
    print_result(&limits, as_json, |l| {
        let tenant = l.tenant.as_ref().map(|tenant| format!("; tenant '{tenant}'")).unwrap_or_default();
        format!("volume '{name}': {}{tenant}", l.limits)
    })
}

/// `forebay tenant`.
pub(super) async fn tenant(client: &Client, command: TenantCommand, as_json: bool) -> Result<(), CliError> {
    match command {
        TenantCommand::List => {
            let tenants: Vec<TenantView> = client.get(&["tenants"]).await?;
            print_result(&tenants, as_json, |tenants| tenant_table(tenants))
        }
        TenantCommand::Show { name } => {
            let tenant: TenantView = client.get(&["tenants", &name]).await?;
            print_result(&tenant, as_json, describe)
        }
        TenantCommand::Limit { name, quota, limits } => {
            let all: Vec<TenantView> = client.get(&["tenants"]).await?;
            let before = all.into_iter().find(|t| t.name == name).map(|t| t.limits).unwrap_or_default();
            let mut new = limits.apply(before);
            if let Some(quota) = quota {
                new.quota = quota.0.map(|size| size.0);
            }
            let tenant: TenantView = client.put(&["tenants", &name], &new).await?;
            print_result(&tenant, as_json, describe)
        }
        TenantCommand::Rm { name } => {
            let done: Value = client.delete(&["tenants", &name]).await?;
            print_result(&done, as_json, |_| format!("removed the limits of tenant '{name}'"))
        }
    }
}

fn describe(t: &TenantView) -> String {
    let refused = t.usage.map_or(0, |usage| usage.refused);
    let refused = if refused > 0 { format!("; {refused} writes refused") } else { String::new() };
    let used = used(t).map(|used| format!("; {used} used")).unwrap_or_default();
    format!("tenant '{}', {} disks: {}{used}{refused}", t.name, t.disks, t.limits)
}

/// The use of the quota of a tenant.
fn used(t: &TenantView) -> Option<String> {
    let usage = t.usage?;
    let counting = if usage.counting > 0 { " (counting)" } else { "" };
    Some(format!("{}{counting}", Size(usage.used_bytes)))
}

fn tenant_table(tenants: &[TenantView]) -> String {
    let mut t = table(&["NAME", "DISKS", "USED", "LIMITS"], &[1, 2]);
    for tenant in tenants {
        let used = used(tenant).unwrap_or_else(|| "-".into());
        t.add_row([tenant.name.clone(), tenant.disks.to_string(), used, tenant.limits.to_string()]);
    }
    render(t)
}
