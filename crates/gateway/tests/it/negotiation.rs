//! The negotiation with clients, well-behaved and hostile.

use std::sync::Arc;
use std::time::Duration;

use forebay_gateway::nbd::{End, Gateway, Settings};
use forebay_wire::nbd::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

use super::driver::{Client, Signs, info_data, meta_data};
use super::fake::{Fake, SIZE};

fn connect(fake: &Arc<Fake>) -> (DuplexStream, JoinHandle<Result<(), End>>) {
    let gateway = Gateway::new("node", fake.clone(), Settings::default());
    let (near, far) = tokio::io::duplex(64 << 10);
    (near, tokio::spawn(async move { gateway.serve(far, &Signs::default(), "client").await }))
}

async fn greeted(fake: &Arc<Fake>) -> (Client<DuplexStream>, JoinHandle<Result<(), End>>) {
    let (stream, served) = connect(fake);
    (Client::greet(stream).await, served)
}

#[tokio::test(start_paused = true)]
async fn exports_of_all_shards_are_listed_and_described() {
    let fake = Fake::new(1);
    let (mut client, _) = greeted(&fake).await;
    let listed = client.option(OPT_LIST, &[]).await;
    let names: Vec<&[u8]> = listed[..listed.len() - 1].iter().map(|(_, data)| &data[4..]).collect();
    assert_eq!(names, [b"a", b"b"]);
    for name in ["a", "b", "a@snapshot", "a"] {
        let described = client.option(OPT_INFO, &info_data(name, &[])).await;
        assert_eq!(described.last().unwrap().0, REP_ACK, "{name}");
    }
    let unknown = client.option(OPT_INFO, &info_data("c", &[])).await;
    assert_eq!(unknown[0].0, REP_ERR_UNKNOWN);
    assert!(String::from_utf8_lossy(&unknown[0].1).contains("'c'"));
    let default = client.option(OPT_GO, &info_data("", &[])).await;
    assert_eq!(default[0].0, REP_ERR_UNKNOWN);
    assert_eq!(client.option(OPT_STARTTLS, &[]).await[0].0, REP_ERR_UNSUP);
    assert_eq!(client.option(OPT_EXTENDED_HEADERS, &[]).await[0].0, REP_ERR_UNSUP);
    assert_eq!(client.option(OPT_STRUCTURED_REPLY, b"x").await[0].0, REP_ERR_INVALID);
    assert_eq!(client.option(77, b"x").await[0].0, REP_ERR_UNSUP);
    let (size, _) = client.go("b", &[]).await.unwrap();
    assert_eq!(size, SIZE);
    assert_eq!(client.request(CMD_READ, 0, 512, &[]).await, (0, vec![0; 512]));
}

