//! Completion of names by the shell: the hidden command `forebay __complete`, and the parts of the completion
//! scripts that call it.
//!
//! The scripts of clap complete commands, options and values that are known in advance. Before that, the
//! parts here pass the words of the command line to `forebay __complete`, which prints the names that the
//! running server has for the last word. Without such names, the script of clap continues. The command is
//! silent: without a server, or if the server does not respond within [`TIMEOUT`], it prints nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use forebay_api::client::{Client, SEGMENT, path};
use forebay_text::one_line;
use http_body_util::BodyExt;
use hyper::Method;
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;

use super::args::{Cli, Global};

/// Time for all requests to the server: a user waits for the shell.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of names that a list delivers.
const MAX_NAMES: usize = 200;

/// The names that a word may have.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    Images,
    Volumes,
    /// Volumes, and after `@` their snapshots.
    VolumesAndSnapshots,
    /// Volumes and images, and after `@` snapshots.
    Disks,
    /// The snapshots of this volume, without its name.
    SnapshotsOf(String),
    Targets,
    Tenants,
}

/// Each command with names: its words, the position of the name, whether further names follow, and the names.
const ARGUMENTS: &[(&str, usize, bool, Names)] = &[
    ("image create", 1, false, Names::VolumesAndSnapshots),
    ("image export", 0, false, Names::Images),
    ("image show", 0, false, Names::Images),
    ("image rm", 0, true, Names::Images),
    ("image profile", 0, false, Names::Images),
    ("volume clone", 0, false, Names::Disks),
    ("volume show", 0, false, Names::Volumes),
    ("volume rm", 0, true, Names::Volumes),
    ("volume rename", 0, false, Names::Volumes),
    ("volume resize", 0, false, Names::Volumes),
    ("volume export", 0, false, Names::VolumesAndSnapshots),
    ("volume reset", 0, true, Names::Volumes),
    ("volume resume", 0, false, Names::Volumes),
    ("volume clients", 0, false, Names::Disks),
    ("volume connect", 0, false, Names::Disks),
    ("volume disconnect", 0, false, Names::Disks),
    ("volume classes", 0, false, Names::Disks),
    ("volume persist", 0, false, Names::Volumes),
    ("volume limit", 0, false, Names::Volumes),
    ("tenant show", 0, false, Names::Tenants),
    ("tenant limit", 0, false, Names::Tenants),
    ("tenant rm", 0, false, Names::Tenants),
    ("snapshot create", 0, false, Names::Volumes),
    ("snapshot list", 0, false, Names::Volumes),
    ("snapshot rm", 0, false, Names::Volumes),
    ("snapshot rm", 1, true, Names::SnapshotsOf(String::new())),
    ("snapshot rollback", 0, false, Names::Volumes),
    ("snapshot rollback", 1, false, Names::SnapshotsOf(String::new())),
    ("target show", 0, false, Names::Targets),
    ("target rm", 0, false, Names::Targets),
    ("target disconnect", 0, false, Names::Targets),
    ("target allow", 0, false, Names::Targets),
    ("target deny", 0, false, Names::Targets),
    ("lun map", 0, false, Names::Targets),
    ("lun map", 1, false, Names::Disks),
    ("lun unmap", 0, false, Names::Targets),
    ("lun list", 0, false, Names::Targets),
    ("lun reservations", 0, false, Names::Targets),
    ("stats", 0, false, Names::Disks),
];

/// What the words of a command line mean.
#[derive(Debug, Default)]
struct Line {
    /// The words of the command, such as `volume show`.
    command: Vec<String>,
    positionals: Vec<String>,
    socket: Option<PathBuf>,
    data: Option<PathBuf>,
    /// The last word is the value of an option, or the command needs a further word.
    is_elsewhere: bool,
}

impl Line {
    /// Parses the words before the last one.
    fn parse(root: &Command, words: &[String]) -> Line {
        let (mut line, mut command, mut only_positionals) = (Line::default(), root, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if only_positionals || !word.starts_with('-') || word == "-" {
                match command.find_subcommand(word).filter(|_| line.positionals.is_empty()) {
                    Some(found) => {
                        command = found;
                        line.command.push(found.get_name().to_owned());
                    }
                    None => line.positionals.push(word.clone()),
                }
                continue;
            }
            if word == "--" {
                only_positionals = true;
                continue;
            }
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v)));
            if !takes_value(command, name) {
                continue;
            }
            let value = value.map(str::to_owned).or_else(|| words.next().cloned());
            match (name, value) {
                (_, None) => line.is_elsewhere = true,
                ("--socket", Some(value)) => line.socket = Some(value.into()),
                ("--data", Some(value)) => line.data = Some(value.into()),
                _ => {}
            }
        }
        line
    }

    /// The names that the next word may have.
    fn names(&self) -> Option<Names> {
        if self.is_elsewhere {
            return None;
        }
        let (command, at) = (self.command.join(" "), self.positionals.len());
        let is_meant = |(of, position, repeats, _): &&(&str, usize, bool, Names)| {
            *of == command && (*position == at || (*repeats && *position < at))
        };
        match &ARGUMENTS.iter().find(is_meant)?.3 {
            Names::SnapshotsOf(_) => self.positionals.first().cloned().map(Names::SnapshotsOf),
            names => Some(names.clone()),
        }
    }
}

