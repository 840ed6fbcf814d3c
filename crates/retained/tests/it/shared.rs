//! The file on tmpfs: which files are refused, a full tmpfs, and other processes, which end by SIGKILL.
//!
//! Not tested: a file that another process truncates or punches while it is mapped. The next access raises
//! SIGBUS; the documentation of the crate states why this is not handled.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use forebay_retained::*;

fn is_root() -> bool {
    // SAFETY: the call has no conditions.
    unsafe { libc::geteuid() == 0 }
}

/// The error of opening a file that must be refused: it names the file.
#[track_caller]
fn refused(path: &Path) -> std::io::Error {
    let e = SharedFile::open(path, LIMIT).map(drop).unwrap_err();
    assert!(e.to_string().starts_with(&format!("retained memory {}: ", path.display())), "{e}");
    e
}

#[track_caller]
fn assert_refused(path: &Path, why: &str) {
    let e = refused(path);
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(e.to_string().contains(why), "{e}");
    // A regular file may hold acknowledged writes.
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|status| status.is_file());
    assert_eq!(e.to_string().contains(": remove it, or use another directory"), !is_file, "{e}");
}

fn make_file(path: &Path, mode: u32) {
    std::fs::write(path, b"not ours").unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn files_that_another_user_can_read_or_could_have_prepared_are_refused() {
    let Some(dir) = tmpfs_dir() else { return };
    let path = dir.path().join("memory");
    for mode in [0o640, 0o604, 0o620, 0o602, 0o700, 0o610, 0o4600, 0o1600] {
        make_file(&path, mode);
        assert_refused(&path, &format!("it has mode {mode:o} instead of 600"));
        assert_eq!(std::fs::read(&path).unwrap(), b"not ours");
    }
    make_file(&path, 0o600);
    std::fs::hard_link(&path, dir.path().join("link")).unwrap();
    assert_refused(&path, "it has several hard links");
    std::fs::remove_file(dir.path().join("link")).unwrap();

    if is_root() {
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        assert_refused(&path, "it belongs to user 12345, and this server runs as user 0");
    } else {
        println!("skipped in part: only root can make a file of another user");
    }
    std::fs::remove_file(&path).unwrap();
    SharedFile::open(&path, LIMIT).unwrap();
    let made = std::fs::metadata(&path).unwrap();
    assert_eq!((made.mode() & 0o7777, made.len()), (0o600, LIMIT));
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let Some(dir) = tmpfs_dir() else { return };
    let (path, target) = (dir.path().join("memory"), dir.path().join("target"));
    // A link to a file that would be accepted, and one to nothing.
    make_file(&target, 0o600);
    for _ in 0..2 {
        symlink(&target, &path).unwrap();
        assert_refused(&path, "it is a symbolic link");
        std::fs::remove_file(&path).unwrap();
        assert!(std::fs::remove_file(&target).is_ok() || !target.exists(), "the target was not created");
    }

    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_refused(&path, "it is not a regular file");
    assert!(std::fs::metadata(&path).unwrap().file_type().is_fifo());
    std::fs::remove_file(&path).unwrap();

    std::fs::create_dir(&path).unwrap();
    refused(&path);
    assert!(path.is_dir());
    if is_root() {
        assert_refused(Path::new("/dev/null"), "it is not a regular file");
    }
    let absent = refused(&dir.path().join("absent/memory"));
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

#[test]
fn a_file_tells_its_memory_without_being_opened() {
    let Some(dir) = tmpfs_dir() else { return };
    let (path, moved) = (dir.path().join("memory"), dir.path().join("moved"));
    assert_eq!(SharedFile::peek(&path).unwrap(), None);
    make_file(&path, 0o600);
    assert_eq!(SharedFile::peek(&path).unwrap(), None, "it is shorter than a header");
    std::fs::remove_file(&path).unwrap();
    let before = std::time::SystemTime::now() - Duration::from_secs(1);
    let mut file = SharedFile::open(&path, LIMIT).unwrap();
    assert_eq!(SharedFile::peek(&path).unwrap(), None, "it has no contents");
    assert!(SharedFile::is_in_use(&path).unwrap());
    make_file(&moved, 0o600);
    file.rename(&moved).unwrap();
    assert!(!path.exists());
    let file = Arc::new(file);
    let retained = Retained::create(file.clone(), &IDENTITY, ID, LIMIT).unwrap();
    let found = SharedFile::peek(&moved).unwrap().unwrap();
    assert_eq!((found.pool, found.id), (IDENTITY.pool, ID));
    assert!(found.created >= before);
    std::fs::set_permissions(&moved, PermissionsExt::from_mode(0o644)).unwrap();
    SharedFile::peek(&moved).expect_err("another user can read it");
    file.unlock().unwrap();
    assert!(!SharedFile::is_in_use(&moved).unwrap());
    drop(retained);
    file.remove().unwrap();
    assert!(!moved.exists());
}

/// The second of two chunks joins their pages to a huge page, while the first one is in use.
#[test]
fn a_chunk_keeps_its_contents_while_its_neighbour_comes_and_goes() {
    let Some(dir) = tmpfs_dir() else { return };
    let path = dir.path().join("memory");
    let file = SharedFile::open(&path, LIMIT).unwrap();
    assert_eq!(file.address(0).addr().get() % (2 << 20), 0, "a huge page begins with it");
    let value = |round: u8, n: usize| (n / PAGE) as u8 ^ round;
    for round in 0..3 {
        for (chunk, neighbour) in [(2, 3), (3, 2)] {
            file.add(chunk).unwrap();
            let of = |chunk| {
                // SAFETY: the chunk is present, and this thread alone uses it.
                unsafe { std::slice::from_raw_parts_mut(file.address(chunk).as_ptr(), CHUNK) }
            };
            let content = of(chunk);
            assert!(content.iter().all(|b| *b == 0));
            content.iter_mut().enumerate().for_each(|(n, b)| *b = value(round, n));
            file.add(neighbour).unwrap();
            assert!(of(neighbour).iter().all(|b| *b == 0));
            of(neighbour).fill(1);
            file.release(neighbour);
            assert!(of(chunk).iter().enumerate().all(|(n, b)| *b == value(round, n)), "{round} {chunk}");
            // A join that has begun gives the neighbour memory, and takes it back.
            soon(|| SharedFile::examine(&path).unwrap().bytes == CHUNK as u64);
            file.release(chunk);
        }
    }
    file.add(2).unwrap();
    file.add(3).unwrap();
    file.release(3);
    drop(file);
    let file = open_soon(&path).unwrap();
    assert_eq!([2, 3].map(|chunk| file.is_present(chunk)), [true, false]);
}

/// Whether this is so within some seconds.
fn soon(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Chunks are released while their pages are joined: no memory is left that is not counted, or little, since
/// the kernel does not split a huge page that is in use.
#[test]
fn released_chunks_have_no_memory_when_their_pages_were_being_joined() {
    let Some(dir) = tmpfs_dir() else { return };
    let path = dir.path().join("memory");
    let file = SharedFile::open(&path, 64 * CHUNK as u64).unwrap();
    for _ in 0..20 {
        (0..64).for_each(|chunk| file.add(chunk).unwrap());
        (1..64).step_by(2).for_each(|chunk| file.release(chunk));
        (0..64).step_by(2).for_each(|chunk| file.release(chunk));
    }
    soon(|| SharedFile::examine(&path).unwrap().bytes == 0);
}

#[test]
fn another_file_system_is_refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("memory");
    let e = match SharedFile::open(&path, LIMIT) {
        Ok(_) => return println!("skipped: the build directory is on tmpfs"),
        Err(e) => e,
    };
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("it is not on tmpfs, such as /dev/shm"), "{e}");
    assert!(!path.exists(), "nothing is left there");
}

/// Runs a test with a tmpfs of this size, which only its thread sees, and which ends with it.
fn on_small_tmpfs(bytes: u64, test: impl FnOnce(&Path) + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let mounted = dir.path().to_owned();
    let work = move || {
        let at = CString::new(mounted.as_os_str().as_bytes()).unwrap();
        let size = CString::new(format!("size={bytes}")).unwrap();
        let (root, private, data) = (c"/".as_ptr(), libc::MS_REC | libc::MS_PRIVATE, size.as_ptr().cast());
        // SAFETY: the call affects this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return println!("skipped: no mount namespace: {}", std::io::Error::last_os_error());
        }
        // SAFETY: all strings end with a zero byte, and exist until the calls return.
        let done = unsafe {
            libc::mount(std::ptr::null(), root, std::ptr::null(), private, std::ptr::null())
                | libc::mount(c"tmpfs".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), 0, data)
        };
        match done {
            0 => test(&mounted),
            _ => println!("skipped: cannot mount a tmpfs: {}", std::io::Error::last_os_error()),
        }
    };
    std::thread::spawn(work).join().unwrap();
}

