//! The software bill of materials of the server: all crates that its binary is built from, in the format
//! CycloneDX 1.5 (JSON), with the licence and checksum of each.
//!
//! `cargo tree` decides which crates belong to the binary: it knows the features of one package, whereas
//! `cargo metadata` enables those of the whole workspace. Equal sources give equal files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

/// The package with the binary.
const SERVER: &str = "forebay-server";
/// The prefix of the source of crates of crates.io.
const REGISTRY: &str = "registry+";
/// Scripts from elsewhere that are part of the dashboard, below the root of the repository.
const VENDORED: &str = "crates/control/dashboard/vendor";
/// Their files, with name, licence, and the address before their version in a comment.
const SCRIPTS: [(&str, &str, &str, &str); 1] =
    [("uplot/uPlot.esm.js", "uPlot", "MIT", "https://github.com/leeoniya/uPlot (v")];

/// Prints the bill of materials for the platform of this machine.
pub fn print() -> ExitCode {
    match bill(crate::root()) {
        Ok(bill) => {
            println!("{bill:#}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("sbom: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The text that a command prints.
fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !done.status.success() {
        return Err(format!("{command:?}: {}\n{}", done.status, String::from_utf8_lossy(&done.stderr)));
    }
    String::from_utf8(done.stdout).map_err(|_| format!("{command:?}: its output is not UTF-8"))
}

fn bill(root: &Path) -> Result<Value, String> {
    let rustc = output(Command::new("rustc").arg("-vV"))?;
    let field = |name: &str| rustc.lines().find_map(|line| line.strip_prefix(name));
    let host = field("host: ").ok_or("rustc states no host")?;
    let release = field("release: ").ok_or("rustc states no release")?;
    let tree = ["tree", "--locked", "-p", SERVER, "-e", "normal,build", "--prefix", "none", "--target", host];
    let all = output(crate::cargo().args(tree).args(["--format", "{p}"]))?;
    let tree = ["tree", "--locked", "-p", SERVER, "-e", "normal,no-proc-macro", "--prefix", "none"];
    let linked = output(crate::cargo().args(tree).args(["--target", host, "--format", "{p}"]))?;
    let metadata = ["metadata", "--locked", "--format-version", "1", "--filter-platform", host];
    let metadata = output(crate::cargo().args(metadata))?;
    let metadata = serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).map_err(|e| format!("Cargo.lock: {e}"))?;
    let crates = Crates { all: names(&all), linked: names(&linked), checksums: checksums(&lock) };

    let mut bill = crates.bill(&metadata)?;
    let components = bill["components"].as_array_mut().ok_or("no components")?;
    components.extend(scripts(root)?);
    components.push(json!({
        "type": "library", "bom-ref": format!("rust-std@{release}"), "name": "rust-std", "version": release,
        "description": "The standard library of Rust", "scope": "required",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "externalReferences": [{"type": "vcs", "url": "https://github.com/rust-lang/rust"}],
    }));
    Ok(bill)
}

/// Name and version of each crate in the output of `cargo tree`.
fn names(tree: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some(format!("{name}@{}", rest.split_whitespace().next()?))
    };
    tree.lines().filter_map(name).collect()
}

/// The checksums in `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
        line.strip_suffix('"').map(str::to_owned)
    };
    let checksum = |package| {
        let of = format!("{}@{}", value(package, "name")?, value(package, "version")?);
        Some((of, value(package, "checksum")?))
    };
    lock.split("[[package]]").filter_map(checksum).collect()
}

/// Scripts of the dashboard from elsewhere.
fn scripts(root: &Path) -> Result<Vec<Value>, String> {
    let folder = root.join(VENDORED);
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{VENDORED}: {e}"))?;
    for entry in entries {
        let name = entry.map_err(|e| format!("{VENDORED}: {e}"))?.file_name();
        let known = |(file, ..): &(&str, _, _, _)| file.split('/').next() == name.to_str();
        if !SCRIPTS.iter().any(known) {
            return Err(format!("{VENDORED}/{} is not in the list of xtask/src/sbom.rs", name.display()));
        }
    }
    let component = |&(file, name, licence, address): &(&str, &str, &str, &str)| {
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{file}: {e}"))?;
        let version = text.split_once(address).and_then(|(_, rest)| rest.split_once(')'));
        let (version, _) = version.ok_or_else(|| format!("{file}: no version after '{address}'"))?;
        let sum = output(Command::new("sha256sum").arg("-b").arg(&path))?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        let purl = format!("pkg:npm/{}@{version}", name.to_lowercase());
        Ok(json!({
            "type": "library", "bom-ref": purl, "purl": purl, "name": name, "version": version,
            "description": "A script of the dashboard; the checksum is that of the file in the repository",
            "scope": "required", "licenses": [{"expression": licence}],
            "hashes": [{"alg": "SHA-256", "content": sum}],
        }))
    };
    SCRIPTS.iter().map(component).collect()
}

/// The crates of the server, by name and version.
struct Crates {
    /// All, with those that only run while the server is built.
    all: BTreeSet<String>,
    /// The crates whose code is in the binary.
    linked: BTreeSet<String>,
    /// SHA-256 of the crates of a registry.
    checksums: BTreeMap<String, String>,
}

