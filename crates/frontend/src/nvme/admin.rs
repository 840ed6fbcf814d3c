//! The admin queue of a controller: properties, admin commands, and asynchronous events.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use forebay_wire::nvme::{
    self, ALL_NAMESPACES, AsyncEvent, Fabrics, FatalError, Feature, Property, Sqe, Status,
};
use forebay_wire::nvme::{NAMESPACES, QUEUE_ENTRIES, Sgl, VERSION, identify, log};
use forebay_wire::scsi::Request;
use sha2::{Digest, Sha256};

use super::commands::TASK_COST;
use super::connect::MAX_QUEUES;
use super::context::Context;
use super::controller::{Configured, Controller};
use super::discovery;
use super::link::Link;
use super::notices::Notices;
use crate::plane::{Output, spawn_request};

/// Revision of the software, a field of eight characters.
const REVISION: &str = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
/// Controller capabilities (Base 3.1.3.1): contiguous queues (CQR), a timeout of 10 seconds (TO), the NVM
/// command set (CSS), and the maximum entries of a queue (MQES, 0's based).
const CAPABILITIES: u64 = 1 << 37 | 20 << 24 | 1 << 16 | (QUEUE_ENTRIES as u64 - 1);

/// The admin queue.
pub(super) struct Admin {
    context: Arc<Context>,
    controller: Arc<Controller>,
    link: Rc<Link>,
    /// The address to which the host is connected.
    local: SocketAddr,
    /// Asynchronous Event Requests that wait.
    waiting: Vec<u16>,
}

/// The result of a command that has succeeded.
enum Answer {
    Result(u32),
    Data(Vec<u8>),
    /// The command is completed later.
    Later,
}

impl Admin {
    pub fn new(
        context: Arc<Context>,
        controller: Arc<Controller>,
        link: Rc<Link>,
        local: SocketAddr,
    ) -> Admin {
        Admin { context, controller, link, local, waiting: Vec::new() }
    }

    /// Serves a fabrics command.
    pub fn fabrics(&self, sqe: &Sqe, fabrics: Result<Fabrics, Status>, output: &mut Output) {
        let done = match fabrics {
            Ok(Fabrics::Get(property)) => Ok(match property {
                Property::Capabilities => CAPABILITIES,
                Property::Version => VERSION.into(),
                Property::Configuration => self.controller.configuration().into(),
                Property::State => self.controller.status().into(),
            }),
            Ok(Fabrics::Set(Property::Configuration, value)) => {
                if self.controller.configure(value as u32) == Configured::Flush {
                    self.shut_down();
                }
                if let Some(namespaces) =
                    self.controller.namespaces.as_ref().filter(|_| !self.controller.is_ready())
                {
                    // The I/O queues end.
                    namespaces.interrupt();
                }
                Ok(0)
            }
            Ok(Fabrics::Set(..)) => Err(Status::INVALID_FIELD),
            Ok(Fabrics::Connect(_)) => Err(Status::SEQUENCE_ERROR),
            // The admin queue cannot be disconnected alone (Base 6.4).
            Ok(Fabrics::Disconnect) => Err(Status::INVALID_FIELD),
            // A host authenticates itself once, right after its Connect.
            Ok(Fabrics::AuthSend(_) | Fabrics::AuthReceive(_)) => Err(Status::SEQUENCE_ERROR),
            Err(status) => Err(status),
        };
        let (status, result) = done.map_or_else(|status| (status, 0), |value| (Status::SUCCESS, value));
        self.link.complete(sqe.id(), status, result, output);
    }

    /// Makes all acknowledged writes durable, and reports the end of the shutdown.
    fn shut_down(&self) {
        let controller = self.controller.clone();
        let ticket = self.link.backlog.enter(TASK_COST);
        spawn_request(&self.link.backlog, async move {
            let _ticket = ticket;
            let namespaces = controller.namespaces.iter();
            for nexus in namespaces.flat_map(|all| all.all().into_iter().filter_map(|id| all.nexus(id))) {
                if !nexus.durable(false) {
                    nexus.perform(&Request::SynchronizeCache { immediate: false }, &[]).await;
                }
            }
            controller.has_shut_down();
        });
    }

