//! The modules of one crate, and the files that define the items which paths name.
//!
//! A re-export is followed to the definition. A `mod.rs` that only re-exports items of its children therefore
//! does not depend on them, and no file depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path as FsPath;

use super::scan::{self, Module, Path};

/// The name of a module: its path below the crate's root.
type Name = Vec<String>;

/// All modules of a crate, except those of tests.
pub struct Crate {
    modules: BTreeMap<Name, (String, Module)>,
}

/// The item or module that a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// A module as a whole.
    Module(Name),
    /// An item, by the file that defines it.
    Item(String),
}

/// One use of another file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The file that depends.
    pub from: String,
    /// The file on which it depends.
    pub to: String,
    /// The line of the use in `from`.
    pub line: usize,
    /// The path as written.
    pub name: String,
}

impl Crate {
    /// Reads the crate whose root file is `src/lib.rs` or `src/main.rs`; file names are relative to `base`.
    pub fn read(base: &FsPath, root_file: &str) -> io::Result<Crate> {
        let mut modules = BTreeMap::new();
        let dir = root_file.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
        let mut pending = vec![(Vec::new(), root_file.to_owned(), dir)];
        while let Some((name, file, dir)) = pending.pop() {
            let content = std::fs::read_to_string(base.join(&file))?;
            let module = scan::scan(&content);
            for child in &module.children {
                let flat = format!("{dir}/{child}.rs");
                let nested = format!("{dir}/{child}/mod.rs");
                let child_file = if base.join(&flat).is_file() { flat } else { nested };
                if base.join(&child_file).is_file() {
                    pending.push((joined(&name, child), child_file, format!("{dir}/{child}")));
                }
            }
            insert(&mut modules, name, &file, module);
        }
        Ok(Crate { modules })
    }

    /// From a list of files, for tests: `(module name, file name, content)`.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str, &str)]) -> Crate {
        let mut modules = BTreeMap::new();
        for (name, file, content) in files {
            let name = name.split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect();
            insert(&mut modules, name, file, scan::scan(content));
        }
        Crate { modules }
    }

    /// All uses of one file by another.
    pub fn uses(&self) -> BTreeSet<Use> {
        let mut uses = BTreeSet::new();
        for (name, (file, module)) in &self.modules {
            let mut add = |path: &Path, target: Option<Target>| {
                if let Some(Target::Item(to)) = target
                    && to != *file
                {
                    uses.insert(Use {
                        from: file.clone(),
                        to,
                        line: path.line,
                        name: path.segments.join("::"),
                    });
                }
            };
            for (local, path) in &module.imports {
                // A re-export alone is no use: files that import the name depend on its definition.
                if !module.exported.contains(local) || module.words.contains_key(local) {
                    add(path, self.resolve(name, &path.segments));
                }
            }
            for path in &module.paths {
                add(path, self.resolve(name, &path.segments));
            }
            for glob in &module.globs {
                let Some(Target::Module(source)) = self.resolve(name, &glob.segments) else { continue };
                for (word, &line) in &module.words {
                    if !module.items.contains(word) && !module.imports.contains_key(word) {
                        let segments = vec![word.clone()];
                        add(&Path { line, segments }, self.member(&source, word, &mut Vec::new()));
                    }
                }
            }
        }
        uses
    }

    /// The target of a path in the module `from`; `None` if it is in another crate.
    fn resolve(&self, from: &Name, segments: &[String]) -> Option<Target> {
        self.resolve_with(from, segments, &mut Vec::new())
    }

    fn resolve_with(
        &self,
        from: &Name,
        segments: &[String],
        visited: &mut Vec<(Name, String)>,
    ) -> Option<Target> {
        let mut at = from.clone();
        let mut anchored = false;
        for (index, segment) in segments.iter().enumerate() {
            match segment.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                _ => {
                    let last = index + 1 == segments.len();
                    match self.step(&at, segment, last, visited) {
                        Some(Target::Module(next)) => at = next,
                        Some(item) => return Some(item),
                        // Defined by a macro, for example: attributed to the module itself.
                        None if anchored => return Some(Target::Item(self.modules.get(&at)?.0.clone())),
                        None => return None,
                    }
                }
            }
            anchored = true;
        }
        Some(Target::Module(at))
    }

    /// The member `segment` of the module `at`. Unless it is the last one, a module precedes an item of that
    /// name.
    fn step(
        &self,
        at: &Name,
        segment: &str,
        last: bool,
        visited: &mut Vec<(Name, String)>,
    ) -> Option<Target> {
        let child = joined(at, segment);
        if !last && self.modules.contains_key(&child) {
            return Some(Target::Module(child));
        }
        match self.member(at, segment, visited) {
            Some(target) => Some(target),
            None => self.modules.contains_key(&child).then_some(Target::Module(child)),
        }
    }

    /// The item, import or name of a glob import called `name` in the module `at`.
    fn member(&self, at: &Name, name: &str, visited: &mut Vec<(Name, String)>) -> Option<Target> {
        let (file, module) = self.modules.get(at)?;
        if module.items.contains(name) {
            return Some(Target::Item(file.clone()));
        }
        let key = (at.clone(), name.to_owned());
        if visited.contains(&key) {
            return None;
        }
        visited.push(key);
        if let Some(path) = module.imports.get(name) {
            return self.resolve_with(at, &path.segments, visited);
        }
        module.globs.iter().find_map(|glob| match self.resolve_with(at, &glob.segments, visited) {
            Some(Target::Module(source)) if source != *at => self.member(&source, name, visited),
            _ => None,
        })
    }
}