#[test]
fn a_tmpfs_without_room_for_any_page_is_an_error() {
    for mib in 1..3 {
        on_small_tmpfs(mib << 20, |dir| {
            let file = Arc::new(SharedFile::open(&dir.join("memory"), LIMIT).unwrap());
            let e = Retained::create(file, &IDENTITY, ID, LIMIT).map(drop).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::StorageFull, "{e}");
            assert!(e.to_string().contains("memory: No space left on device"), "{e}");
        });
    }
}

/// Room is taken before a page is used: a full tmpfs is an error, never SIGBUS.
#[test]
fn a_full_tmpfs_stops_growth_and_loses_nothing() {
    on_small_tmpfs(6 << 20, |dir| {
        let path = dir.join("memory");
        let retained =
            Retained::create(Arc::new(SharedFile::open(&path, LIMIT).unwrap()), &IDENTITY, ID, LIMIT)
                .unwrap();
        assert!(retained.reserve(10_000, 0).is_none());
        let e = retained.take_growth_error().unwrap();
        assert!(e.kind() == ErrorKind::StorageFull && e.to_string().contains("No space left"), "{e}");
        // Header, records, four chunks of pages.
        let pages: Vec<_> = (0..1200).map(|n| put(&retained, None, block(1, n), n)).collect();
        let kept = pages.iter().take_while(|page| page.is_retained()).count();
        assert_eq!((kept, retained.stats().unretained), (4 * 252, 1200 - 4 * 252));
        assert!(pages.iter().zip(0..).all(|(page, n)| **page == content(n)));
        // The other program that needs room finds none, and the memory does not change.
        assert!(std::fs::write(dir.join("other"), vec![1; 1 << 20]).is_err());
        retained.leave();
        drop((pages, retained));

        let (retained, found) =
            Retained::open(Arc::new(open_soon(&path).unwrap()), &IDENTITY, LIMIT).unwrap();
        assert_eq!((found.pages.len(), found.damaged.len()), (kept, 0));
        assert!(found.pages.iter().all(|(of, _, page)| **page == content(of.block)));
        drop(found);
        assert!(retained.reserve(252, 0).is_some(), "there is room again");
    });
}