    /// Serves an admin command.
    ///
    /// # Errors
    /// The host has more commands in progress than its queue has entries.
    pub fn command(&mut self, sqe: &Sqe, output: &mut Output) -> Result<(), FatalError> {
        match self.execute(sqe) {
            Ok(Answer::Result(result)) => {
                self.link.complete(sqe.id(), Status::SUCCESS, result.into(), output)
            }
            Ok(Answer::Data(data)) => {
                self.link.backlog.budget().count(data.len());
                self.link.answer(sqe.id(), &data, output);
                // A log page that was read permits the next event.
                self.report_events(output);
            }
            Ok(Answer::Later) => self.report_events(output),
            Err(status) => {
                self.controller.failed(0, sqe, status);
                self.link.complete(sqe.id(), status, 0, output);
            }
        }
        Ok(())
    }

    fn execute(&mut self, sqe: &Sqe) -> Result<Answer, Status> {
        use nvme::Admin::*;
        let is_discovery = self.controller.namespaces.is_none();
        let command = nvme::Admin::decode(sqe)?;
        let is_early = matches!(command, KeepAlive | Set { feature: Feature::KeepAlive, .. });
        if !self.controller.is_ready() && !is_early {
            return Err(Status::SEQUENCE_ERROR);
        }
        let expected = command.data_in();
        if expected > 0 && sqe.sgl()? != (Sgl::Transport { len: expected }) {
            return Err(Status::SGL_LENGTH_INVALID);
        }
        match command {
            Log { page, offset, len, retain } => self.log(page, offset, len, retain).map(Answer::Data),
            Identify { structure, command_set } => {
                self.identify(structure, command_set, sqe.namespace()).map(Answer::Data)
            }
            // The command was not aborted (Base 5.1): commands that run cannot be stopped.
            Abort { .. } if !is_discovery => Ok(Answer::Result(1)),
            Set { feature, value } => self.set(feature, value, sqe.namespace()).map(Answer::Result),
            Get { feature, .. } => self.get(feature, sqe.namespace()),
            AsyncEvent if self.waiting.len() >= usize::from(identify::ASYNC_EVENTS_MAX) => {
                Err(Status::ASYNC_EVENT_LIMIT)
            }
            AsyncEvent => {
                self.waiting.push(sqe.id());
                Ok(Answer::Later)
            }
            KeepAlive => Ok(Answer::Result(0)),
            Abort { .. } => Err(Status::INVALID_OPCODE),
        }
    }

    /// Completes Asynchronous Event Requests with the events that can be reported.
    pub fn report_events(&mut self, output: &mut Output) {
        let notices = self.controller.namespaces.as_ref().map(|namespaces| &namespaces.notices);
        if notices.is_some_and(Notices::are_waiting) {
            self.controller.note(AsyncEvent::Reservation);
        }
        while !self.waiting.is_empty()
            && let Some(event) = self.controller.take_event()
        {
            let command = self.waiting.remove(0);
            self.link.complete(command, Status::SUCCESS, event.result().into(), output);
        }
    }

    fn set(&self, feature: Feature, value: u32, namespace: u32) -> Result<u32, Status> {
        let controller = &self.controller;
        match feature {
            // DULBE, error recovery: there are no deallocated blocks that fail to read.
            Feature::Stored(2) if value & 1 << 16 != 0 => Err(Status::INVALID_FIELD),
            Feature::Stored(stored) => {
                controller.store(stored, value);
                Ok(0)
            }
            Feature::Power if value & 0x1f == 0 => Ok(0),
            Feature::Power => Err(Status::INVALID_FIELD),
            Feature::WriteCache => {
                controller.enable_cache(value & 1 != 0);
                Ok(0)
            }
            Feature::Queues if value & 0xffff == 0xffff || value >> 16 == 0xffff => {
                Err(Status::INVALID_FIELD)
            }
            Feature::Queues => Ok(queues()),
            Feature::AsyncEvents => {
                controller.enable_events(value);
                Ok(0)
            }
            Feature::KeepAlive => {
                controller.set_keep_alive(value);
                Ok(0)
            }
            Feature::HostId => Err(Status::SEQUENCE_ERROR),
            Feature::ReservationMask => {
                let namespaces = controller.namespaces.as_ref().ok_or(Status::INVALID_FIELD)?;
                if namespace != ALL_NAMESPACES {
                    namespaces.nexus(namespace).ok_or(Status::INVALID_NAMESPACE)?;
                }
                namespaces.notices.set_mask(namespace, value);
                Ok(0)
            }
            // Hosts change it with their registration.
            Feature::ReservationPersistence => Err(Status::FEATURE_NOT_CHANGEABLE),
        }
    }

