//! Path patterns that identify temporary files.
//!
//! A pattern is a path from the root of a file system, with components separated by `/`. In a component, `*`
//! matches any characters; the component `**` matches one or more components. All patterns are evaluated
//! together as one automaton: a directory has a state, and the name of an entry leads to the next state. So a
//! tree is walked only where a pattern can still match, and full paths are never assembled.

/// Patterns of temporary files, for Windows (case-insensitive) and for Linux (case-sensitive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Temporary {
    /// Patterns of paths on NTFS.
    pub windows: Vec<String>,
    /// Patterns of paths on ext and XFS.
    pub linux: Vec<String>,
}

const WINDOWS: &[&str] = &[
    "Temp/**",
    "Windows/Temp/**",
    "Windows/SoftwareDistribution/Download/**",
    "Windows/ServiceProfiles/*/AppData/Local/Temp/**",
    "ProgramData/Microsoft/Windows/WER/**",
    "Users/*/AppData/Local/Temp/**",
    "Users/*/AppData/Local/CrashDumps/**",
    "Users/*/AppData/Local/Microsoft/Windows/INetCache/**",
    "Users/*/AppData/Local/Microsoft/Windows/Temporary Internet Files/**",
    "Users/*/AppData/Local/Microsoft/Windows/WebCache/**",
    "Users/*/AppData/Local/Microsoft/Windows/Explorer/thumbcache_*",
    "Users/*/AppData/Local/Packages/*/AC/INetCache/**",
    "Users/*/AppData/Local/Packages/*/TempState/**",
    "Users/*/AppData/Local/*/*/User Data/*/Cache/**",
    "Users/*/AppData/Local/*/*/User Data/*/Code Cache/**",
    "Users/*/AppData/Local/*/*/User Data/*/GPUCache/**",
    "Users/*/AppData/Local/*/*/User Data/*/Service Worker/CacheStorage/**",
    "Users/*/AppData/Local/Mozilla/Firefox/Profiles/*/cache2/**",
    "Users/*/AppData/Roaming/*/Cache/**",
    "Documents and Settings/*/Local Settings/Temp/**",
    "Documents and Settings/*/Local Settings/Temporary Internet Files/**",
];

const LINUX: &[&str] = &[
    "tmp/**",
    "var/tmp/**",
    "var/cache/**",
    "var/lib/systemd/coredump/**",
    "root/.cache/**",
    "home/*/.cache/**",
    "home/*/snap/*/*/.cache/**",
    "home/*/.var/app/*/cache/**",
    // Separate file systems for /home and /var.
    "*/.cache/**",
    "cache/apt/**",
];

impl Default for Temporary {
    fn default() -> Temporary {
        let owned = |list: &[&str]| list.iter().map(|p| (*p).to_owned()).collect();
        Temporary { windows: owned(WINDOWS), linux: owned(LINUX) }
    }
}

/// The patterns of paths, parsed.
#[derive(Debug)]
pub(crate) struct Patterns {
    patterns: Vec<Vec<Vec<char>>>,
    ignore_case: bool,
}

/// The state after some components: the sorted list of active positions (pattern, component).
pub(crate) type State = Vec<(u32, u32)>;

impl Patterns {
    pub fn new(patterns: &[String], ignore_case: bool) -> Patterns {
        let component = |c: &str| fold(c, ignore_case);
        let split = |p: &String| p.split('/').filter(|c| !c.is_empty()).map(component).collect::<Vec<_>>();
        let patterns = patterns.iter().map(split).filter(|p| !p.is_empty()).collect();
        Patterns { patterns, ignore_case }
    }

    /// Returns the state of the root directory. No pattern can match from an empty state.
    pub fn root(&self) -> State {
        (0..self.patterns.len() as u32).map(|p| (p, 0)).collect()
    }

