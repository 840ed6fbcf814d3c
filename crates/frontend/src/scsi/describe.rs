//! Responses that describe a unit, even if another server has its blocks, or that state that there is no
//! unit.

use forebay_wire::scsi::{
    OpcodeQuery, Request, Rules, Sense, VpdPage, codes, opcodes_all, opcodes_one, report_luns,
    standard_inquiry, vpd_page,
};

use super::response::Response;

/// Revision in INQUIRY data, a field of four characters.
const REVISION: &str = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// The response to INQUIRY for an existing unit: the standard data, or a page.
pub(super) fn inquiry(page: Option<u8>, about: &VpdPage<'_>, allocation: u32) -> Result<Response, Sense> {
    let data = match page {
        None => standard_inquiry(true, REVISION),
        Some(code) => vpd_page(code, about).ok_or(Sense::cdb(2))?,
    };
    Ok(Response::data(data, allocation))
}

/// The response to REPORT LUNS. There are no well-known units, which is what `select` 1 requests.
pub(super) fn luns(select: u8, luns: &[u16], allocation: u32) -> Response {
    Response::data(report_luns(if select == 1 { &[] } else { luns }), allocation)
}

/// The response to REPORT SUPPORTED OPERATION CODES.
pub(super) fn opcodes(query: OpcodeQuery, timeouts: bool, allocation: u32) -> Result<Response, Sense> {
    let data = match query {
        OpcodeQuery::All => opcodes_all(timeouts),
        OpcodeQuery::One { options, opcode, action } => opcodes_one(options, opcode, action, timeouts)?,
    };
    Ok(Response::data(data, allocation))
}

/// The response to a command for a LUN without a unit. `luns` are the LUNs that the initiator can use.
pub fn absent(cdb: &[u8], luns: &[u16]) -> Response {
    let missing = Sense::illegal(codes::LOGICAL_UNIT_NOT_SUPPORTED);
    match Request::decode(cdb, &Rules { blocks: 0 }) {
        Ok(Request::Inquiry { page: None, allocation }) => {
            Response::data(standard_inquiry(false, REVISION), allocation)
        }
        Ok(Request::ReportLuns { select, allocation }) => self::luns(select, luns, allocation),
        Ok(Request::RequestSense { descriptor, allocation }) => {
            Response::data(missing.encode(descriptor), allocation)
        }
        _ => Response::check(&missing, false),
    }
}
