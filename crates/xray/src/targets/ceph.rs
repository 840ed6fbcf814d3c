//! A Ceph cluster for tests, which ends with this process.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::servers::{program, run};
use super::{Surroundings, TargetError};

/// A Ceph cluster for tests; see the module documentation.
pub(super) struct Cluster {
    script: PathBuf,
    dir: PathBuf,
}

/// Number of ports that the script uses, from the first port on, below the ports that Linux gives to clients.
const PORTS: u16 = 200;

impl Cluster {
    /// Starts a cluster.
    pub fn start(around: &Surroundings) -> Result<Cluster, TargetError> {
        for (name, package) in [("ceph-mon", "ceph-mon"), ("ceph-osd", "ceph-osd"), ("ceph", "ceph-common")] {
            if program(name).is_none() {
                let what = format!("Ceph is not installed: {name} is missing, run apt-get install {package}");
                return Err(TargetError::Unavailable(what));
            }
        }
        if !around.ceph_script.is_file() {
            let what = format!("{} is missing: give --ceph-script", around.ceph_script.display());
            return Err(TargetError::Unavailable(what));
        }
        let script = std::path::absolute(&around.ceph_script).unwrap_or(around.ceph_script.clone());
        let dir = std::env::temp_dir().join(format!("forebay-xray-ceph-{}", std::process::id()));
        let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (22_000..30_000).step_by(PORTS.into()).find(free);
        let port = port.ok_or(TargetError::Unavailable("no free range of ports for Ceph".to_owned()))?;
        let cluster = Cluster { script, dir };
        let mut command = cluster.command("start");
        command.env("CL_PORT", port.to_string()).env("CL_OWNER", std::process::id().to_string());
        run(&mut command)?;
        Ok(cluster)
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.script);
        command.arg(what).env("CL_DIR", &self.dir);
        command
    }

    /// Returns the path of the configuration file for clients.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// Directory of the cluster.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lets the script do `what` with an OSD.
    pub fn osd(&self, what: &str, number: u32) -> Result<(), TargetError> {
        Ok(run(self.command(what).arg(number.to_string())).map(drop)?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A failure needs no report: a watch of the script destroys the cluster when this process ends.
        let _ = run(&mut self.command("destroy"));
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
