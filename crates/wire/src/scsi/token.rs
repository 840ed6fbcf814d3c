//! Copies by token (SPC-4, "ROD copy operations"; SBC-3, "POPULATE TOKEN command" and following): parameter
//! lists, the token itself, and RECEIVE ROD TOKEN INFORMATION.

use super::data::ranges;
use super::*;

/// Bytes of a token.
pub const TOKEN: usize = 512;
/// ROD type of the tokens of this server: a point in time copy, valid until the first change.
pub const ROD_TYPE_CHANGE_VULNERABLE: u32 = 0x0080_0001;
/// ROD type of the token that represents zeroes, which any initiator can create.
pub const ROD_TYPE_ZERO: u32 = 0xffff_0001;
/// ROD type of a request that leaves the choice to the server.
const ROD_TYPE_ANY: u32 = 0;
/// ROD type of a request for any point in time copy.
const ROD_TYPE_ANY_POINT: u32 = 0x0080_ffff;

/// The identity of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Number of the token.
    pub identifier: u64,
    /// An unpredictable secret.
    pub secret: [u8; 32],
}

impl Token {
    /// The token for `bytes` bytes of a unit.
    pub fn encode(&self, unit: &Identity, bytes: u64) -> Vec<u8> {
        let mut token = Vec::with_capacity(TOKEN);
        token.put32(ROD_TYPE_CHANGE_VULNERABLE);
        token.put16(0);
        token.put16(TOKEN as u16 - 8);
        token.put64(self.identifier);
        // Creator logical unit descriptor: an identification descriptor.
        token.extend_from_slice(&[0xe4, 0, 0, 0, 1, 3, 0, 8]);
        token.extend_from_slice(&unit.naa());
        token.zeroes(14);
        token.put16(BLOCK as u16);
        // Number of bytes represented, as 128 bits.
        token.put64(0);
        token.put64(bytes);
        token.zeroes(32);
        // The device type specific field is the block length.
        token.put32(BLOCK);
        token.zeroes(28);
        token.extend_from_slice(&self.secret);
        token.zeroes(TOKEN - token.len());
        token
    }

    fn decode(token: &[u8]) -> Option<Token> {
        let ours = token.get32(0) == ROD_TYPE_CHANGE_VULNERABLE;
        Some(Token { identifier: token.get64(8), secret: array(token, 128)? }).filter(|_| ours)
    }
}

/// Parameter list of POPULATE TOKEN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PopulateList {
    /// Inactivity timeout of the token, in seconds.
    pub timeout: u32,
    /// The ranges that the token represents, in order.
    pub ranges: Vec<BlockRange>,
}

/// Parameter list of WRITE USING TOKEN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteList {
    /// The token; `None` for the token that represents zeroes.
    pub token: Option<Token>,
    /// Delete the token afterwards.
    pub delete: bool,
    /// Start within the data that the token represents, in bytes.
    pub offset: u64,
    /// The ranges to write.
    pub ranges: Vec<BlockRange>,
}

impl PopulateList {
    /// Decodes a list for the unit that it is sent to.
    ///
    /// # Errors
    /// The list is truncated, has no or too many ranges or blocks, ranges that overlap or end beyond the
    /// unit, or an unsupported ROD type.
    pub fn decode(list: &[u8], rules: &Rules) -> Result<PopulateList, Sense> {
        if list.len() < 16 || usize::from(list.get16(0)) + 2 > list.len() {
            return Err(Sense::length());
        }
        // RTV: the ROD type field is valid.
        let kind = if list[2] & 0x02 != 0 { list.get32(8) } else { ROD_TYPE_ANY };
        if ![ROD_TYPE_ANY, ROD_TYPE_ANY_POINT, ROD_TYPE_CHANGE_VULNERABLE].contains(&kind) {
            return Err(Sense::parameter(8));
        }
        let timeout = match list.get32(4) {
            0 => TOKEN_TIMEOUT,
            seconds if seconds <= TOKEN_TIMEOUT_MAX => seconds,
            _ => return Err(Sense::parameter(4)),
        };
        Ok(PopulateList { timeout, ranges: token_ranges(list, 14, rules)? })
    }
}

impl WriteList {
    /// Decodes a list for the unit that it is sent to.
    ///
    /// # Errors
    /// As [`PopulateList::decode`]; a token that this server cannot have created.
    pub fn decode(list: &[u8], rules: &Rules) -> Result<WriteList, Sense> {
        const RANGES: usize = 16 + TOKEN + 6;
        if list.len() < RANGES + 2 || usize::from(list.get16(0)) + 2 > list.len() {
            return Err(Sense::length());
        }
        let token = &list[16..16 + TOKEN];
        let token = match token.get32(0) {
            ROD_TYPE_ZERO => None,
            _ => Some(Token::decode(token).ok_or(Sense::illegal(codes::TOKEN_UNKNOWN))?),
        };
        let offset = list.get64(8).checked_mul(BLOCK.into()).ok_or(Sense::parameter(8))?;
        let ranges = token_ranges(list, RANGES, rules)?;
        Ok(WriteList { token, delete: list[2] & 0x02 != 0, offset, ranges })
    }
}

