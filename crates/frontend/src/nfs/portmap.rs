//! The port mapper: NFS and MOUNT are on one port, over TCP.

use forebay_wire::nfs::portmap::{self, Request, TCP};
use forebay_wire::nfs::{PROGRAM, VERSION, mount};
use forebay_wire::rpc::Encoder;

/// Serves a call of the port mapper.
pub(super) fn serve(request: &Request, port: u16, xdr: &mut Encoder) {
    let served = [(PROGRAM, VERSION), (mount::PROGRAM, VERSION)];
    match *request {
        Request::Null => {}
        Request::GetPort { program, version, protocol } => {
            let is_served = served.contains(&(program, version)) && protocol == TCP;
            xdr.u32(if is_served { port.into() } else { 0 });
        }
        Request::Dump => {
            xdr.bool(true).u32(portmap::PROGRAM).u32(portmap::VERSION).u32(TCP).u32(111);
            for (program, version) in served {
                xdr.bool(true).u32(program).u32(version).u32(TCP).u32(port.into());
            }
            xdr.bool(false);
        }
    }
}
