//! Execution of an admitted command.

use std::sync::atomic::Ordering::Relaxed;

use forebay_engine::Result;
use forebay_wire::scsi::{
    Request, ReserveOut, ReserveParameters, Sense, SenseKey, Status, VpdPage, capacity10, capacity16, codes,
    copy_parameters, mode_select, mode_sense, reports_cache, target_port_groups, task_management_functions,
};

use super::attention::UnitAttention;
use super::describe;
use super::nexus::Nexus;
use super::port::Port;
use super::reserve::{Effects, HostChange, Refusal, Reservations};
use super::response::Response;
use crate::plane::Served;

/// The page of vital product data that identifies a unit.
const IDENTIFICATION: u8 = 0x83;

impl Nexus {
    /// Executes a command that passed [`admit`](Self::admit), with the data that the initiator sent for it.
    /// The data of the response is cut to the allocation length.
    pub async fn perform(&self, request: &Request, data_out: &[u8]) -> Response {
        if self.is_withdrawn() {
            return self.cleared();
        }
        if let Err(sense) = request.accepts(data_out.len() as u64) {
            return self.check(&sense);
        }
        let done = self.execute(request, data_out).await;
        self.unit.note_room();
        done.unwrap_or_else(|error| self.failed(&error))
    }

    /// Ends a WRITE whose data is in the write buffers ([`DiskHandle::try_write_durably`]).
    ///
    /// [`DiskHandle::try_write_durably`]: forebay_engine::DiskHandle::try_write_durably
    pub async fn end_write(&self, fua: bool) -> Response {
        let done = self.disk().finish(self.durable(fua)).await;
        self.unit.note_room();
        self.answer(done)
    }

    /// How a command that has succeeded was served; `None` if it does not read, change or flush blocks.
    pub(crate) fn served(&self, request: &Request, response: &Response) -> Option<Served> {
        use Request::*;
        let change = |fua| Served::change(self.disk().is_durable(self.durable(fua)));
        match *request {
            _ if response.status != Status::Good => None,
            Read { .. } if response.is_from_store => Some(Served::Store),
            Read { .. } => Some(Served::Ram),
            Write { fua, .. } | OrWrite { fua, .. } | CompareAndWrite { fua, .. } => Some(change(fua)),
            WriteSame { .. } | Unmap { .. } => Some(change(false)),
            WriteAndVerify { .. } | SynchronizeCache { .. } => Some(Served::Durable),
            _ => None,
        }
    }

    async fn execute(&self, request: &Request, data_out: &[u8]) -> Result<Response> {
        use Request::*;
        // A parameter list has the length in the CDB; the initiator may have sent more.
        let parameters = |length: u32| &data_out[..length as usize];
        Ok(match *request {
            Read { offset, len } => self.read(offset, len).await,
            Write { offset, len, fua } => self.answer(self.write(offset, len, data_out, fua).await),
            WriteAndVerify { offset, len, compare } => {
                self.write_and_verify(offset, len, data_out, compare).await?
            }
            Verify { offset, len, check } => self.verify(offset, len, data_out, check).await?,
            OrWrite { offset, len, fua } => self.answer(self.or_write(offset, len, data_out, fua).await),
            CompareAndWrite { offset, fua, .. } => self.compare_and_write(offset, data_out, fua).await?,
            WriteSame { offset, len, unmap, .. } => {
                self.answer(self.write_same(offset, len, data_out, unmap).await)
            }
            Unmap { length } => self.unmap(parameters(length)).await?,
            GetLbaStatus { offset, allocation } => self.lba_status(offset, allocation).await?,
            PreFetch { offset, len } => self.answer(self.prefetch(offset, len).await),
            SynchronizeCache { .. } => self.answer(self.disk().flush().await),
            ExtendedCopy { length } => self.extended_copy(parameters(length)).await,
            PopulateToken { list, length } => self.populate_token(list, parameters(length)),
            WriteUsingToken { list, length } => self.write_using_token(list, parameters(length)).await,
            PersistentReserveOut { action, length } => self.reserve_out(action, parameters(length)).await?,
            ModeSelect { ten, length } => self.mode_select(ten, parameters(length)),
            _ => self.perform_immediate(request),
        })
    }

