//! The limits of NBD connections, with the relations between them.

use std::time::Duration;

use forebay_wire::nbd::MAX_PAYLOAD;

/// Maximum number of requests of one connection that are not answered: several times the depth at which
/// clients work (QEMU 16, nbdcopy 64, the Linux driver 128). When it is reached, the client is not read from.
pub(super) const MAX_REQUESTS: usize = 1024;
/// Memory of the unanswered requests of one connection and of their replies, in bytes: 128 requests of 256
/// KiB, or one request of the maximum length, which has to fit.
pub(super) const MAX_HELD: usize = MAX_PAYLOAD as usize + REQUEST;
/// The part of this memory that each connection has without asking for it: 32 requests of 4 KiB. So no client
/// with small requests waits for the memory of other clients.
pub(super) const OWN: usize = 160 << 10;
/// Memory of a request without its data, in bytes; a short reply is included.
pub(super) const REQUEST: usize = 512;
/// Memory of the reply to a block status request: 8192 descriptors.
pub(super) const BLOCK_STATUS_REPLY: usize = 64 << 10;
/// Minimum memory of all connections together, in addition to the memory that each connection has without a
/// request.
pub(super) const LEAST_MEMORY: usize = 2 * MAX_HELD;

/// Bytes that are received from a client in one call. Payloads that are longer are received in place.
pub(super) const INPUT: usize = 32 << 10;
/// Bytes that are received from the owner in one call, unless a reply is longer.
pub(super) const REPLIES: usize = 32 << 10;
/// Bytes of replies at which the owner is not read from until the client has received some.
pub(super) const UNSENT: usize = 256 << 10;
/// Bytes that are sent to the owner in one call, and the minimum length of a payload that is sent in place.
pub(super) const GATHER: usize = 64 << 10;
pub(super) const IN_PLACE: usize = 16 << 10;
/// Maximum length of a payload of a reply that is not data of a read: 8192 block descriptors and some more.
pub(super) const MAX_OTHER_REPLY: usize = 72 << 10;

/// Time that a client has to choose an export: the default of a server. Time in which the client waits for an
/// answer does not count.
pub(super) const NEGOTIATION: Duration = Duration::from_secs(20);
/// Number of options about exports that a client can send, and of further ones for each export that was
/// listed, as on a server.
pub(super) const OPTIONS: usize = 64;
pub(super) const OPTIONS_PER_EXPORT: usize = 8;
/// Bytes of a list that are collected before they are sent.
pub(super) const LIST_CHUNK: usize = 16 << 10;
/// Time for the directory of names to answer.
pub(super) const LOOK_UP: Duration = Duration::from_secs(10);
/// Time in which an option is repeated if the owner of its export does not answer.
pub(super) const OWNER_PATIENCE: Duration = Duration::from_secs(20);

/// Time for an owner to answer one option. A server ends earlier connections, and resets a desktop, before it
/// answers: at most 10 seconds for each of these steps.
pub(super) const OPTION_ANSWER: Duration = Duration::from_secs(45);
/// Maximum number of replies to one option, and of their bytes.
pub(super) const OPTION_REPLIES: usize = 64;
pub(super) const OPTION_REPLY_BYTES: usize = 128 << 10;

/// First and longest pause before the owner is connected again.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// An outage is over when the new owner has answered a request, or has served the connection for this time.
pub(super) const STEADY: Duration = Duration::from_secs(5);
/// Time in which a client, or its host, has to prove that it is connected, and the interval of checks.
pub(super) const PROOF: Duration = Duration::from_secs(5);
pub(super) const PROOF_STEP: Duration = Duration::from_millis(20);
/// Time for the owner to close the connection of a client that disconnects.
pub(super) const LEAVE: Duration = Duration::from_secs(10);
/// Time for the last requests of a client that has closed its side without `NBD_CMD_DISC`; then its stream
/// to the owner is dropped, which ends it also in front of requests that are still on their way. It is less
/// than the time after which an owner trusts an earlier connection next to a new client of the disk.
pub(super) const LAST_REQUESTS: Duration = Duration::from_millis(100);
/// Time after which a client is disconnected if it neither receives its replies nor completes its request,
/// while other clients wait for the memory that it holds.
pub(super) const STALL: Duration = Duration::from_secs(30);

const _: () = {
    assert!(MAX_HELD >= MAX_PAYLOAD as usize + REQUEST);
    assert!(LEAST_MEMORY >= MAX_HELD);
    assert!(OWN >= BLOCK_STATUS_REPLY + REQUEST);
    assert!(MAX_OTHER_REPLY > BLOCK_STATUS_REPLY);
    assert!(MAX_REQUESTS <= 1 << 16);
};