/// Whether an option of a command is followed by a value.
fn takes_value(command: &Command, name: &str) -> bool {
    let long = name.strip_prefix("--");
    let short = name.strip_prefix('-').filter(|_| long.is_none()).and_then(|short| short.chars().next());
    let found = command.get_arguments().find(|arg| match (long, short) {
        (Some(long), _) => arg.get_long() == Some(long),
        (None, short) => short.is_some() && arg.get_short() == short,
    });
    found.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
}

/// Prints the names with which the last of these words can continue, one in each line.
pub(super) fn run(global: &Global, words: &[OsString]) {
    let words: Option<Vec<String>> = words.iter().map(|word| word.clone().into_string().ok()).collect();
    let Some((last, before)) = words.as_deref().and_then(<[String]>::split_last) else { return };
    let mut root = Cli::command();
    root.build();
    let line = Line::parse(&root, before);
    let Some(names) = line.names().filter(|_| !last.starts_with('-')) else { return };
    let of_line = Global {
        json: false,
        socket: line.socket.or_else(|| global.socket.clone().filter(|_| line.data.is_none())),
        data: line.data.or_else(|| global.data.clone()),
        shard: None,
    };
    let Ok(socket) = super::run::socket_path(&of_line) else { return };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let client = Client::new(&socket);
    let found = runtime.block_on(async { tokio::time::timeout(TIMEOUT, found(&client, &names, last)).await });
    let found = found.ok().flatten().unwrap_or_default();
    // A name that is displayed with escapes cannot be typed as it is displayed.
    let plain = found.iter().filter(|name| name.starts_with(last.as_str()) && one_line(name) == **name);
    let text: String = plain.map(|name| format!("{name}\n")).collect();
    // The shell may have closed the pipe.
    let _ = super::output::write_all(text.as_bytes());
}

/// The names that begin with `prefix`; `None` if the server returns an error.
async fn found(client: &Client, names: &Names, prefix: &str) -> Option<Vec<String>> {
    let snapshots = async |volume: &str| list(client, &["volumes", volume, "snapshots"], None).await;
    let volume = prefix.split_once('@').map(|(volume, _)| volume);
    match (names, volume) {
        (Names::VolumesAndSnapshots | Names::Disks, Some(volume)) => snapshots(volume).await,
        (Names::SnapshotsOf(volume), _) => {
            let all = snapshots(volume).await?;
            Some(all.iter().filter_map(|name| Some(name.split_once('@')?.1.to_owned())).collect())
        }
        (Names::Images, _) => list(client, &["images"], Some(prefix)).await,
        (Names::Volumes | Names::VolumesAndSnapshots, _) => list(client, &["volumes"], Some(prefix)).await,
        (Names::Disks, None) => {
            let mut all = list(client, &["volumes"], Some(prefix)).await?;
            all.extend(list(client, &["images"], Some(prefix)).await?);
            Some(all)
        }
        (Names::Targets, _) => list(client, &["targets"], None).await,
        (Names::Tenants, _) => list(client, &["tenants"], None).await,
    }
}

/// An element of a list.
#[derive(Deserialize)]
struct Named {
    name: String,
}

/// The names in a list; of a list of disks, the names that begin with `prefix`.
async fn list(client: &Client, segments: &[&str], prefix: Option<&str>) -> Option<Vec<String>> {
    let query = match prefix {
        Some(prefix) => format!("?limit={MAX_NAMES}&name={}*", utf8_percent_encode(prefix, SEGMENT)),
        None => String::new(),
    };
    let response = client.send(Method::GET, path(segments) + &query, None::<&()>).await.ok()?;
    let body = response.into_body().collect().await.ok()?.to_bytes();
    let all: Vec<Named> = serde_json::from_slice(&body).ok()?;
    Some(all.into_iter().map(|named| named.name).collect())
}

