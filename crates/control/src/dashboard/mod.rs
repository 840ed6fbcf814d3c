//! The dashboard: pages for administrators, which a browser renders from the API.
//!
//! Only static files are served here, to everyone who reaches the listener; they contain no data. All data
//! is read from the API with the rights of the session, so access is decided in one place.
//!
//! **Loading.** The shell names all modules, so that the browser requests all modules at once. Otherwise it
//! would request the imports of a module only after it has loaded the module.
//!
//! **Caching.** The paths of all files but the shell contain a hash of the whole set, so browsers keep them,
//! and a page never combines files of two releases. The shell, `/`, is requested each time.

mod assets;

use std::sync::LazyLock;

use assets::{ASSETS, SCRIPT, SHELL};
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

/// The content security policy of pages: nothing is loaded from elsewhere, and no script or style is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";
/// What the shell has in place of [`Pages::version`].
const VERSION: &str = "{version}";
/// What the shell has in place of links to the modules.
const MODULES: &str = "{modules}";

static PAGES: LazyLock<Pages> = LazyLock::new(Pages::new);

struct Pages {
    /// Hash of all files of the dashboard.
    version: String,
    shell: String,
    tag: HeaderValue,
}

impl Pages {
    fn new() -> Pages {
        let mut all = Sha256::new_with_prefix(SHELL);
        for asset in ASSETS {
            all.update(asset.path);
            all.update((asset.bytes.len() as u64).to_le_bytes());
            all.update(asset.bytes);
        }
        let version: String = all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let shell = SHELL.replace(MODULES, &links_to_modules()).replace(VERSION, &version);
        let tag = HeaderValue::from_str(&format!("\"{version}\""));
        Pages { shell, tag: tag.expect("hexadecimal digits are valid in a header"), version }
    }
}

/// Links to the modules that other scripts import: all scripts except those for which the shell has elements.
fn links_to_modules() -> String {
    let imported = ASSETS
        .iter()
        .filter(|asset| asset.media_type == SCRIPT && !SHELL.contains(&format!("/{}\"", asset.path)));
    let links = imported
        .map(|asset| format!("<link rel=\"modulepreload\" href=\"/assets/{VERSION}/{}\">", asset.path));
    links.collect::<Vec<_>>().join("\n")
}

/// Whether a request is for the shell. Links on pages of other sites may lead to the shell.
pub(crate) fn is_shell(method: &Method, path: &str) -> bool {
    method.is_safe() && path == "/"
}

/// The routes of the dashboard.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(shell)).route("/assets/{version}/{*path}", get(asset))
}

async fn shell(headers: HeaderMap) -> Response {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        // A page that opened the dashboard has no reference to its window.
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, PAGES.tag.clone()),
    ];
    if headers.get_all(header::IF_NONE_MATCH).iter().any(|tag| *tag == PAGES.tag) {
        return (StatusCode::NOT_MODIFIED, fixed).into_response();
    }
    (fixed, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGES.shell.as_str()).into_response()
}

async fn asset(Path((version, path)): Path<(String, String)>) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.path == path) else {
        return (StatusCode::NOT_FOUND, "this release has no such file; load the page again\n")
            .into_response();
    };
    // A page of another release gets the present file, but does not keep it.
    let cached = if version == PAGES.version { "public, max-age=31536000, immutable" } else { "no-store" };
    ([(header::CONTENT_TYPE, asset.media_type), (header::CACHE_CONTROL, cached)], asset.bytes).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn files(directory: &std::path::Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => files(&entry.path(), &format!("{name}/"), found),
                false => drop(found.insert(name)),
            }
        }
    }

    #[test]
    fn all_files_are_served() {
        let mut found = BTreeSet::new();
        files(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard")), "", &mut found);
        found.remove("index.html");
        found.retain(|path| !path.ends_with("LICENSE"));
        let served: BTreeSet<String> = ASSETS.iter().map(|asset| asset.path.to_owned()).collect();
        assert_eq!(served, found, "list the files in src/dashboard/assets.rs");
        assert_eq!(served.len(), ASSETS.len());
    }

    #[test]
    fn the_shell_has_no_inline_code_and_names_files_that_are_served() {
        let shell = &PAGES.shell;
        assert!(!shell.contains('{') && !shell.contains("style=") && !shell.contains(" on"));
        let prefix = format!("/assets/{}/", PAGES.version);
        let named: Vec<&str> = shell.split(&prefix).skip(1).filter_map(|s| s.split('"').next()).collect();
        assert!(named.len() >= 3);
        for path in &named {
            assert!(ASSETS.iter().any(|asset| asset.path == *path), "{path}");
        }
        let scripts = ASSETS.iter().filter(|asset| asset.media_type == SCRIPT);
        for path in scripts.map(|asset| asset.path) {
            assert_eq!(named.iter().filter(|found| **found == path).count(), 1, "{path}");
        }
        for tag in shell.split("<script").skip(1) {
            assert!(tag.split_once('>').unwrap().1.starts_with("</script>"), "{tag}");
        }
    }
}
