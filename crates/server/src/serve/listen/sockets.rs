//! The listening sockets of a server. They exist before its pool is open, and independently of the services
//! that accept clients from them: clients that connect before wait in the kernel's queue. Services use
//! clones, so in an upgrade the same sockets are passed to the successor.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_frontend::plane::{Bound, ListenAddr, Listener};
use tokio::net::UnixListener;

use super::inherited::Inherited;
use super::socket::ControlSocket;
use crate::config::ServeConfig;
use crate::serve::ServeError;
use crate::serve::upgrade::{ListenerState, Service};

/// The listening sockets.
pub(in crate::serve) struct Sockets {
    data: Bound,
    http: Option<(ListenAddr, Listener)>,
    control: ControlSocket,
    /// The files of the predecessor's sockets, in the order of `data`, until the predecessor has left.
    files: Vec<Option<(u64, u64)>>,
}

/// The addresses that are not wildcards.
pub(in crate::serve) fn specific(addresses: &[ListenAddr]) -> Vec<SocketAddr> {
    let specific = |address: &ListenAddr| match address {
        ListenAddr::Tcp(text) => text.parse().ok().filter(|addr: &SocketAddr| !addr.ip().is_unspecified()),
        ListenAddr::Unix(_) => None,
    };
    addresses.iter().filter_map(specific).collect()
}

/// Binds the addresses of iSCSI, except those of inherited sockets.
pub(in crate::serve) fn bind_iscsi(
    config: &ServeConfig,
    inherited: &mut Inherited,
) -> Result<Bound, ServeError> {
    let mut bound = Bound::default();
    for address in &config.iscsi {
        bound.0.push((address.clone(), bind(inherited, "iscsi", address)?));
    }
    Ok(bound)
}

fn bind(inherited: &mut Inherited, service: &str, address: &ListenAddr) -> Result<Vec<Listener>, ServeError> {
    let listeners = inherited.take(service, address);
    if listeners.is_empty() { Ok(Listener::bind(address)?) } else { Ok(listeners) }
}

/// The data-plane addresses of a configuration, with the names of their services.
fn data_addresses(config: &ServeConfig) -> impl Iterator<Item = (&'static str, &ListenAddr)> {
    let nbd = config.nbd.listeners.iter().flat_map(|l| &l.listen).map(|address| ("nbd", address));
    let iscsi = config.iscsi.iter().map(|address| ("iscsi", address));
    let nvme = config.nvme.listen.iter().map(|address| ("nvme", address));
    let nfs = config.nfs.listen.iter().chain(&config.nfs.portmap).map(|address| ("nfs", address));
    nbd.chain(iscsi).chain(nvme).chain(nfs)
}

fn http_address(config: &ServeConfig) -> Option<ListenAddr> {
    config.http.listen.map(|addr| ListenAddr::Tcp(addr.to_string()))
}

impl Sockets {
    /// Binds the addresses of the configuration, except those of inherited sockets. `iscsi` are the listeners
    /// of iSCSI that are bound already.
    pub fn bind(
        config: &ServeConfig,
        mut inherited: Inherited,
        mut iscsi: Bound,
    ) -> Result<Sockets, ServeError> {
        let at_control = ListenAddr::Unix(config.socket.clone());
        let control = match inherited.take("control", &at_control).pop() {
            Some(Listener::Unix { listener, .. }) => ControlSocket::adopt(&config.socket, listener),
            _ => ControlSocket::bind(&config.socket)?,
        };
        let mut data = Bound::default();
        for (service, address) in data_addresses(config) {
            let bound = if service == "iscsi" { iscsi.take(address) } else { None };
            let listeners = match bound {
                Some(listeners) => listeners,
                None => bind(&mut inherited, service, address)?,
            };
            data.0.push((address.clone(), listeners));
        }
        let http = match (config.http.listen, http_address(config)) {
            (Some(addr), Some(address)) => {
                let fail = |e| ServeError::listen(&addr.to_string(), &e);
                let listener = match inherited.take("http", &address).pop() {
                    Some(listener) => listener,
                    None => {
                        let listener = TcpListener::bind(addr).map_err(fail)?;
                        listener.set_nonblocking(true).map_err(fail)?;
                        Listener::Tcp(listener)
                    }
                };
                Some((address, listener))
            }
            _ => None,
        };
        inherited.finish()?;
        Ok(Sockets { data, http, control, files: Vec::new() })
    }

