//! `/clones`: creation of clones of an image, volume or snapshot.

use forebay_api::{CloneVolumes, DiskView, ErrorKind, Reset};
use forebay_cluster::names::Kind;
use forebay_engine::{CloneRequest, check_name};
use forebay_text::quoted;

use super::create;
use crate::access::{Right, contains_all_beginning_with};
use crate::http::auth::Caller;
use crate::http::extract::Body;
use crate::http::route::Route;
use crate::operations::{
    Change, Changes, Client, Control, ControlError, Disks, Failure, Names, Operation, Result,
};
use crate::view::{disk_view, sync_mode};

/// Maximum number of clones that one request creates.
pub const MAX_CLONES: u32 = 10_000;
/// Smallest write cache of a desktop: one block.
const MIN_WRITE_CACHE: u64 = 4096;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post(
            "/clones",
            "Create one clone, or `count` numbered clones; all or none",
            Right::Provision,
            |c: Caller, Body(b): Body<CloneVolumes>| create(c, b),
        )
        .takes::<CloneVolumes>()
        .lists::<DiskView>()
        .creates(),
    ]
}

impl Operation for CloneVolumes {
    type Reply = Vec<DiskView>;
    const CHANGE: Changes<Self> = Some(|op| {
        let (name, source) = (quoted(&op.name), quoted(&op.source));
        match op.count {
            None => Change::create(format_args!("clone {name} of {source}")),
            Some(count) => Change::create(format_args!("{count} clones {name} of {source}")),
        }
    });
    const EVENT: Option<&str> = Some("created");
    const DISKS: Disks<Self> = |op| vec![op.name.clone(), op.source.clone()];

    fn creates(&self) -> u32 {
        self.count.unwrap_or(1)
    }

    /// A scope has to contain all names that begin with the prefix of numbered clones.
    fn check(&self, client: &Client<'_>) -> Result<(), Failure> {
        let (Some(scope), Some(_)) = (&client.principal.scope, self.count) else { return Ok(()) };
        let prefix = format!("{}-", self.name);
        match contains_all_beginning_with(scope, &prefix) {
            true => Ok(()),
            false => Err(Failure::Forbidden(format!(
                "the scope of the token does not contain all names that begin with '{prefix}'"
            ))),
        }
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Vec<DiskView>> {
        let after = if self.more { last_number(control, &self.name).await? } else { LastNumber::default() };
        let names = match self.count {
            None if self.more => {
                return Err(ControlError::bad_request("more needs a count: the number of further clones"));
            }
            None => vec![self.name.clone()],
            Some(count) => clone_names(&self.name, count, after)?,
        };
        let write_cache = self.write_cache_bytes.map_or(0, |bytes| bytes.max(MIN_WRITE_CACHE));
        let reset_at_disconnect = write_cache > 0 && self.reset == Reset::Disconnect;
        let request =
            |name| CloneRequest { name, sync: sync_mode(self.sync), write_cache, reset_at_disconnect };
        let requests: Vec<_> = names.into_iter().map(request).collect();
        let create = async {
            let clones = control.clone_disk(&self.source, &requests).await?;
            Ok(clones.iter().filter_map(disk_view).collect())
        };
        let names: Vec<_> = requests.iter().map(|request| request.name.as_str()).collect();
        control.create_named(&names, Kind::Volume, create).await.map_err(|e| exists_in_fleet(e, self))
    }
}

/// The highest number among the names `PREFIX-NUMBER` of volumes and images.
async fn last_number(control: &Control, prefix: &str) -> Result<LastNumber> {
    let (beginning, mut last) = (format!("{prefix}-"), LastNumber::default());
    if let Some(all) = control.cluster_names(&beginning).await? {
        // Other shards may have clones with these numbers.
        let numbers = all.iter().filter_map(|name| LastNumber::of(name, prefix));
        return Ok(numbers.fold(last, LastNumber::max));
    }
    let mut names = Names::after(control.pool(), &beginning);
    while let Some(stretch) = names.next().await {
        let numbers = stretch.iter().filter_map(|name| LastNumber::of(name, prefix));
        last = numbers.fold(last, LastNumber::max);
        // The names of disks are in order.
        if !stretch.last().is_some_and(|name| name.starts_with(&beginning)) {
            break;
        }
    }
    Ok(last)
}

/// The number at the end of a name, and its digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LastNumber {
    number: u32,
    width: usize,
}

