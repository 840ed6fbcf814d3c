//! A cluster in memory: one owner with disks, whose connections break.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_gateway::{BoxFuture, NbdClient, Shards, Stream};
use forebay_wire::nbd::{self, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::cut::Cut;
use super::driver::SECTOR;
use super::random::Random;

/// Size of each disk.
pub const SIZE: u64 = 1 << 20;
/// Maximum bytes of a chunk.
const CHUNK: u32 = 4096;

/// What an owner does.
#[derive(Debug)]
pub struct Faults {
    /// Connections break after at most this number of bytes; 0 if they do not.
    pub cut: AtomicU64,
    /// One of this number of connections is refused; 0 if none is.
    pub refuse: AtomicU64,
    /// One of this number of requests is answered with `ESHUTDOWN`; 0 if none is.
    pub stop: AtomicU64,
    /// Requests of earlier connections are executed although the client is connected again.
    pub is_unfenced: AtomicBool,
    /// No answers.
    pub is_silent: AtomicBool,
}

/// One disk.
pub struct Disk {
    pub contents: Mutex<Vec<u8>>,
    pub info: Mutex<RelayInfo>,
    pub size: AtomicU64,
    /// Why clients are refused: type of the reply, and text.
    pub refused: Mutex<Option<(u32, String)>>,
    /// The generation of each client that was attached last; requests of earlier ones are not executed.
    attached: Mutex<HashMap<String, u64>>,
    /// Number of `NBD_CMD_DISC` that were received.
    pub disconnected: AtomicU64,
    /// Clients that connected: identity and generation.
    pub clients: Mutex<Vec<(String, u64)>>,
    /// The ages of these clients.
    pub ages_ms: Mutex<Vec<u64>>,
}

/// The cluster.
pub struct Fake {
    pub disks: BTreeMap<&'static str, (u32, Arc<Disk>)>,
    pub faults: Arc<Faults>,
    random: Mutex<Random>,
    /// Wakes connections so that they send [`DISMISSED`].
    pub dismiss: tokio::sync::watch::Sender<bool>,
}

impl Fake {
    pub fn new(seed: u64) -> Arc<Fake> {
        let disk = |n: u8| {
            let info = RelayInfo {
                uuid: [n; 16],
                is_durable: true,
                memory: 1,
                newer_client_ms: None,
                opening: 1,
                replacements: 3,
            };
            Arc::new(Disk {
                contents: Mutex::new(vec![0; SIZE as usize]),
                info: Mutex::new(info),
                size: AtomicU64::new(SIZE),
                refused: Mutex::default(),
                attached: Mutex::default(),
                disconnected: AtomicU64::new(0),
                clients: Mutex::default(),
                ages_ms: Mutex::default(),
            })
        };
        let none = || AtomicU64::new(0);
        let faults = Faults {
            cut: none(),
            refuse: none(),
            stop: none(),
            is_unfenced: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        };
        Arc::new(Fake {
            disks: BTreeMap::from([("a", (1, disk(1))), ("b", (2, disk(2)))]),
            faults: Arc::new(faults),
            random: Mutex::new(Random(seed)),
            dismiss: tokio::sync::watch::Sender::new(false),
        })
    }

    pub fn disk(&self, name: &str) -> &Arc<Disk> {
        &self.disks[name].1
    }

    fn once_in(random: &mut Random, n: &AtomicU64) -> bool {
        let n = n.load(Relaxed);
        n > 0 && random.once_in(n)
    }
}

impl Shards for Fake {
    fn locate<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
        assert!(!name.contains('@'));
        Box::pin(async move { Ok(self.disks.get(name).map(|(shard, _)| *shard)) })
    }

    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>> {
        Box::pin(async { Ok(self.disks.keys().map(|name| (*name).to_owned()).collect()) })
    }

    fn connect_nbd<'a>(&'a self, shard: u32, client: &'a NbdClient) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(async move {
            let (mut random, is_refused) = {
                let mut random = self.random.lock().unwrap();
                let is_refused = Fake::once_in(&mut random, &self.faults.refuse);
                (Random(random.next()), is_refused)
            };
            if is_refused {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = tokio::io::duplex(1 + random.below(100_000) as usize);
            let disks = self.disks.iter().filter(|(_, (of, _))| *of == shard);
            let disks = disks.map(|(name, (_, disk))| (*name, disk.clone())).collect();
            let owner = Owner {
                disks,
                client: client.clone(),
                faults: self.faults.clone(),
                random: Random(random.next()),
                dismiss: self.dismiss.subscribe(),
            };
            tokio::spawn(owner.serve(far));
            let (cut, part) = (self.faults.cut.load(Relaxed), Random(random.next()));
            Ok(match cut {
                0 => Box::new(Cut::never(near, part)) as Stream,
                longest => Box::new(Cut::new(near, part, longest)),
            })
        })
    }
}