impl Crates {
    /// The bill of materials, by the output of `cargo metadata`.
    fn bill(&self, metadata: &Value) -> Result<Value, String> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let name_of =
            |package: &Value| -> String { format!("{}@{}", text(package, "name"), text(package, "version")) };
        let packages: BTreeMap<String, Value> = list(&metadata["packages"])
            .into_iter()
            .map(|package| (name_of(&package), package))
            .filter(|(name, _)| self.all.contains(name))
            .collect();
        if let Some(name) = self.all.iter().find(|name| !packages.contains_key(*name)) {
            return Err(format!("{name} is not in the output of cargo metadata"));
        }
        let references: BTreeMap<String, String> =
            packages.iter().map(|(name, p)| (text(p, "id").to_owned(), reference(name, p))).collect();
        let server = packages.iter().find(|(_, package)| text(package, "name") == SERVER);
        let (server, package) = server.ok_or("the server is not among the packages")?;
        let root = json!({
            "type": "application", "bom-ref": reference(server, package), "name": "forebay",
            "version": text(package, "version"), "description": text(package, "description"),
            "licenses": [{"expression": text(package, "license")}],
        });
        let others = packages.iter().filter(|(name, _)| *name != server);
        let components =
            others.map(|(name, package)| self.component(name, package)).collect::<Result<Vec<_>, _>>()?;
        let mut dependencies = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let Some(from) = references.get(text(&node, "id")) else { continue };
            let mut on = BTreeSet::new();
            for dependency in list(&node["deps"]) {
                let is_used = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != json!("dev"));
                on.extend(references.get(text(&dependency, "pkg")).filter(|_| is_used).cloned());
            }
            dependencies.insert(from.clone(), on);
        }
        let dependencies: Vec<_> =
            dependencies.into_iter().map(|(from, on)| json!({"ref": from, "dependsOn": on})).collect();
        Ok(json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": root}, "components": components, "dependencies": dependencies,
        }))
    }

    /// One crate.
    fn component(&self, name: &str, package: &Value) -> Result<Value, String> {
        let licence = text(package, "license");
        if licence.is_empty() {
            return Err(format!("{name} states no licence"));
        }
        // A former syntax of cargo.
        let licence = licence.replace('/', " OR ");
        let scope = if self.linked.contains(name) { "required" } else { "excluded" };
        let reference = reference(name, package);
        let mut component = json!({
            "type": "library", "bom-ref": reference, "name": text(package, "name"),
            "version": text(package, "version"), "description": text(package, "description").trim(),
            "scope": scope, "licenses": [{"expression": licence}],
        });
        if is_from_registry(package) {
            let sum =
                self.checksums.get(name).ok_or_else(|| format!("{name} has no checksum in Cargo.lock"))?;
            component["purl"] = json!(reference);
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        if let Some(repository) = package["repository"].as_str() {
            component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
        }
        Ok(component)
    }
}

/// The name of a component in the bill: a package URL for crates of crates.io.
fn reference(name: &str, package: &Value) -> String {
    if is_from_registry(package) {
        format!("pkg:cargo/{}", name.replace('+', "%2B"))
    } else {
        name.to_owned()
    }
}

fn is_from_registry(package: &Value) -> bool {
    text(package, "source").starts_with(REGISTRY)
}

/// A string of an object; empty if there is none.
fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_every_crate_with_licence_and_checksum() {
        let bill = bill(crate::root()).unwrap();
        let components = bill["components"].as_array().unwrap();
        let find = |name: &str| components.iter().find(|c| c["name"] == name);
        for component in components {
            assert!(!text(&component["licenses"][0], "expression").is_empty(), "{component}");
            let is_ours = text(component, "name").starts_with("forebay-");
            let sum = text(&component["hashes"][0], "content");
            assert!(is_ours || component["name"] == "rust-std" || sum.len() == 64, "{component}");
        }
        assert_eq!(find("tokio").unwrap()["scope"], "required");
        assert_eq!(
            find("serde_derive").unwrap()["scope"],
            "excluded",
            "it only runs while the server is built"
        );
        assert!(find("proptest").is_none(), "only tests use it");
        assert!(find("uPlot").is_some() && find("rust-std").is_some());
        let references: BTreeSet<_> = components.iter().map(|c| text(c, "bom-ref")).collect();
        assert_eq!(references.len(), components.len(), "each reference is unique");
        let of_server =
            bill["dependencies"].as_array().unwrap().iter().find(|d| text(d, "ref").starts_with(SERVER));
        assert!(
            of_server.unwrap()["dependsOn"]
                .as_array()
                .unwrap()
                .contains(&json!(find("tokio").unwrap()["bom-ref"]))
        );
    }

    fn package(name: &str, licence: &str) -> Value {
        let source = "registry+https://github.com/rust-lang/crates.io-index";
        json!({"name": name, "version": "1.0.0+x", "license": licence, "source": source, "id": name})
    }

    fn server() -> Value {
        json!({"name": SERVER, "version": "0.1.0", "license": "Apache-2.0", "source": null, "id": "s"})
    }

    #[test]
    fn a_crate_without_licence_or_checksum_is_an_error() {
        let all = names("forebay-server v0.1.0 (/r/crates/server)\na v1.0.0+x (*)\n");
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0+x\"\nchecksum = \"12\"\n";
        let crates = Crates { linked: BTreeSet::new(), checksums: checksums(lock), all };
        let bill = |package: Value| crates.bill(&json!({"packages": [server(), package]}));
        let component = bill(package("a", "MIT/Apache-2.0")).unwrap()["components"][0].clone();
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["purl"], "pkg:cargo/a@1.0.0%2Bx");
        assert_eq!(bill(package("a", "")).unwrap_err(), "a@1.0.0+x states no licence");
        assert!(bill(package("b", "MIT")).unwrap_err().contains("a@1.0.0+x is not in the output"));
        let crates = Crates { checksums: BTreeMap::new(), ..crates };
        let error = crates.bill(&json!({"packages": [server(), package("a", "MIT")]})).unwrap_err();
        assert!(error.contains("no checksum"), "{error}");
    }
}
