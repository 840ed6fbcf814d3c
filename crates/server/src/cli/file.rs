//! `forebay file`: the files that are served over NFS.

use clap::Subcommand;
use forebay_api::client::Client;
use forebay_api::{CloneFile, FileKind, FileView, FilesView};
use forebay_host::clock::unix_ms;
use forebay_text::Size;

use super::CliError;
use super::output::{age, print_result, render, table};

/// `forebay file …`
#[derive(Debug, Subcommand)]
pub enum FileCommand {
    /// List a directory
    #[command(alias = "ls")]
    List {
        /// Path of the directory
        #[arg(default_value = "/")]
        path: String,
    },
    /// Clone a file: the clone shares all data with it
    Clone {
        /// Path of the file
        from: String,
        /// Path of the new file
        to: String,
    },
}

pub(super) async fn run(client: &Client, command: FileCommand, as_json: bool) -> Result<(), CliError> {
    match command {
        FileCommand::List { path } => {
            let (mut all, mut next) = (Vec::new(), Some(0));
            while let Some(after) = next {
                let page: FilesView = client.get(&["files", &path, "entries", &after.to_string()]).await?;
                all.extend(page.entries);
                next = page.next;
            }
            print_result(&all, as_json, |files| describe(files, unix_ms()))
        }
        FileCommand::Clone { from, to } => {
            let made: FileView = client.post(&["files"], &CloneFile { from, to: to.clone() }).await?;
            print_result(&made, as_json, |_| format!("cloned to '{to}'"))
        }
    }
}

fn describe(files: &[FileView], now_ms: u64) -> String {
    if files.is_empty() {
        return "no files".into();
    }
    let mut t = table(&["NAME", "KIND", "SIZE", "MODE", "OWNER", "CHANGED"], &[2]);
    for file in files {
        let kind = match file.kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Link => "link",
        };
        let owner = format!("{}:{}", file.uid, file.gid);
        t.add_row([
            file.name.clone(),
            kind.to_owned(),
            Size(file.size).to_string(),
            format!("{:04o}", file.mode),
            owner,
            age(now_ms, file.modified_ms),
        ]);
    }
    render(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_shown_as_a_table() {
        assert_eq!(describe(&[], 0), "no files");
        let file = FileView {
            name: "vm.vmdk".into(),
            kind: FileKind::File,
            size: 3 << 30,
            mode: 0o640,
            uid: 0,
            gid: 100,
            links: 1,
            modified_ms: 1000,
        };
        let text = describe(&[file], 61_000);
        let row = text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(row.starts_with("vm.vmdk file 3 GiB 0640 0:100 "), "{text}");
    }
}