/// Pages with their seeds, by block.
type Published = BTreeMap<u64, (u64, Page)>;

/// The process ends, and the next one finds the pages for which there was room.
fn start_again(path: &Path, retained: Arc<Retained>, pages: Published) -> (Arc<Retained>, Published) {
    retained.leave();
    assert!(pages.values().all(|(seed, page)| **page == content(*seed)));
    let kept = pages.iter().filter(|(_, (_, page))| page.is_retained());
    let kept: BTreeMap<u64, u64> = kept.map(|(block, (seed, _))| (*block, *seed)).collect();
    drop((pages, retained));
    let (retained, found) = Retained::open(Arc::new(open_soon(path).unwrap()), &IDENTITY, LIMIT).unwrap();
    assert_eq!((found.pages.len(), found.damaged.len()), (kept.len(), 0));
    let pages = found.pages.into_iter().map(|(of, _, page)| (of.block, (kept[&of.block], page)));
    (retained, pages.inspect(|(_, (seed, page))| assert!(**page == content(*seed))).collect())
}

fn come_and_go(dir: &Path, seed: u64) {
    let (path, other, mut random) = (dir.join("memory"), dir.join("other"), Random(seed));
    let file = Arc::new(open_soon(&path).unwrap());
    let mut retained = Retained::create(file, &IDENTITY, ID, LIMIT).unwrap();
    let mut pages = Published::new();
    for step in 0..200 {
        match random.below(16) {
            // As far as there is room.
            0 | 1 => drop(std::fs::write(&other, vec![1; random.below(7 << 20)])),
            2 => drop(std::fs::remove_file(&other)),
            3 => (retained, pages) = start_again(&path, retained, pages),
            4..8 => pages.retain(|_, _| random.below(3) > 0),
            _ => {
                for n in 0..random.below(300) as u64 {
                    let (of, seed) = (random.below(2000) as u64, step << 16 | n);
                    pages.insert(of, (seed, put(&retained, None, block(1, of), seed)));
                }
            }
        }
    }
    assert!(std::fs::write(&other, vec![1; 8 << 20]).is_err(), "the file system is larger than that");
    for of in 2000..4000 {
        pages.insert(of, (of, put(&retained, None, block(1, of), of)));
    }
    assert!(retained.stats().unretained > 0, "there was room for all");
    (retained, pages) = start_again(&path, retained, pages);
    std::fs::remove_file(&path).unwrap();
    for of in 0..2000 {
        pages.insert(of, (of, put(&retained, None, block(1, of), of)));
    }
    assert!(pages.values().all(|(seed, page)| **page == content(*seed)));
    drop((pages, retained));
    let file = Arc::new(open_soon(&path).unwrap());
    assert_eq!(Retained::open(file, &IDENTITY, LIMIT).map(drop), Err(Lost::Empty));
    std::fs::remove_file(&path).unwrap();
    let _ = std::fs::remove_file(&other);
}

