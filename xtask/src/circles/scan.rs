//! The names in one source file: modules, definitions, imports and paths, read from its tokens.
//!
//! Comments (including links in documentation), attributes and items under `#[cfg(test)]` are ignored.

use std::collections::{BTreeMap, BTreeSet};

use crate::rust::{self, Tree};

/// Keywords after which the name of a definition follows.
const DEFINING: [&str; 9] =
    ["fn", "struct", "enum", "union", "trait", "const", "static", "type", "macro_rules"];
/// Keywords that may precede one of `DEFINING`, or begin an item without a name.
const LEADING: [&str; 10] =
    ["pub", "unsafe", "async", "extern", "default", "impl", "use", "mod", "let", "crate"];

/// A path as written, with the line of its first segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    pub line: usize,
    pub segments: Vec<String>,
}

/// The names in one module of a file. Inline modules are separate.
#[derive(Debug, Default)]
pub struct Module {
    /// Child modules in other files.
    pub children: BTreeSet<String>,
    /// Child modules in the same file.
    pub inline: BTreeMap<String, Module>,
    /// Items that are defined here.
    pub items: BTreeSet<String>,
    /// Imported names, each with its path.
    pub imports: BTreeMap<String, Path>,
    /// Those of the imported names that are re-exported.
    pub exported: BTreeSet<String>,
    /// Imports of the form `path::*`.
    pub globs: Vec<Path>,
    /// Paths of at least two segments, outside imports.
    pub paths: Vec<Path>,
    /// All identifiers, to find uses of names that a glob imports.
    pub words: BTreeMap<String, usize>,
}

/// Reads a file.
pub fn scan(content: &str) -> Module {
    let mut module = Module::default();
    read(&rust::trees(content), &mut module, true);
    module
}

/// Reads tokens into `module`. Definitions count only at `item_level`, that is not inside of bodies.
fn read(trees: &[Tree], module: &mut Module, item_level: bool) {
    let mut at = 0;
    while at < trees.len() {
        if let Some((attribute, after)) = attribute(trees, at) {
            at = if is_cfg_test(attribute) { skip_item(trees, after) } else { after };
            continue;
        }
        match &trees[at] {
            Tree::Group { trees, .. } => read(trees, module, false),
            tree => {
                if let Some(word) = tree.word() {
                    at = read_word(trees, at, word, module, item_level);
                    continue;
                }
            }
        }
        at += 1;
    }
}

/// Reads what begins with the word at `at`; returns the position after it.
fn read_word(trees: &[Tree], at: usize, word: &str, module: &mut Module, item_level: bool) -> usize {
    let next = trees.get(at + 1);
    match word {
        "use" if !next.is_some_and(|t| t.is('<')) => {
            let end = (at..trees.len()).find(|&i| trees[i].is(';')).unwrap_or(trees.len());
            let mut imported = Module::default();
            read_use(&trees[at + 1..end], &[], &mut imported);
            if is_public(&trees[..at]) {
                module.exported.extend(imported.imports.keys().cloned());
            }
            module.imports.append(&mut imported.imports);
            module.globs.append(&mut imported.globs);
            return end;
        }
        "mod" if item_level => {
            let Some(name) = next.and_then(Tree::word) else { return at + 1 };
            if let Some(Tree::Group { trees, .. }) = trees.get(at + 2) {
                read(trees, module.inline.entry(name.to_owned()).or_default(), true);
                return at + 3;
            }
            module.children.insert(name.to_owned());
            return at + 2;
        }
        _ if item_level && DEFINING.contains(&word) => {
            let skip = usize::from(next.is_some_and(|t| t.is('!') || t.word() == Some("mut")));
            let name = trees.get(at + 1 + skip).and_then(Tree::word);
            module.items.extend(name.filter(|name| !DEFINING.contains(name)).map(str::to_owned));
            return at + 1;
        }
        _ => {}
    }
    let (path, end) = path_at(trees, at);
    for segment in &path.segments {
        module.words.entry(segment.clone()).or_insert(path.line);
    }
    if path.segments.len() > 1 {
        module.paths.push(path);
    }
    end
}

/// The longest path that begins at `at`, and the position after it.
fn path_at(trees: &[Tree], mut at: usize) -> (Path, usize) {
    let mut path = Path { line: line_of(&trees[at]), segments: Vec::new() };
    while let Some(word) = trees.get(at).and_then(Tree::word) {
        path.segments.push(word.to_owned());
        at += 1;
        if !(trees.get(at).is_some_and(|t| t.is(':')) && trees.get(at + 1).is_some_and(|t| t.is(':'))) {
            break;
        }
        at += 2;
    }
    (path, at)
}

/// Reads one tree of an import: `a::b`, `a as b`, `a::*` or `a::{…}`.
fn read_use(trees: &[Tree], prefix: &[String], module: &mut Module) {
    let mut segments = prefix.to_vec();
    let mut line = 0;
    let mut renamed = None;
    for (at, tree) in trees.iter().enumerate() {
        line = line_of(tree);
        match tree {
            Tree::Group { trees, .. } => {
                for tree in trees.split(|t| t.is(',')) {
                    read_use(tree, &segments, module);
                }
                return;
            }
            _ if tree.word() == Some("as") => {
                renamed = trees.get(at + 1).and_then(Tree::word).map(str::to_owned);
                break;
            }
            _ if tree.is('*') => {
                module.globs.push(Path { line, segments });
                return;
            }
            _ => segments.extend(tree.word().map(str::to_owned)),
        }
    }
    if segments.len() > 1 && segments.last().is_some_and(|s| s == "self") {
        segments.pop();
    }
    let Some(last) = segments.last() else { return };
    let name = renamed.unwrap_or_else(|| last.clone());
    // Imports for their methods alone have no name; the path itself distinguishes them.
    let name = if name == "_" { segments.join("::") } else { name };
    module.imports.insert(name, Path { line, segments });
}

