//! The files of the dashboard, which are part of the program.

/// A file of the dashboard.
pub(super) struct Asset {
    /// Path of the file after `/assets/VERSION/`.
    pub path: &'static str,
    pub media_type: &'static str,
    pub bytes: &'static [u8],
}

/// The shell: the page that loads all other files.
pub(super) const SHELL: &str = include_str!("../../dashboard/index.html");

pub(super) const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal $media_type:ident;)+) => {
        /// All files of the dashboard except the shell.
        pub(super) const ASSETS: &[Asset] = &[$(Asset {
            path: $path,
            media_type: $media_type,
            bytes: include_bytes!(concat!("../../dashboard/", $path)),
        }),+];
    };
}

assets! {
    "api.js" SCRIPT;
    "chart.js" SCRIPT;
    "connect.js" SCRIPT;
    "components.css" STYLE;
    "dialog.js" SCRIPT;
    "dom.js" SCRIPT;
    "format.js" SCRIPT;
    "health.js" SCRIPT;
    "icon.svg" PICTURE;
    "live.js" SCRIPT;
    "main.js" SCRIPT;
    "pages/access.js" SCRIPT;
    "pages/cache.js" SCRIPT;
    "pages/cluster.js" SCRIPT;
    "pages/events.js" SCRIPT;
    "pages/images.js" SCRIPT;
    "pages/iscsi.js" SCRIPT;
    "pages/jobs.js" SCRIPT;
    "pages/login.js" SCRIPT;
    "pages/overview.js" SCRIPT;
    "pages/pools.js" SCRIPT;
    "pages/tenants.js" SCRIPT;
    "pages/volume.js" SCRIPT;
    "pages/volumes.js" SCRIPT;
    "pages/volume_actions.js" SCRIPT;
    "session.js" SCRIPT;
    "style.css" STYLE;
    "table.js" SCRIPT;
    "theme.js" SCRIPT;
    "vendor/uplot/uPlot.esm.js" SCRIPT;
    "vendor/uplot/uPlot.min.css" STYLE;
}
