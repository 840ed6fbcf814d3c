//! `forebay-xray scenario`: lists, shows and checks scenarios.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use forebay_xray::scenario::{self, Scenario};

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum ScenarioCommand {
    /// List the built-in scenarios
    List,
    /// Print the file of a built-in scenario, as a start for a new one
    Show {
        /// Its name
        name: String,
    },
    /// Check scenario files: each mistake is reported with its line
    Check {
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

impl ScenarioCommand {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Box<dyn std::error::Error>> {
        match self {
            ScenarioCommand::List => {
                for builtin in scenario::all() {
                    let parsed = scenario::parse(builtin.name, &scenario::text(builtin))?;
                    println!("{:26} {}", builtin.name, parsed.title);
                }
            }
            ScenarioCommand::Show { name } => {
                let builtin = scenario::find(name).ok_or_else(|| unknown(name))?;
                print!("{}", scenario::text(builtin));
            }
            ScenarioCommand::Check { files } => {
                for file in files {
                    let (_, parsed) = read(file)?;
                    println!("{}: scenario '{}' is valid", file.display(), parsed.name.get_ref());
                }
            }
        }
        Ok(())
    }
}

fn unknown(name: &str) -> String {
    format!("no built-in scenario has the name '{name}': see forebay-xray scenario list")
}

fn read(file: &Path) -> Result<(String, Scenario), Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let parsed = scenario::parse(&file.display().to_string(), &text)?;
    Ok((text, parsed))
}

/// The text of a scenario: a built-in one, or a file.
pub fn load(name: &str) -> Result<(String, Scenario), Box<dyn std::error::Error>> {
    match scenario::find(name) {
        Some(builtin) => {
            let text = scenario::text(builtin);
            let parsed = scenario::parse(name, &text)?;
            Ok((text, parsed))
        }
        None if name.contains(['/', '.']) => read(Path::new(name)),
        None => Err(unknown(name).into()),
    }
}