#[tokio::test(start_paused = true)]
async fn options_take_effect_in_any_order() {
    let set = |export: &str| (OPT_SET_META_CONTEXT, meta_data(export, &[BASE_ALLOCATION]));
    let structured = || (OPT_STRUCTURED_REPLY, Vec::new());
    let info = |export: &str| (OPT_INFO, info_data(export, &[]));
    let malformed = || (OPT_SET_META_CONTEXT, b"x".to_vec());
    let list = |export: &str| (OPT_LIST_META_CONTEXT, meta_data(export, &[]));
    for (options, has_status) in [
        (vec![], false),
        (vec![structured()], false),
        (vec![info("a"), structured(), set("a")], true),
        (vec![set("a"), structured()], false),
        (vec![structured(), set("a"), info("b"), list("b")], true),
        (vec![structured(), set("a"), info("b"), set("b")], false),
        (vec![structured(), set("a"), malformed()], false),
        (vec![structured(), set("b"), set("a"), info("a")], true),
        (vec![structured(), info("b"), set("a"), info("b"), info("b")], true),
    ] {
        let fake = Fake::new(2);
        let (mut client, served) = greeted(&fake).await;
        for (option, data) in &options {
            client.option(*option, data).await;
            client.structured |= *option == OPT_STRUCTURED_REPLY;
        }
        let (_, flags) = client.go("a", &[]).await.unwrap();
        assert_eq!(flags & FLAG_SEND_DF != 0, client.structured, "{options:?}");
        let (error, _) = client.request(CMD_BLOCK_STATUS, 0, 4096, &[]).await;
        assert_eq!(error == 0, has_status, "{options:?}");
        assert_eq!(client.request(CMD_READ, 0, 9000, &[]).await, (0, vec![0; 9000]));
        drop(client);
        served.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_export_can_be_chosen_without_a_reply() {
    let fake = Fake::new(3);
    let (mut client, _) = greeted(&fake).await;
    assert_eq!(client.export_name("a").await.unwrap().0, SIZE);
    assert_eq!(client.request(CMD_WRITE, 512, 512, &[7; 512]).await.0, 0);
    assert_eq!(client.request(CMD_READ, 512, 512, &[]).await, (0, vec![7; 512]));
    let (mut client, served) = greeted(&fake).await;
    assert!(client.export_name("c").await.is_err());
    let end = served.await.unwrap().unwrap_err();
    assert!(end.to_string().contains("no volume or image"), "{end}");
    // A client that expects the padding gets it.
    let (mut stream, _served) = connect(&fake);
    stream.read_exact(&mut [0; 18]).await.unwrap();
    let mut message = 1_u32.to_be_bytes().to_vec();
    option(&mut message, OPT_EXPORT_NAME, &[b"a"]);
    stream.write_all(&message).await.unwrap();
    let mut reply = [1; 134];
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(reply[10..], [0; 124]);
    let (mut client, served) = greeted(&fake).await;
    assert_eq!(client.option(OPT_ABORT, &[]).await, [(REP_ACK, vec![])]);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn hostile_clients_are_disconnected() {
    let fake = Fake::new(4);
    let send = async |bytes: &[u8]| {
        let (mut stream, served) = connect(&fake);
        // The client may be disconnected while it sends.
        let _ = stream.write_all(bytes).await;
        served.await.unwrap().unwrap_err()
    };
    let flags = 3_u32.to_be_bytes();
    let huge =
        [&flags[..], &OPTION_MAGIC.to_be_bytes(), &3_u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    assert!(matches!(send(b"GET / HTTP/1.1\r\n\r\n").await, End::Protocol(_)));
    assert!(matches!(send(&[&flags[..], b"GET / HTTP/1.1\r\n\r\n"].concat()).await, End::Protocol(_)));
    assert!(matches!(send(&huge).await, End::Protocol(_)));
    let mut many = flags.to_vec();
    (0..2000).for_each(|_| option(&mut many, OPT_INFO, &[&info_data("c", &[])]));
    let (stream, served) = connect(&fake);
    let (mut from, mut to) = tokio::io::split(stream);
    let reader = tokio::spawn(async move { while from.read_u8().await.is_ok() {} });
    let _ = to.write_all(&many).await;
    assert!(matches!(served.await.unwrap(), Err(End::TooManyOptions)));
    reader.await.unwrap();
    let (mut client, served) = greeted(&fake).await;
    client.go("a", &[]).await.unwrap();
    client.stream.write_all(&[7; 28]).await.unwrap();
    assert!(matches!(served.await.unwrap(), Err(End::Protocol(_))));
}

#[tokio::test(start_paused = true)]
async fn slow_clients_are_disconnected() {
    let fake = Fake::new(5);
    let (mut stream, mut served) = connect(&fake);
    for byte in 3_u32.to_be_bytes() {
        stream.write_all(&[byte]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut served).await.is_err());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(matches!(served.await.unwrap(), Err(End::Slow(_))));
}

#[tokio::test(start_paused = true)]
async fn a_long_write_is_skipped_and_refused() {
    let fake = Fake::new(6);
    let (mut client, _served) = greeted(&fake).await;
    client.set_structured().await;
    client.go("a", &[]).await.unwrap();
    let len = MAX_PAYLOAD + 1;
    let (error, _) = client.request(CMD_WRITE, 0, len, &vec![1; len as usize]).await;
    assert_eq!(error, ErrorCode::Inval as u32);
    assert_eq!(client.request(CMD_READ, 0, 512, &[]).await, (0, vec![0; 512]));
    assert_ne!(client.request(CMD_READ, 0, u32::MAX, &[]).await.0, 0);
    assert_ne!(client.request(CMD_READ, u64::MAX, u32::MAX, &[]).await.0, 0);
    assert_ne!(client.request(CMD_WRITE, u64::MAX, 512, &[1; 512]).await.0, 0);
    assert_ne!(client.request(999, 0, 512, &[]).await.0, 0);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_cannot_be_reached_is_reported() {
    let fake = Fake::new(7);
    fake.faults.refuse.store(1, std::sync::atomic::Ordering::Relaxed);
    let (mut client, _served) = greeted(&fake).await;
    let begin = tokio::time::Instant::now();
    let (kind, text) = client.go("a", &[]).await.unwrap_err();
    assert_eq!(kind, REP_ERR_POLICY);
    assert!(text.contains("cannot be reached"), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(21));
    fake.faults.refuse.store(0, std::sync::atomic::Ordering::Relaxed);
    client.go("a", &[]).await.unwrap();
}