    /// Returns the work of a step, which case-folds a name and compares it with a component of each pattern.
    pub fn step_work(state: &State, name_len: usize) -> u64 {
        1 + (name_len * (1 + state.len()) / 16) as u64
    }

    /// Returns the state of the entry `name` in a directory with this state.
    pub fn step(&self, state: &State, name: &str) -> State {
        let mut next = State::new();
        if state.is_empty() {
            return next;
        }
        let name = fold(name, self.ignore_case);
        for &(pattern, at) in state {
            match self.patterns[pattern as usize].get(at as usize) {
                Some(component) if component[..] == ['*', '*'] => {
                    next.extend([(pattern, at), (pattern, at + 1)])
                }
                Some(component) if matches(component, &name) => next.push((pattern, at + 1)),
                _ => (),
            }
        }
        next.sort_unstable();
        next.dedup();
        next
    }

    /// Whether a pattern matches in this state.
    pub fn is_match(&self, state: &State) -> bool {
        state.iter().any(|(pattern, at)| self.patterns[*pattern as usize].len() == *at as usize)
    }
}

fn fold(name: &str, ignore_case: bool) -> Vec<char> {
    if ignore_case { name.chars().flat_map(char::to_lowercase).collect() } else { name.chars().collect() }
}

/// Whether a component matches. Backtracks only to the last `*`, so the number of steps is at most the
/// product of both lengths.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n, mut retry) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(c) if *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((star, from)) = retry else { return false };
                retry = Some((star, from + 1));
                (p, n) = (star + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_temporary(patterns: &[&str], ignore_case: bool, path: &str) -> bool {
        let owned: Vec<_> = patterns.iter().map(|p| (*p).to_owned()).collect();
        let patterns = Patterns::new(&owned, ignore_case);
        let state = path.split('/').fold(patterns.root(), |state, name| patterns.step(&state, name));
        patterns.is_match(&state)
    }

    #[test]
    fn wildcards_match_within_and_across_components() {
        let case = |pattern, path| is_temporary(&[pattern], false, path);
        assert!(case("tmp/**", "tmp/a") && case("tmp/**", "tmp/a/b/c"));
        assert!(!case("tmp/**", "tmp") && !case("tmp/**", "Tmp/a") && !case("tmp/**", "x/tmp/a"));
        assert!(case("**/x/**", "a/b/x/y") && case("**/x/**", "a/x/x/x") && !case("**/x/**", "x/y"));
        assert!(case("a*b*c", "abbc") && case("a*b*c", "a-b-b-c") && !case("a*b*c", "acb"));
        assert!(case("*/.cache/**", "u/.cache/f") && !case("*/.cache/**", ".cache/f"));
        assert!(case("a/*.tmp", "a/x.tmp") && !case("a/*.tmp", "a/b/x.tmp"));
    }

    #[test]
    fn windows_patterns_ignore_case() {
        let path = "users/ÄNNE/AppData/LOCAL/Temp/setup.log";
        assert!(is_temporary(WINDOWS, true, path));
        assert!(is_temporary(&["Users/änne/**"], true, path));
        assert!(is_temporary(
            WINDOWS,
            true,
            "Users/a/AppData/Local/Google/Chrome/User Data/Default/Cache/Cache_Data/f_000001"
        ));
        assert!(!is_temporary(WINDOWS, true, "Windows/System32/temp.dll"));
        assert!(!is_temporary(WINDOWS, true, "pagefile.sys"));
    }

    #[test]
    fn default_linux_patterns_match_temporary_files_only() {
        for path in
            ["tmp/x", "var/cache/apt/pkgcache.bin", "home/u/.cache/mozilla/firefox/p/cache2/entries/0"]
        {
            assert!(is_temporary(LINUX, false, path), "{path}");
        }
        for path in ["var/lib/dpkg/status", "home/u/.bashrc", "usr/bin/ls", "var/log/syslog"] {
            assert!(!is_temporary(LINUX, false, path), "{path}");
        }
    }
}
