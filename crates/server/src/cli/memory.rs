//! `forebay memory list`: the files in RAM that hold acknowledged writes.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use forebay_text::Size;

use super::{CliError, output};
use crate::config::DEFAULT_MEMORY_DIR;
use crate::serve::{MemoryFile, memory_files};

/// `forebay memory …`
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// List the files, to which pools they belong, and whether they are needed; no server has to run
    #[command(alias = "ls")]
    List {
        /// Directory of the files, as --memory-dir of 'serve'
        #[arg(long, value_name = "DIR", default_value = DEFAULT_MEMORY_DIR)]
        memory_dir: PathBuf,
    },
}

pub(super) fn run(command: MemoryCommand, data: &Path, json: bool) -> Result<(), CliError> {
    let MemoryCommand::List { memory_dir } = command;
    let files = memory_files(&memory_dir, data).map_err(|e| CliError::MemoryDirectory(memory_dir, e))?;
    output::print_result(&files, json, |files| list_text(files))
}

fn list_text(files: &[MemoryFile]) -> String {
    if files.is_empty() {
        return "no files".into();
    }
    files.iter().map(file_text).collect::<Vec<_>>().join("\n\n")
}

fn file_text(file: &MemoryFile) -> String {
    let mut t = output::table(&[], &[]);
    let mut row = |name: &str, value: &str| {
        t.add_row([name, value]);
    };
    row("file", &file.file.display().to_string());
    row("size", &Size(file.size_bytes).to_string());
    let directory = file.directory.as_ref().map(|path| path.display().to_string());
    row("pool", &directory.unwrap_or_else(|| format!("not found; id {}", file.pool)));
    row("state", file.state.text());
    row("to do", &file.advice);
    output::render(t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::FileState;

    #[test]
    fn files_are_shown_with_what_to_do() {
        assert_eq!(list_text(&[]), "no files");
        let needed = MemoryFile {
            file: "/dev/shm/forebay-1".into(),
            pool: "1".into(),
            size_bytes: 64 << 20,
            directory: Some("/srv/a".into()),
            state: FileState::Needed,
            advice: "start the server of /srv/a".into(),
        };
        let gone = MemoryFile { directory: None, state: FileState::NoPool, ..needed.clone() };
        assert_eq!(
            list_text(&[needed, gone]),
            "file   /dev/shm/forebay-1\nsize   64 MiB\npool   /srv/a\nstate  needed\nto do  start the server of /srv/a\n\n\
             file   /dev/shm/forebay-1\nsize   64 MiB\npool   not found; id 1\nstate  no pool found\n\
             to do  start the server of /srv/a"
        );
    }
}