fn line_of(tree: &Tree) -> usize {
    match tree {
        Tree::Token(token) => token.line,
        Tree::Group { trees, .. } => trees.first().map_or(0, line_of),
    }
}

/// The attribute at `at`, and the position after it.
fn attribute<'a, 'b>(trees: &'a [Tree<'b>], at: usize) -> Option<(&'a [Tree<'b>], usize)> {
    if !trees[at..].first()?.is('#') {
        return None;
    }
    let at = at + 1 + usize::from(trees.get(at + 1)?.is('!'));
    match trees.get(at)? {
        Tree::Group { open: '[', trees } => Some((trees, at + 1)),
        _ => None,
    }
}

fn is_cfg_test(attribute: &[Tree]) -> bool {
    let [cfg, Tree::Group { trees, .. }] = attribute else { return false };
    let words: Vec<&str> = trees.iter().filter_map(Tree::word).collect();
    let is_test = match (&words[..], trees.last()) {
        (["all"], Some(Tree::Group { trees, .. })) => trees.first().and_then(Tree::word) == Some("test"),
        (words, _) => words == ["test"],
    };
    cfg.word() == Some("cfg") && is_test
}

/// The position after the item, field, argument or statement at `at`.
fn skip_item(trees: &[Tree], mut at: usize) -> usize {
    while let Some((_, after)) = attribute(trees, at) {
        at = after;
    }
    let mut words = trees[at..].iter().filter_map(Tree::word);
    let mut word = words.next().unwrap_or_default();
    if word == "pub" {
        word = words.next().unwrap_or_default();
    }
    let is_item = DEFINING.contains(&word) || LEADING.contains(&word);
    let until_semicolon = word == "use" || word == "let";
    let ends = |t: &Tree| match t {
        Tree::Group { open, .. } => *open == '{' && !until_semicolon,
        _ => t.is(';') || (t.is(',') && !is_item),
    };
    trees[at..].iter().position(ends).map_or(trees.len(), |end| at + end + 1)
}

/// Whether the tokens before an item end in its visibility.
fn is_public(before: &[Tree]) -> bool {
    match before {
        [.., last] if last.word() == Some("pub") => true,
        [.., word, Tree::Group { .. }] => word.word() == Some("pub"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(path: &Path) -> String {
        path.segments.join("::")
    }

    #[test]
    fn imports_are_read_with_their_trees() {
        let m = scan("use a::{self, b::{C, D as E}, f::*};\npub(crate) use super::g;\nuse h::I as _;\n");
        let names: Vec<_> = m.imports.iter().map(|(n, p)| format!("{n}={}", segments(p))).collect();
        assert_eq!(names, ["C=a::b::C", "E=a::b::D", "a=a", "g=super::g", "h::I=h::I"]);
        assert_eq!(m.globs.iter().map(segments).collect::<Vec<_>>(), ["a::f"]);
        assert_eq!(m.imports["g"].line, 2);
        assert_eq!(m.exported.iter().collect::<Vec<_>>(), ["g"]);
    }

    #[test]
    fn definitions_and_modules_are_read() {
        let source = "pub struct A;\nconst fn f() {}\nstatic mut S: u8 = 0;\nmacro_rules! m { () => {} }\n\
                      mod child;\nmod inline { pub fn g() { struct Local; } }\nimpl A { fn method() {} }\n";
        let m = scan(source);
        assert_eq!(m.items.iter().collect::<Vec<_>>(), ["A", "S", "f", "m"]);
        assert_eq!(m.children.iter().collect::<Vec<_>>(), ["child"]);
        assert_eq!(m.inline["inline"].items.iter().collect::<Vec<_>>(), ["g"]);
    }

    #[test]
    fn paths_are_read_in_bodies_and_macros_but_not_in_comments() {
        let source = "//! [`crate::x::A`]\n/// See [`crate::y`].\nfn f() {\n    crate::b::c(super::d::E);\n    \
                      write!(\"{}\", crate::g::H) // crate::z::Z\n}\n";
        let m = scan(source);
        assert_eq!(
            m.paths.iter().map(segments).collect::<Vec<_>>(),
            ["crate::b::c", "super::d::E", "crate::g::H"]
        );
        assert_eq!(m.paths[0].line, 4);
    }

    #[test]
    fn test_code_is_left_out() {
        let source = "#[cfg(test)]\nmod tests;\n#[cfg(test)]\nmod inline { use crate::a; }\n\
                      #[cfg(test)]\nuse crate::{b, c};\n#[cfg(test)]\nfn f<A, B>() { crate::d::e(); }\n\
                      struct S {\n    #[cfg(test)]\n    a: crate::x::Y,\n    b: crate::k::L,\n}\n";
        let m = scan(source);
        assert!(m.children.is_empty() && m.inline.is_empty() && m.imports.is_empty());
        assert_eq!(m.paths.iter().map(segments).collect::<Vec<_>>(), ["crate::k::L"]);
    }
}