    fn get(&self, feature: Feature, namespace: u32) -> Result<Answer, Status> {
        let controller = &self.controller;
        let namespaces = || controller.namespaces.as_ref().ok_or(Status::INVALID_FIELD);
        let nexus = || namespaces()?.nexus(namespace).ok_or(Status::INVALID_NAMESPACE);
        Ok(Answer::Result(match feature {
            Feature::Stored(stored) => controller.stored(stored),
            Feature::Power => 0,
            Feature::WriteCache => u32::from(controller.is_cache_enabled()),
            Feature::Queues => queues(),
            Feature::AsyncEvents => controller.enabled_events(),
            Feature::KeepAlive => controller.keep_alive_ms(),
            Feature::ReservationMask => {
                nexus()?;
                namespaces()?.notices.mask(namespace)
            }
            Feature::ReservationPersistence => u32::from(nexus()?.keeps_reservations()),
            Feature::HostId => return Ok(Answer::Data(controller.host_id.to_vec())),
        }))
    }

    fn identify(&self, structure: u8, command_set: u8, namespace: u32) -> Result<Vec<u8>, Status> {
        let controller = &self.controller;
        if structure == 0x01 {
            return Ok(identify::controller(&identify::Controller {
                id: controller.id,
                subsystem: &controller.subsystem,
                serial: &serial(&controller.subsystem),
                revision: REVISION,
                is_discovery: controller.namespaces.is_none(),
                has_volatile_cache: controller.tell_volatile(),
            }));
        }
        let namespaces = controller.namespaces.as_ref().ok_or(Status::INVALID_FIELD)?;
        if matches!(structure, 0x05..=0x07) && command_set != identify::NVM_COMMAND_SET {
            return Err(Status::INVALID_FIELD);
        }
        match structure {
            0x02 | 0x07 if namespace >= 0xffff_fffe => Err(Status::INVALID_NAMESPACE),
            0x02 | 0x07 => Ok(identify::list(namespaces.all().into_iter(), namespace)),
            // Limits that depend on the command set: none are reported.
            0x06 => Ok(identify::empty()),
            0x00 | 0x03 | 0x05 | 0x08 => {
                if namespace == 0 || namespace > NAMESPACES {
                    return Err(Status::INVALID_NAMESPACE);
                }
                match (structure, namespaces.describe(namespace)) {
                    (0x03, None) => Err(Status::INVALID_NAMESPACE),
                    // An inactive namespace (Base 5.17.2.2).
                    (_, None) | (0x05, _) => Ok(identify::empty()),
                    (0x00, Some(of)) => Ok(identify::namespace(&of)),
                    (0x03, Some(of)) => Ok(identify::descriptors(&of)),
                    (_, Some(of)) => Ok(identify::independent(&of)),
                }
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn log(&self, page: u8, offset: u64, len: u32, retain: bool) -> Result<Vec<u8>, Status> {
        let controller = &self.controller;
        let data = match (page, &controller.namespaces) {
            (0x70, None) => discovery::log_page(&self.context, &controller.host, self.local),
            (0x05, namespaces) => log::effects(namespaces.is_none()),
            (0x01, _) => log::errors(controller.errors().0.into_iter()),
            (0x02, _) => log::health(controller.errors().1),
            (0x03, _) => log::firmware(REVISION),
            (0x80, Some(namespaces)) => namespaces.notices.page(retain),
            (0x04, Some(_)) => log::changed(controller.take_changed().into_iter()),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        // Beyond the end of a page the offset is invalid; the data after the end is zero.
        let from = usize::try_from(offset).ok().filter(|from| *from < data.len());
        let rest = data.get(from.ok_or(Status::INVALID_FIELD)?..).unwrap_or_default();
        if !retain {
            controller.unmask(page);
        }
        let mut out = rest[..rest.len().min(len as usize)].to_vec();
        out.resize(len as usize, 0);
        Ok(out)
    }
}

/// The number of I/O queues that a controller can have: submission and completion queues, 0's based.
fn queues() -> u32 {
    u32::from(MAX_QUEUES - 1) << 16 | u32::from(MAX_QUEUES - 1)
}

/// The serial number of a subsystem: all of its controllers have the same, also after a restart.
fn serial(subsystem: &str) -> String {
    Sha256::digest(subsystem).iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}