/// Another program takes and returns the room, and the process ends and starts, at random. In the end the
/// file is removed under the process, which continues without it.
#[test]
fn room_that_comes_and_goes_and_a_removed_file_harm_no_page() {
    on_small_tmpfs(8 << 20, |dir| {
        with_seeds("room_that_comes_and_goes", 10, |seed| come_and_go(dir, seed));
    });
}

/// Starts this program again, as a process that does what `role` states; see [`child`].
fn start(role: &str, path: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shared::child", "--ignored", "--nocapture"])
        .env("FOREBAY_RETAINED_ROLE", role)
        .env("FOREBAY_RETAINED_PATH", path)
        .env("FOREBAY_RETAINED_SEED", seed.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the other tests run it, as another process"]
fn child() {
    let Some(role) = std::env::var_os("FOREBAY_RETAINED_ROLE") else { return };
    let path = std::env::var_os("FOREBAY_RETAINED_PATH").unwrap();
    let seed = number("FOREBAY_RETAINED_SEED").unwrap();
    let file = Arc::new(open_soon(Path::new(&path)).unwrap());
    if role == "write" {
        return write(file, seed);
    }
    report("open");
    // Until it is killed, or its parent ends.
    let _ = std::io::stdin().read(&mut [0]);
}

/// In one call, so that a kill does not split it. Not by `println!`, which a test captures.
fn report(line: &str) {
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

/// The next line that a child has reported; `None` if it has ended.
fn next_report(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Option<String> {
    lines.map(|line| line.unwrap()).find(|line| !line.is_empty() && !line.contains("test"))
}

#[test]
fn the_lock_of_another_process_is_a_clear_error_and_ends_with_it() {
    let Some(dir) = tmpfs_dir() else { return };
    let path = dir.path().join("memory");
    for _ in 0..3 {
        let mut holder = start("hold", &path, 0);
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert_eq!(next_report(&mut lines).as_deref(), Some("open"));
        let e = refused(&path);
        assert_eq!(e.kind(), ErrorKind::ResourceBusy);
        assert!(e.to_string().contains("another server has it open: stop that server"), "{e}");
        holder.kill().unwrap();
        holder.wait().unwrap();
        drop(open_soon(&path).unwrap());
    }
}

/// Threads of a child that writes; each has a disk.
const WRITERS: u32 = 2;
/// Blocks of each disk: several chunks.
const BLOCKS: usize = 700;
/// Zeroed ranges of each disk that exist at a time.
const RANGES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Write(u64),
    Discard(u64),
    DiscardAll,
    Zero(u64),
    Cover,
}

/// The operations of a disk, the first of which has number 1.
fn ops(seed: u64, disk: u32) -> impl Iterator<Item = (u64, Op)> {
    let mut random = Random(seed << 8 | u64::from(disk));
    (1..).map(move |n| {
        let block = random.below(BLOCKS) as u64;
        let op = match random.below(400) {
            0..30 => Op::Discard(block),
            30..60 => Op::Zero(block),
            60..80 if disk == 0 => Op::Cover,
            80 => Op::DiscardAll,
            _ => Op::Write(block),
        };
        (n, op)
    })
}

fn page_seed(disk: u32, n: u64) -> u64 {
    n << 8 | u64::from(disk)
}

/// Writes until it is killed, and reports each operation when it is done.
fn write(file: Arc<SharedFile>, seed: u64) {
    let retained = Retained::create(file, &IDENTITY, ID, LIMIT).unwrap();
    report("begin");
    std::thread::scope(|scope| {
        for disk in 0..WRITERS {
            let retained = &retained;
            scope.spawn(move || write_disk(retained, seed, disk));
        }
    });
}

fn write_disk(retained: &Arc<Retained>, seed: u64, disk: u32) {
    let (mut pages, mut ranges) = (BTreeMap::new(), Vec::new());
    for (n, op) in ops(seed, disk) {
        match op {
            // The old page is dropped after the new one is published.
            Op::Write(b) => drop(pages.insert(b, put(retained, None, block(disk, b), page_seed(disk, n)))),
            Op::Discard(b) => drop(pages.remove(&b)),
            Op::DiscardAll => pages.clear(),
            Op::Zero(b) => {
                ranges.push(retained.range(None, range(disk, b, b + n)));
                if ranges.len() > RANGES {
                    drop(ranges.remove(0));
                }
            }
            Op::Cover => assert!(retained.set_cover(Cover { seq: n, order: retained.order() })),
        }
        assert_eq!(retained.stats().unretained_total, 0);
        report(&format!("{disk} {n}"));
    }
}

/// What a disk has after some operations.
#[derive(Debug, Default, Clone)]
struct State {
    /// Block to the operation that wrote it.
    pages: BTreeMap<u64, u64>,
    ranges: Vec<(u64, u64)>,
    cover: Option<u64>,
}

impl State {
    fn apply(&mut self, n: u64, op: Op) {
        match op {
            Op::Write(block) => drop(self.pages.insert(block, n)),
            Op::Discard(block) => drop(self.pages.remove(&block)),
            Op::DiscardAll => self.pages.clear(),
            Op::Zero(start) => {
                self.ranges.push((start, start + n));
                if self.ranges.len() > RANGES {
                    self.ranges.remove(0);
                }
            }
            Op::Cover => self.cover = Some(n),
        }
    }
}

/// The items are those of `before`, and some of the change to `after` that was under way.
fn assert_between<T: Ord + std::fmt::Debug>(found: &BTreeSet<T>, before: &BTreeSet<T>, after: &BTreeSet<T>) {
    let lost: Vec<_> = before.intersection(after).filter(|item| !found.contains(item)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let wrong: Vec<_> = found.iter().filter(|item| !before.contains(item) && !after.contains(item)).collect();
    assert!(wrong.is_empty(), "never written, or dropped: {wrong:?}");
}

/// Compares the contents with a disk whose operations up to number `done` were reported.
fn check_disk(found: &Contents, seed: u64, disk: u32, done: u64) {
    let mut before = State::default();
    let mut ops = ops(seed, disk);
    ops.by_ref().take(done as usize).for_each(|(n, op)| before.apply(n, op));
    let (next, op) = ops.next().unwrap();
    let mut after = before.clone();
    after.apply(next, op);

    let mut pages = BTreeSet::new();
    for (of, _, page) in found.pages.iter().filter(|(of, ..)| of.disk == disk) {
        // The first word of the content is the seed, multiplied.
        let n = [before.pages.get(&of.block), after.pages.get(&of.block)]
            .into_iter()
            .flatten()
            .find(|n| **page == content(page_seed(disk, **n)));
        let n = n.unwrap_or_else(|| panic!("block {} of disk {disk} has other data", of.block));
        assert!(pages.insert((of.block, *n)), "block {} is there twice", of.block);
    }
    let set = |state: &State| state.pages.iter().map(|(block, n)| (*block, *n)).collect();
    assert_between(&pages, &set(&before), &set(&after));
    if let Op::Write(block) = op {
        let was_there = before.pages.contains_key(&block);
        assert!(!was_there || pages.iter().any(|page| page.0 == block), "an overwritten block is lost");
    }
    let ranges = found.ranges.iter().filter(|(of, ..)| of.disk == disk);
    let ranges = ranges.map(|(of, ..)| (of.start, of.end)).collect();
    let set = |state: &State| state.ranges.iter().copied().collect();
    assert_between(&ranges, &set(&before), &set(&after));
    if disk == 0 {
        let cover = found.cover.map(|cover| cover.seq);
        assert!(cover == before.cover || cover == after.cover, "{cover:?}, {:?}", before.cover);
    }
}

/// Kills a child at a random moment, and returns what it reported: whether it has begun, and the last
/// operation of each disk.
fn kill_at_random(path: &Path, seed: u64, random: &mut Random) -> (bool, [u64; WRITERS as usize]) {
    let mut writer = start("write", path, seed);
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let (mut has_begun, mut done) = (false, [0; WRITERS as usize]);
    let mut note = |line: String| match line.split_once(' ') {
        None => has_begun |= line == "begin",
        Some((disk, n)) => done[disk.parse::<usize>().unwrap()] = n.parse().unwrap(),
    };
    if random.below(4) == 0 {
        // While it starts, formats the memory, or writes first.
        std::thread::sleep(Duration::from_micros(random.below(30_000) as u64));
    } else {
        for _ in 0..1 + random.below(4000) {
            note(next_report(&mut lines).expect("it writes until it is killed"));
        }
    }
    writer.kill().unwrap();
    while let Some(line) = next_report(&mut lines) {
        note(line);
    }
    let status = writer.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "{status}");
    (has_begun, done)
}

#[test]
fn what_a_killed_process_reported_is_found() {
    let Some(dir) = tmpfs_dir() else { return };
    with_seeds("what_a_killed_process_reported_is_found", 30, |seed| {
        let path = dir.path().join(format!("memory-{seed}"));
        let (has_begun, done) = kill_at_random(&path, seed, &mut Random(seed));
        // The second time, the memory is that of an opening that kept everything.
        for _ in 0..2 {
            let file = Arc::new(open_soon(&path).unwrap());
            let (retained, found) = match Retained::open(file, &IDENTITY, LIMIT) {
                Ok(opened) => opened,
                Err(Lost::Empty) if !has_begun => continue,
                Err(e) => panic!("{e}"),
            };
            assert!(found.damaged.is_empty());
            (0..WRITERS).for_each(|disk| check_disk(&found, seed, disk, done[disk as usize]));
            retained.leave();
        }
        std::fs::remove_file(&path).unwrap();
    });
}