fn joined(name: &Name, child: &str) -> Name {
    name.iter().cloned().chain([child.to_owned()]).collect()
}

/// Adds a module and its inline modules.
fn insert(modules: &mut BTreeMap<Name, (String, Module)>, name: Name, file: &str, mut module: Module) {
    for (child, inner) in std::mem::take(&mut module.inline) {
        insert(modules, joined(&name, &child), file, inner);
    }
    modules.insert(name, (file.to_owned(), module));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(files: &[(&str, &str, &str)]) -> Vec<String> {
        Crate::of(files).uses().iter().map(|u| format!("{}:{} {} {}", u.from, u.line, u.to, u.name)).collect()
    }

    #[test]
    fn a_re_export_is_followed_to_the_definition() {
        let files = [
            ("", "lib.rs", "mod a;\nmod b;\npub use a::Thing;\n"),
            ("a", "a/mod.rs", "mod inner;\npub use inner::Thing;\n"),
            ("a::inner", "a/inner.rs", "use crate::b::helper;\npub struct Thing;\n"),
            ("b", "b.rs", "use crate::Thing;\npub fn helper() {}\nfn f() { super::a::Thing::new(); }\n"),
        ];
        assert_eq!(
            uses(&files),
            [
                "a/inner.rs:1 b.rs crate::b::helper",
                "b.rs:1 a/inner.rs crate::Thing",
                "b.rs:3 a/inner.rs super::a::Thing::new",
            ]
        );
    }

    #[test]
    fn a_module_with_items_depends_on_the_children_that_it_uses() {
        let files = [
            ("", "lib.rs", "mod a;\n"),
            ("a", "a/mod.rs", "mod inner;\npub use inner::Thing;\npub struct B(Thing);\n"),
            ("a::inner", "a/inner.rs", "use super::B;\npub struct Thing(B);\n"),
        ];
        assert_eq!(uses(&files), ["a/inner.rs:1 a/mod.rs super::B", "a/mod.rs:2 a/inner.rs inner::Thing"]);
    }

    #[test]
    fn imported_modules_and_globs_count_by_the_names_used() {
        let files = [
            ("", "lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("a", "a.rs", "use crate::b;\nuse crate::c::*;\nfn f() { b::g(); }\n"),
            ("b", "b.rs", "pub fn g() {}\n"),
            ("c", "c.rs", "pub struct Unused;\n"),
        ];
        assert_eq!(uses(&files), ["a.rs:3 b.rs b::g"]);
    }

    #[test]
    fn an_item_and_a_module_may_have_one_name() {
        let files = [
            ("", "lib.rs", "mod check;\nmod a;\npub use check::check;\n"),
            ("check", "check.rs", "pub fn check() {}\n"),
            ("a", "a.rs", "fn f() { crate::check(); std::mem::take(); }\n"),
        ];
        assert_eq!(uses(&files), ["a.rs:1 check.rs crate::check"]);
    }
}