    /// The listeners as messages describe them, and their descriptors.
    pub fn describe(&self) -> (Vec<ListenerState>, Vec<BorrowedFd<'_>>) {
        let (mut states, mut fds) = (Vec::new(), Vec::new());
        let mut add = |service, group, address: &ListenAddr, file, fd| {
            states.push(ListenerState { service, group, address: address.to_string(), file });
            fds.push(fd);
        };
        for (group, (address, listeners)) in self.data.0.iter().enumerate() {
            for listener in listeners {
                add(Service::Data, group, address, listener.file_identity(), listener.as_fd());
            }
        }
        if let Some((address, listener)) = &self.http {
            add(Service::Http, 0, address, None, listener.as_fd());
        }
        let at_control = ListenAddr::Unix(self.control.path().to_owned());
        add(Service::Control, 0, &at_control, self.control.identity(), self.control.listener().as_fd());
        (states, fds)
    }

    /// Takes over the sockets of a predecessor. Their files are not removed before [`Sockets::own_files`].
    ///
    /// # Errors
    /// The addresses differ from those in the configuration.
    pub fn adopt(
        config: &ServeConfig,
        states: Vec<ListenerState>,
        fds: Vec<OwnedFd>,
    ) -> Result<Sockets, ServeError> {
        let mut sockets: Vec<_> = states.into_iter().zip(fds).collect();
        let mut take = |service: Service, address: &ListenAddr| {
            let is_meant = |s: &ListenerState| s.service == service && s.address == address.to_string();
            let first = sockets.iter().find(|(s, _)| is_meant(s)).map(|(s, _)| s.group);
            let group = first.ok_or_else(|| ServeError::OtherAddresses(address.clone()))?;
            let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(&mut sockets)
                .into_iter()
                .partition(|(s, _): &(ListenerState, OwnedFd)| is_meant(s) && s.group == group);
            sockets = left;
            let adopt = |(state, fd): (ListenerState, OwnedFd)| Ok((Listener::adopt(fd)?, state.file));
            taken.into_iter().map(adopt).collect::<Result<Vec<_>, ServeError>>()
        };
        let (mut data, mut files) = (Bound::default(), Vec::new());
        for (_, address) in data_addresses(config) {
            let (listeners, of_listeners): (Vec<_>, Vec<_>) =
                take(Service::Data, address)?.into_iter().unzip();
            data.0.push((address.clone(), listeners));
            files.extend(of_listeners);
        }
        let http = match http_address(config) {
            Some(address) => take(Service::Http, &address)?.pop().map(|(listener, _)| (address, listener)),
            None => None,
        };
        let at_control = ListenAddr::Unix(config.socket.clone());
        let Some((Listener::Unix { listener, .. }, file)) = take(Service::Control, &at_control)?.pop() else {
            return Err(ServeError::OtherAddresses(at_control));
        };
        files.push(file);
        if let Some((state, _)) = sockets.first() {
            let address = state.address.parse().unwrap_or(at_control);
            return Err(ServeError::OtherAddresses(address));
        }
        Ok(Sockets { data, http, control: ControlSocket::adopt(&config.socket, listener), files })
    }

    /// Removes the files of the predecessor's sockets from now on, when the server stops.
    pub fn own_files(&mut self) {
        let mut files = std::mem::take(&mut self.files).into_iter();
        for listener in self.data.0.iter_mut().flat_map(|(_, listeners)| listeners) {
            if let Some(Some(file)) = files.next() {
                listener.own_file(file);
            }
        }
        if let Some(Some(file)) = files.next() {
            self.control.own_file(file);
        }
    }

    /// Closes the sockets, and leaves them and their files to a successor.
    pub fn leave(self) {
        self.data.0.into_iter().flat_map(|(_, listeners)| listeners).for_each(Listener::leave);
        self.control.leave();
    }

    /// Listeners for the data plane.
    pub fn data(&self) -> std::io::Result<Bound> {
        self.data.try_clone()
    }

    /// A listener for the API over TCP.
    pub fn http(&self) -> std::io::Result<Option<tokio::net::TcpListener>> {
        match self.http.as_ref().map(|(_, listener)| listener.try_clone()).transpose()? {
            Some(Listener::Tcp(listener)) => Ok(Some(tokio::net::TcpListener::from_std(listener)?)),
            _ => Ok(None),
        }
    }

    /// A listener for the control socket.
    pub fn control(&self) -> std::io::Result<UnixListener> {
        UnixListener::from_std(self.control.listener().try_clone()?)
    }

    /// Moves the control socket to its path, if it is not there.
    pub fn publish(&mut self) -> Result<(), ServeError> {
        self.control.publish()
    }
}