    /// Executes a command that needs no wait.
    fn perform_immediate(&self, request: &Request) -> Response {
        use Request::*;
        match *request {
            RequestSense { descriptor, allocation } => {
                let nothing = Sense::new(SenseKey::NoSense, codes::NO_ADDITIONAL_SENSE);
                let sense = self.member.take(false).map_or(nothing, UnitAttention::sense);
                Response::data(sense.encode(descriptor), allocation)
            }
            Inquiry { page, allocation } => self.inquiry(page, allocation),
            ReportLuns { select, allocation } => {
                let luns = self.owner.upgrade().map_or(Vec::new(), |session| session.luns());
                self.member.forget(UnitAttention::LunsChanged);
                describe::luns(select, &luns, allocation)
            }
            ReadCapacity10 => Response::data(capacity10(self.unit.blocks()), u32::MAX),
            ReadCapacity16 { allocation } => Response::data(capacity16(self.unit.blocks()), allocation),
            ModeSense { allocation, .. } => {
                let mode = self.unit.mode(self.settings.write_back);
                match mode_sense(request, &mode, self.is_read_only(), self.unit.blocks()) {
                    Ok(data) => {
                        if reports_cache(request) {
                            self.member.told_volatile.store(mode.write_back, Relaxed);
                        }
                        Response::data(data, allocation)
                    }
                    Err(sense) => self.check(&sense),
                }
            }
            PersistentReserveIn { action, allocation } => {
                let reservations = self.unit.reservations.lock();
                Response::data(reservations.report(action, |port| self.can_see(port)), allocation)
            }
            Reserve if self.unit.reserve(self.member.id) => Response::good(),
            Reserve => Response::conflict(),
            Release if !self.unit.reservations.lock().is_empty() => Response::conflict(),
            Release => {
                self.unit.release(self.member.id);
                Response::good()
            }
            CopyStatus { list, allocation } => self.copy_status(list, allocation),
            CopyParameters { allocation } => Response::data(copy_parameters(), allocation),
            TokenInformation { list, allocation } => self.token_information(list, allocation),
            TargetPortGroups { allocation } => {
                let groups = self.owner.upgrade().map_or(Vec::new(), |session| session.port_groups());
                Response::data(target_port_groups(&groups), allocation)
            }
            SupportedOpcodes { query, timeouts, allocation } => {
                describe::opcodes(query, timeouts, allocation).unwrap_or_else(|sense| self.check(&sense))
            }
            SupportedTaskManagement { extended, allocation } => {
                Response::data(task_management_functions(extended), allocation)
            }
            // TEST UNIT READY and START STOP UNIT succeed: a unit that is not ready was detected before.
            _ => Response::good(),
        }
    }

    fn inquiry(&self, page: Option<u8>, allocation: u32) -> Response {
        let port = self.port();
        let about = VpdPage {
            identity: *self.unit.identity(),
            port: port.identity(),
            volatile_cache: self.unit.is_cache_volatile(self.settings.write_back),
        };
        if page == Some(IDENTIFICATION) {
            self.member.set_unidentified(false);
        }
        describe::inquiry(page, &about, allocation).unwrap_or_else(|sense| self.check(&sense))
    }

    fn mode_select(&self, ten: bool, list: &[u8]) -> Response {
        let before = self.unit.mode(self.settings.write_back);
        match mode_select(list, ten, &before, self.unit.blocks()) {
            Ok(after) => {
                if after != before {
                    self.unit.set_mode(&after);
                    self.unit.notify_others(Some(self.member.id), UnitAttention::ModeChanged);
                }
                Response::good()
            }
            Err(sense) => self.check(&sense),
        }
    }

    /// Executes PERSISTENT RESERVE OUT, one command at a time. The change is stored with the disk before it
    /// takes effect.
    async fn reserve_out(&self, action: ReserveOut, list: &[u8]) -> Result<Response> {
        let parameters = match ReserveParameters::decode(list) {
            Ok(parameters) => parameters,
            Err(sense) => return Ok(self.check(&sense)),
        };
        self.change_reservations(|state| state.change(self.port(), action, &parameters)).await
    }

    /// Executes a change of reservations that an NVMe host requests, as one of PERSISTENT RESERVE OUT.
    pub async fn reserve_for_host(&self, change: &HostChange) -> Response {
        if self.is_withdrawn() {
            return self.cleared();
        }
        let done = self.change_reservations(|state| state.change_by_host(self.port(), change)).await;
        done.unwrap_or_else(|error| self.failed(&error))
    }

    /// The data of a Reservation Report of NVMe, of `len` bytes.
    pub fn report_to_host(&self, len: u32) -> Response {
        let mut data = self.unit.reservations.lock().report_to_host(|port| self.can_see(port));
        data.resize(len as usize, 0);
        Response::data(data, len)
    }

    /// Whether registrations and reservation of the unit persist through power loss.
    pub fn keeps_reservations(&self) -> bool {
        self.unit.reservations.lock().keep
    }

    /// Changes registrations and reservation.
    async fn change_reservations(
        &self,
        change: impl FnOnce(&mut Reservations) -> std::result::Result<Effects, Refusal>,
    ) -> Result<Response> {
        // A revocation waits for this command. The command itself waits for the commands of other nexuses
        // only later: two commands that abort each other must not wait for ever.
        let underway = self.member.gate.enter();
        let mut kept = self.unit.kept.lock().await;
        let mut new = self.unit.reservations.lock().clone();
        let effects = match change(&mut new) {
            Ok(effects) => effects,
            Err(Refusal::Conflict) => return Ok(Response::conflict()),
            Err(Refusal::Check(sense)) => return Ok(self.check(&sense)),
        };
        self.unit.keep_reservations(&mut kept, new).await?;
        drop((kept, underway));
        self.unit.notify_ports(&effects.attentions);
        let aborted = |port: &Port| effects.aborted.iter().any(|other| other.is(port));
        self.unit.abort_others(self.member.id, aborted).await;
        Ok(Response::good())
    }
}