/// One connection of an owner.
struct Owner {
    disks: BTreeMap<&'static str, Arc<Disk>>,
    client: NbdClient,
    faults: Arc<Faults>,
    random: Random,
    dismiss: tokio::sync::watch::Receiver<bool>,
}

impl Owner {
    async fn serve(mut self, mut stream: DuplexStream) {
        let mut out = Vec::new();
        nbd::greeting(&mut out);
        let (mut decoder, mut input) = (OptionDecoder::new(), Vec::new());
        let (mut structured, mut context) = (false, None);
        let opened = loop {
            let (used, event) = decoder.next(&input).unwrap();
            input.drain(..used);
            let event = match event {
                OptionEvent::NeedMore => {
                    if stream.write_all(&out).await.is_err() {
                        return;
                    }
                    out.clear();
                    match stream.read_buf(&mut input).await {
                        Ok(1..) => continue,
                        _ => return,
                    }
                }
                OptionEvent::ClientFlags { .. } => continue,
                event => event,
            };
            let OptionEvent::Option(request) = event else {
                panic!("a gateway sends valid options: {event:?}")
            };
            let option = request.number();
            match request {
                OptionRequest::StructuredReply => structured = true,
                OptionRequest::Info(info) | OptionRequest::Go(info) => {
                    let volume = info.name.split('@').next().unwrap();
                    let Some(disk) = self.disks.get(volume).cloned() else {
                        nbd::option_error(&mut out, option, REP_ERR_UNKNOWN, "no such export");
                        continue;
                    };
                    if let Some((kind, text)) = &*disk.refused.lock().unwrap() {
                        nbd::option_error(&mut out, option, *kind, text);
                        continue;
                    }
                    let flags = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | if structured { FLAG_SEND_DF } else { 0 };
                    nbd::option_info_export(&mut out, option, disk.size.load(Relaxed), flags);
                    if option == OPT_GO {
                        nbd::option_info_relay(&mut out, option, &disk.info.lock().unwrap());
                        disk.clients.lock().unwrap().push((self.client.id.clone(), self.client.generation));
                        disk.ages_ms.lock().unwrap().push(self.client.age_ms);
                        let NbdClient { id, generation, .. } = self.client.clone();
                        disk.attached.lock().unwrap().insert(id, generation);
                        nbd::option_ack(&mut out, option);
                        if stream.write_all(&out).await.is_err() {
                            return;
                        }
                        let client = self.client.clone();
                        break Opened { disk, client, structured, has_context: context == Some(info.name) };
                    }
                }
                OptionRequest::SetMetaContext(meta) | OptionRequest::ListMetaContext(meta) => {
                    assert!(structured);
                    nbd::option_meta_context(&mut out, option, BASE_ALLOCATION_ID, BASE_ALLOCATION);
                    context = Some(meta.export);
                }
                other => panic!("a gateway does not send {other:?}"),
            }
            nbd::option_ack(&mut out, option);
        };
        self.transmit(stream, input, opened).await;
    }

    async fn transmit(&mut self, stream: DuplexStream, mut input: Vec<u8>, opened: Opened) {
        let (mut from, mut to) = tokio::io::split(stream);
        let (replies, mut queue) = mpsc::unbounded_channel::<Vec<u8>>();
        let writer = tokio::spawn(async move {
            while let Some(reply) = queue.recv().await {
                if to.write_all(&reply).await.is_err() {
                    return;
                }
            }
            let _ = to.shutdown().await;
        });
        let rules = Rules {
            size: opened.disk.size.load(Relaxed),
            read_only: false,
            structured: opened.structured,
            block_status: opened.has_context,
        };
        let (mut decoder, opened) = (RequestDecoder::new(), Arc::new(opened));
        loop {
            let (used, step) = decoder.next(&rules, &input).unwrap();
            match step {
                Step::NeedMore { .. } => {
                    input.drain(..used);
                    tokio::select! {
                        read = from.read_buf(&mut input) => {
                            if !matches!(read, Ok(1..)) {
                                break;
                            }
                        }
                        _ = self.dismiss.wait_for(|dismiss| *dismiss) => {
                            let _ = replies.send(nbd::simple_reply(DISMISSED, Some(ErrorCode::Perm)).to_vec());
                            break;
                        }
                    }
                    continue;
                }
                Step::Refused { cookie, refusal } => {
                    let _ = replies.send(error(&opened, cookie, refusal.code()));
                }
                Step::Request(Request { command: Command::Disconnect, .. }) => {
                    opened.disk.disconnected.fetch_add(1, Relaxed);
                    break;
                }
                Step::Request(request) => {
                    if self.faults.is_silent.load(Relaxed) {
                        std::future::pending::<()>().await;
                    }
                    if Fake::once_in(&mut self.random, &self.faults.stop) {
                        let _ = replies.send(error(&opened, request.cookie, ErrorCode::Shutdown));
                        break;
                    }
                    let job = Job {
                        cookie: request.cookie,
                        command: request.command,
                        payload: request.payload.to_vec(),
                        opened: opened.clone(),
                        random: Random(self.random.next()),
                        is_unfenced: self.faults.is_unfenced.load(Relaxed),
                    };
                    tokio::spawn(job.run(replies.clone()));
                }
            }
            input.drain(..used);
        }
        drop(replies);
        let _ = writer.await;
    }
}