/// The completion script of a shell.
pub(super) fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
    let text = String::from_utf8_lossy(&script).into_owned();
    let text = match shell {
        Shell::Bash => with_function(&text, "_forebay() {", BASH),
        Shell::Zsh => with_function(&text, "_forebay() {", ZSH),
        Shell::Fish => text + FISH,
        _ => text,
    };
    text.into_bytes()
}

/// Renames the function that begins with the line `head`, and puts `function` before it, which calls it.
fn with_function(script: &str, head: &str, function: &str) -> String {
    script.replacen(&format!("\n{head}\n"), &format!("\n{function}\n_forebay_static() {{\n"), 1).replacen(
        // The script of bash begins with the function.
        &format!("{head}\n    local i cur"),
        &format!("{function}\n_forebay_static() {{\n    local i cur"),
        1,
    )
}

/// bash divides a word at some characters, such as `@` and `:`, and replaces only what follows the last one.
const BASH: &str = r#"_forebay() {
    local line="${COMP_LINE:0:COMP_POINT}" word rest cut name
    local -a words=()
    COMPREPLY=()
    word="${line##*[[:space:]]}"
    if [[ "$word" != -* && "$word" != *[\"\'\\]* ]]; then
        read -r -a words <<< "${line%"$word"}"
        rest="${word##*[$COMP_WORDBREAKS]}"
        cut="${word%"$rest"}"
        while IFS= read -r name; do
            COMPREPLY+=("$(printf '%q' "${name#"$cut"}")")
        done < <("${COMP_WORDS[0]}" __complete -- "${words[@]:1}" "$word" 2>/dev/null)
    fi
    if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
        _forebay_static "$@"
    fi
}
"#;

const ZSH: &str = r#"_forebay() {
    local -a names
    if [[ "${words[CURRENT]}" != -* ]]; then
        names=("${(@f)$("${(Q)words[1]}" __complete -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
        names=(${names:#})
        if (( $#names )); then
            compadd -a names
            return
        fi
    fi
    _forebay_static "$@"
}
"#;

const FISH: &str = r#"
function __forebay_find_names
    set -g __forebay_names
    set -l words (commandline -opc)
    string match -q -- '-*' (commandline -ct)
    and return 1
    set -g __forebay_names (command $words[1] __complete -- $words[2..-1] (commandline -ct) 2>/dev/null)
    test (count $__forebay_names) -gt 0
end

complete -c forebay -n __forebay_find_names -f -a '$__forebay_names'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Option<Names> {
        let mut root = Cli::command();
        root.build();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Line::parse(&root, &words).names()
    }

    #[test]
    fn every_argument_with_names_exists() {
        let mut root = Cli::command();
        root.build();
        for (command, position, repeats, _) in ARGUMENTS {
            let mut found = &root;
            for word in command.split(' ') {
                found = found.find_subcommand(word).unwrap_or_else(|| panic!("{command}"));
            }
            let argument = found.get_positionals().nth(*position).unwrap_or_else(|| panic!("{command}"));
            let is_many = matches!(argument.get_action(), ArgAction::Append);
            assert_eq!(is_many, *repeats, "{command} {}", argument.get_id());
        }
    }

    #[test]
    fn the_words_before_determine_the_names() {
        for (line, expected) in [
            ("volume show", Some(Names::Volumes)),
            ("--json --socket /s volume show", Some(Names::Volumes)),
            ("volume --socket=/s show", Some(Names::Volumes)),
            ("volume show a", None),
            ("volume rm a b --yes", Some(Names::Volumes)),
            ("volume delete a", Some(Names::Volumes)),
            ("volume", None),
            ("", None),
            ("volume resize --shrink", Some(Names::Volumes)),
            ("volume connect --for", None),
            ("volume connect --for uri", Some(Names::Disks)),
            ("volume connect --", Some(Names::Disks)),
            ("snapshot rm volume", Some(Names::SnapshotsOf("volume".into()))),
            ("snapshot rm v a b", Some(Names::SnapshotsOf("v".into()))),
            ("lun map t", Some(Names::Disks)),
            ("stats", Some(Names::Disks)),
            ("image import", None),
            ("no such command", None),
        ] {
            assert_eq!(names(line), expected, "{line}");
        }
    }

    #[test]
    fn the_scripts_call_the_command_and_the_functions_of_clap() {
        for shell in [Shell::Bash, Shell::Zsh] {
            let script = String::from_utf8(script(shell)).unwrap();
            for function in ["\n_forebay() {\n", "_forebay_static() {\n"] {
                assert_eq!(format!("\n{script}").matches(function).count(), 1, "{shell}: {function}");
            }
        }
        assert!(String::from_utf8(script(Shell::Fish)).unwrap().contains("__complete"));
    }
}