impl LastNumber {
    /// The number in a name `PREFIX-NUMBER`; `None` for any other name.
    fn of(name: &str, prefix: &str) -> Option<LastNumber> {
        let digits = name.strip_prefix(prefix)?.strip_prefix('-')?;
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let number = is_number.then(|| digits.parse().ok()).flatten()?;
        Some(LastNumber { number, width: digits.len() })
    }
}

/// `NAME-001` and so on, with the `count` numbers after `after`. The numbers have as many digits as `after`,
/// or as `count` if no clone exists, and at least three digits.
fn clone_names(name: &str, count: u32, after: LastNumber) -> Result<Vec<String>> {
    if count == 0 || count > MAX_CLONES {
        return Err(ControlError::bad_request(format!(
            "cannot create {count} clones at once; use a count from 1 to {MAX_CLONES}"
        )));
    }
    let Some(last) = after.number.checked_add(count) else {
        return Err(ControlError::bad_request(format!(
            "no {count} numbers are left after '{name}-{}'; use another name",
            after.number
        )));
    };
    let width = if after.width == 0 { count.to_string().len() } else { after.width }.max(3);
    let numbered = |i: u32| format!("{name}-{i:0width$}");
    // The last name is the longest one. A name as long as a request must not be repeated for each clone.
    check_name(&numbered(last))?;
    Ok((after.number + 1..=last).map(numbered).collect())
}

/// States the remedy if numbered clones exist already.
fn exists_in_fleet(error: ControlError, c: &CloneVolumes) -> ControlError {
    if error.kind != ErrorKind::Exists || c.count.is_none() || c.more {
        return error;
    }
    let hint = "to number the clones after the existing ones, use --more (in the API: \"more\": true)";
    ControlError::new(error.kind, format!("{}; {hint}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_numbered_with_three_digits_or_more() {
        let first = LastNumber::default();
        assert_eq!(clone_names("w", 2, first).unwrap(), ["w-001", "w-002"]);
        let many = clone_names("w", 1000, first).unwrap();
        assert_eq!((many[0].as_str(), many[999].as_str()), ("w-0001", "w-1000"));
        assert!(clone_names("w", 0, first).is_err());
        assert!(clone_names("w", MAX_CLONES + 1, first).is_err());
    }

    #[test]
    fn names_are_checked_with_their_digits_before_all_are_made() {
        let (fits, long) = ("w".repeat(251), "w".repeat(252));
        assert_eq!(clone_names(&fits, 1, LastNumber::default()).unwrap()[0].len(), 255);
        for (name, count) in [(&long, 1), (&fits, 1000), (&"w".repeat(900_000), MAX_CLONES)] {
            let e = clone_names(name, count, LastNumber::default()).unwrap_err();
            assert!(e.kind == ErrorKind::BadName && e.message.len() < 512, "{e}");
        }
    }

    #[test]
    fn more_clones_continue_the_numbers() {
        let after = |name| LastNumber::of(name, "w").unwrap();
        assert_eq!(clone_names("w", 2, after("w-100")).unwrap(), ["w-101", "w-102"]);
        assert_eq!(clone_names("w", 2, after("w-7")).unwrap(), ["w-008", "w-009"]);
        assert_eq!(clone_names("w", 2, after("w-0999")).unwrap(), ["w-1000", "w-1001"]);
        assert_eq!(clone_names("w", 2, after("w-998")).unwrap(), ["w-999", "w-1000"]);
        assert!(clone_names("w", 2, after("w-4294967294")).is_err());
        for other in ["w", "w-", "w-1a", "w-+1", "v-1", "w-x-1", "w-001@s", "w-99999999999"] {
            assert_eq!(LastNumber::of(other, "w"), None, "{other}");
        }
        assert!(after("w-100") > after("w-0099"));
    }
}