/// An export that is open.
struct Opened {
    disk: Arc<Disk>,
    client: NbdClient,
    structured: bool,
    has_context: bool,
}

fn error(opened: &Opened, cookie: u64, code: ErrorCode) -> Vec<u8> {
    if !opened.structured {
        return nbd::simple_reply(cookie, Some(code)).to_vec();
    }
    let mut reply = Vec::new();
    nbd::error_chunk(&mut reply, cookie, code, "refused");
    reply
}

/// One request.
struct Job {
    cookie: u64,
    command: Command,
    payload: Vec<u8>,
    opened: Arc<Opened>,
    random: Random,
    is_unfenced: bool,
}

impl Job {
    async fn run(mut self, replies: mpsc::UnboundedSender<Vec<u8>>) {
        self.wait().await;
        let cookie = self.cookie;
        match self.command {
            Command::Write { offset, .. } => {
                // The parts of a write take effect one after another, and stop if the client is connected
                // again.
                for at in (0..self.payload.len()).step_by(SECTOR as usize) {
                    if self.random.once_in(8) {
                        self.wait().await;
                    }
                    let mut contents = self.opened.disk.contents.lock().unwrap();
                    let client = &self.opened.client;
                    let attached = self.opened.disk.attached.lock().unwrap().get(&client.id).copied();
                    if attached != Some(client.generation) && !self.is_unfenced {
                        return;
                    }
                    let to = offset as usize + at;
                    let end = self.payload.len().min(at + SECTOR as usize);
                    contents[to..to + end - at].copy_from_slice(&self.payload[at..end]);
                }
                let _ = replies.send(nbd::simple_reply(cookie, None).to_vec());
            }
            Command::Read { offset, len, dont_fragment } => {
                let longest = if dont_fragment || !self.opened.structured { len } else { CHUNK };
                if !self.opened.structured {
                    let _ = replies
                        .send([&nbd::simple_reply(cookie, None)[..], &self.data(offset, len)].concat());
                    return;
                }
                let mut parts: Vec<u32> = (0..len).step_by(longest as usize).collect();
                // Chunks may be sent in any order.
                for n in 1..parts.len() {
                    parts.swap(n, self.random.below(n as u64 + 1) as usize);
                }
                for (n, at) in parts.iter().enumerate() {
                    self.wait().await;
                    let (offset, of_part) = (offset + u64::from(*at), longest.min(len - at));
                    let is_last = n + 1 == parts.len();
                    let data = self.data(offset, of_part);
                    let chunk = match data.iter().all(|byte| *byte == 0) {
                        true => nbd::hole_chunk(cookie, offset, of_part, is_last).to_vec(),
                        false => {
                            [&nbd::data_chunk_header(cookie, offset, of_part, is_last)[..], &data].concat()
                        }
                    };
                    let _ = replies.send(chunk);
                }
            }
            Command::BlockStatus { len, .. } => {
                let mut reply = Vec::new();
                nbd::block_status_chunk(
                    &mut reply,
                    cookie,
                    nbd::BASE_ALLOCATION_ID,
                    true,
                    &[BlockDescriptor { len, state: 0 }],
                );
                let _ = replies.send(reply);
            }
            _ => drop(replies.send(nbd::simple_reply(cookie, None).to_vec())),
        }
    }

    fn data(&self, offset: u64, len: u32) -> Vec<u8> {
        let contents = self.opened.disk.contents.lock().unwrap();
        contents[offset as usize..][..len as usize].to_vec()
    }

    async fn wait(&mut self) {
        match self.random.below(4) {
            0 if self.random.once_in(8) => {
                tokio::time::sleep(Duration::from_millis(self.random.below(80))).await;
            }
            0 => tokio::time::sleep(Duration::from_millis(self.random.below(4))).await,
            n => {
                for _ in 0..n {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}