/// The ranges after the length field at `at`.
fn token_ranges(list: &[u8], at: usize, rules: &Rules) -> Result<Vec<BlockRange>, Sense> {
    let bytes = list.get(at + 2..).and_then(|rest| rest.get(..usize::from(list.get16(at))));
    let bytes = bytes.ok_or(Sense::length())?;
    if bytes.len() < 16 || bytes.len() / 16 > usize::from(TOKEN_RANGES_MAX) {
        return Err(Sense::parameter(at as u16));
    }
    let ranges = ranges(bytes, rules)?;
    let total: u64 = ranges.iter().map(|r| r.len).sum();
    if total > TOKEN_BLOCKS_MAX * u64::from(BLOCK) {
        return Err(Sense::parameter(at as u16));
    }
    let mut order: Vec<_> = ranges.iter().filter(|r| r.len > 0).collect();
    order.sort_by_key(|r| r.offset);
    if order.windows(2).any(|pair| pair[0].offset + pair[0].len > pair[1].offset) {
        return Err(Sense::parameter(at as u16 + 2));
    }
    Ok(ranges)
}

/// The result of a POPULATE TOKEN or WRITE USING TOKEN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenOutcome {
    /// Service action of the command.
    pub action: u8,
    /// Why the command failed; `None` if it succeeded.
    pub failure: Option<Sense>,
    /// Bytes that the token represents, or that were written.
    pub bytes: u64,
    /// The created token.
    pub token: Option<Vec<u8>>,
}

/// RECEIVE ROD TOKEN INFORMATION data.
pub fn token_information(outcome: &TokenOutcome) -> Vec<u8> {
    let sense = outcome.failure.map_or(Vec::new(), |sense| sense.encode(true));
    let mut data = vec![0, 0, 0, 0, outcome.action, if outcome.failure.is_none() { 1 } else { 2 }];
    data.put16(1); // Operation counter.
    data.put32(u32::MAX); // Estimated status update delay: unspecified.
    let status = if outcome.failure.is_none() { Status::Good } else { Status::CheckCondition };
    data.extend_from_slice(&[status as u8, sense.len() as u8, sense.len() as u8, 0xf1]);
    data.put64(outcome.bytes / u64::from(BLOCK));
    data.zeroes(8);
    data.extend_from_slice(&sense);
    let token = outcome.token.as_deref().unwrap_or(&[]);
    data.put32(if token.is_empty() { 0 } else { 2 + token.len() as u32 });
    if !token.is_empty() {
        data.put16(0);
        data.extend_from_slice(token);
    }
    set_length(&mut data, 0, 4);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { blocks: 1000 };

    fn with_ranges(mut list: Vec<u8>, ranges: &[(u64, u32)]) -> Vec<u8> {
        list.put16(16 * ranges.len() as u16);
        for (lba, blocks) in ranges {
            list.put64(*lba);
            list.put32(*blocks);
            list.put32(0);
        }
        set_length(&mut list, 0, 2);
        list
    }

    #[test]
    fn populate() {
        let list = |ranges: &[(u64, u32)]| with_ranges(vec![0; 14], ranges);
        let found = PopulateList::decode(&list(&[(8, 8), (0, 4)]), &RULES).unwrap();
        assert_eq!(found.timeout, TOKEN_TIMEOUT);
        assert_eq!(
            found.ranges,
            [BlockRange { offset: 4096, len: 4096 }, BlockRange { offset: 0, len: 2048 }]
        );
        for bad in [&[][..], &[(0, 8), (7, 1)], &[(0, 1); 65]] {
            let sense = PopulateList::decode(&list(bad), &RULES).unwrap_err();
            assert_eq!(sense.code, codes::INVALID_FIELD_IN_PARAMETER_LIST);
        }
        let beyond = PopulateList::decode(&list(&[(990, 11)]), &RULES);
        assert_eq!(beyond, Err(Sense::illegal(codes::LBA_OUT_OF_RANGE)));
        let whole = list(&[(8, 8), (0, 4)]);
        for len in 0..whole.len() {
            assert_eq!(PopulateList::decode(&whole[..len], &RULES), Err(Sense::length()));
        }
    }

    #[test]
    fn an_encoded_token_is_decoded_from_a_list() {
        let token = Token { identifier: 0x0102, secret: [7; 32] };
        let bytes = token.encode(&Identity { uuid: [3; 16] }, 4096);
        assert_eq!(bytes.len(), TOKEN);
        let mut head = vec![0, 0, 2, 0, 0, 0, 0, 0];
        head.put64(3);
        head.extend_from_slice(&bytes);
        head.zeroes(6);
        let list = with_ranges(head, &[(1, 2)]);
        let found = WriteList::decode(&list, &RULES).unwrap();
        assert_eq!((found.token, found.delete, found.offset), (Some(token), true, 1536));
        let mut zero = list.clone();
        zero[16..20].copy_from_slice(&ROD_TYPE_ZERO.to_be_bytes());
        assert_eq!(WriteList::decode(&zero, &RULES).unwrap().token, None);
        let mut foreign = list;
        foreign[17] ^= 1;
        assert_eq!(WriteList::decode(&foreign, &RULES), Err(Sense::illegal(codes::TOKEN_UNKNOWN)));
    }

    #[test]
    fn information() {
        let outcome = TokenOutcome { action: 0x10, failure: None, bytes: 4096, token: Some(vec![1; TOKEN]) };
        let data = token_information(&outcome);
        assert_eq!(data.len(), 32 + 4 + 2 + TOKEN);
        assert_eq!(data[..6], [0, 0, 2, 0x22, 0x10, 1]);
        assert_eq!(data[15..24], [0xf1, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(data[32..36], [0, 0, 2, 2]);
        let failure = Some(Sense::illegal(codes::TOKEN_REVOKED));
        let failed = token_information(&TokenOutcome { action: 0x11, failure, bytes: 0, token: None });
        assert_eq!((failed[5], failed[13], failed.len()), (2, 8, 44));
    }
}
