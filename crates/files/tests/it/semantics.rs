//! What each operation does, and how it fails.

use std::sync::Arc;

use forebay_files::*;
use forebay_store::MemoryStore;

use super::support::{Rng, open, run};

fn root() -> Caller {
    Caller::root()
}

fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: vec![50] }
}

fn mode(mode: u16) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

async fn create(files: &Files, dir: FileId, name: &str) -> FileId {
    let caller = root();
    let made = files.create(dir, name.as_bytes(), Create::Guarded, &mode(0o644), (&caller, None)).await;
    made.unwrap().object.id
}

async fn content(files: &Files, id: FileId) -> Vec<u8> {
    let reading = files.read(id, &root()).await.unwrap();
    let (len, eof) = reading.extent(0, u32::MAX);
    assert!(eof);
    let mut data = vec![0; len];
    let (disk, at) = reading.place(0);
    disk.read(at, &mut data).await.unwrap();
    data
}

fn names(files: &Files, dir: FileId) -> Vec<String> {
    let page = files.list(dir, 2, usize::MAX, &root()).unwrap();
    page.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

#[test]
fn objects_survive_the_next_opening_with_their_handles() {
    run(async {
        let store = Arc::new(MemoryStore::new());
        let (pool, files) = open(store.clone()).await;
        let (caller, top) = (root(), files.root());
        let dir = files.make_directory(top, b"vm", &mode(0o755), (&caller, None)).await.unwrap();
        let dir = dir.object.id;
        let small = create(&files, dir, "vm.vmx").await;
        files.write(small, 100, b"display", true, &caller).await.unwrap();
        let large = create(&files, dir, "vm-flat.vmdk").await;
        files.write(large, 1 << 30, b"data", false, &caller).await.unwrap();
        files.write(large, 0, &[7; 9000], false, &caller).await.unwrap();
        let link = files.make_link(dir, b"link", b"vm.vmx", &mode(0o777), (&caller, None)).await.unwrap();
        let other = files.link(small, top, b"other", (&caller, None)).await.unwrap();
        assert_eq!((other.object.id, other.object.links), (small, 2));
        let verifier = files.verifier();
        let handle = files.handle(large);
        let before = [dir, small, large, link.object.id].map(|id| files.attributes(id).unwrap());
        drop(files);
        pool.close().await.unwrap();
        let (_pool, files) = open(store).await;
        assert_ne!(files.verifier(), verifier, "the write buffers were not kept");
        assert_eq!(files.object(&handle).unwrap(), large);
        assert_eq!(before, [dir, small, large, link.object.id].map(|id| files.attributes(id).unwrap()));
        assert_eq!(names(&files, dir), ["vm.vmx", "vm-flat.vmdk", "link"]);
        assert_eq!(names(&files, top), ["vm", "other"]);
        assert_eq!(content(&files, small).await, [&[0; 100][..], b"display"].concat());
        let reading = files.read(large, &caller).await.unwrap();
        assert_eq!(reading.extent((1 << 30) + 1, 10), (3, true));
        assert_eq!(reading.extent(1 << 31, 10), (0, true));
        let mut data = [0; 9004];
        reading.place(0).0.read(0, &mut data).await.unwrap();
        assert!(data[..9000] == [7; 9000] && data[9000..] == [0; 4]);
        assert_eq!(files.target(link.object.id).await.unwrap().0, b"vm.vmx");
        assert_eq!(files.look_up(dir, b"..", &caller).unwrap().id, top);
        let forged = [&handle[..4], &[1; 8], &handle[12..]].concat();
        assert!(matches!(files.object(&forged), Err(Error::BadHandle)));
    });
}

#[test]
fn a_removed_file_is_stale_and_its_disk_is_deleted() {
    run(async {
        let (pool, files) = open(Arc::new(MemoryStore::new())).await;
        let (caller, top) = (root(), files.root());
        let large = create(&files, top, "large").await;
        files.write(large, 0, &[1; 8192], true, &caller).await.unwrap();
        assert_eq!(pool.internal_disks("file").len(), 1);
        let reading = files.read(large, &caller).await.unwrap();
        files.remove(top, b"large", (&caller, None)).await.unwrap();
        assert!(matches!(files.attributes(large), Err(Error::Stale)));
        assert!(matches!(files.try_read(large, &caller), Err(Error::Stale)));
        assert!(matches!(files.write(large, 0, b"x", false, &caller).await, Err(Error::Stale)));
        // The disk exists as long as a read is in progress.
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        assert_eq!(pool.internal_disks("file").len(), 1);
        let mut data = [0; 8192];
        reading.place(0).0.read(0, &mut data).await.unwrap();
        assert_eq!(data, [1; 8192]);
        drop(reading);
        while !pool.internal_disks("file").is_empty() || files.used() > 1 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        // The slot is used again, by another object.
        let next = create(&files, top, "next").await;
        assert_eq!(next.number, large.number);
        assert!(matches!(files.attributes(large), Err(Error::Stale)));
        assert_eq!(content(&files, next).await, b"");
    });
}

#[test]
fn data_of_files_of_all_sizes_is_what_was_written() {
    for seed in 0..40 {
        run(async {
            let (_pool, files) = open(Arc::new(MemoryStore::new())).await;
            let (caller, mut rng) = (root(), Rng(seed));
            let file = create(&files, files.root(), "file").await;
            let mut model: Vec<u8> = Vec::new();
            let most = if seed % 2 == 0 { 6000 } else { 40_000 };
            for step in 0..60 {
                if rng.below(4) == 0 {
                    let to = rng.below(most);
                    files.set_attributes(file, &size(to), None, (&caller, None)).await.unwrap();
                    model.resize(to as usize, 0);
                } else {
                    let (at, len) = (rng.below(most) as usize, rng.below(5000) as usize);
                    let data = vec![step as u8 + 1; len];
                    let stable = rng.below(5) == 0;
                    files.write(file, at as u64, &data, stable, &caller).await.unwrap();
                    if len > 0 {
                        model.resize(model.len().max(at + len), 0);
                        model[at..at + len].copy_from_slice(&data);
                    }
                }
                assert_eq!(files.attributes(file).unwrap().size, model.len() as u64);
                assert!(content(&files, file).await == model, "seed {seed}, step {step}");
            }
        });
    }
}

#[test]
fn names_are_checked() {
    run(async {
        let (_pool, files) = open(Arc::new(MemoryStore::new())).await;
        let (caller, top) = (root(), files.root());
        let file = create(&files, top, "file").await;
        let none = SetAttributes::default();
        let try_create = async |dir, name: &[u8]| {
            files.create(dir, name, Create::Guarded, &none, (&caller, None)).await.map(|_| ())
        };
        assert!(matches!(try_create(top, b"file").await, Err(Error::Exists)));
        assert!(matches!(try_create(top, b"..").await, Err(Error::Exists)));
        assert!(matches!(try_create(top, b"").await, Err(Error::Invalid)));
        assert!(matches!(try_create(top, b"a/b").await, Err(Error::Invalid)));
        assert!(matches!(try_create(top, b"a\0b").await, Err(Error::Invalid)));
        assert!(matches!(try_create(top, &[b'n'; 256]).await, Err(Error::NameTooLong)));
        assert!(matches!(try_create(file, b"name").await, Err(Error::NotDirectory)));
        try_create(top, &[b'n'; 255]).await.unwrap();
        try_create(top, b"caf\xe9").await.unwrap();
        assert!(matches!(files.look_up(top, b"none", &caller), Err(Error::NoEntry)));
        assert!(matches!(files.look_up(top, &[b'n'; 256], &caller), Err(Error::NameTooLong)));
        assert_eq!(files.look_up(top, b"..", &caller).unwrap().id, top);
        assert!(matches!(files.remove(top, b"none", (&caller, None)).await, Err(Error::NoEntry)));
        assert!(matches!(files.remove(top, b".", (&caller, None)).await, Err(Error::Invalid)));
        let dir = files.make_directory(top, b"dir", &mode(0o755), (&caller, None)).await.unwrap().object.id;
        assert_eq!(files.attributes(top).unwrap().links, 3);
        assert!(matches!(files.remove(top, b"dir", (&caller, None)).await, Err(Error::IsDirectory)));
        assert!(matches!(
            files.remove_directory(top, b"file", (&caller, None)).await,
            Err(Error::NotDirectory)
        ));
        create(&files, dir, "inner").await;
        assert!(matches!(files.remove_directory(top, b"dir", (&caller, None)).await, Err(Error::NotEmpty)));
        files.remove(dir, b"inner", (&caller, None)).await.unwrap();
        files.remove_directory(top, b"dir", (&caller, None)).await.unwrap();
        assert_eq!(files.attributes(top).unwrap().links, 2);
        assert!(matches!(files.attributes(dir), Err(Error::Stale)));
        assert!(matches!(files.link(top, top, b"hard", (&caller, None)).await, Err(Error::IsDirectory)));
    });
}

#[test]
fn renames_replace_their_targets_and_never_make_circles() {
    run(async {
        let (_pool, files) = open(Arc::new(MemoryStore::new())).await;
        let (caller, top) = (root(), files.root());
        let make = async |dir, name: &str| {
            let made = files.make_directory(dir, name.as_bytes(), &mode(0o755), (&caller, None)).await;
            made.unwrap().object.id
        };
        let rename = async |from: (FileId, &str), to: (FileId, &str)| {
            let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
            files.rename(from, to, (&caller, None)).await.map(|_| ())
        };
        let (a, b) = (make(top, "a").await, make(top, "b").await);
        let inner = make(a, "inner").await;
        let (x, y) = (create(&files, a, "x").await, create(&files, b, "y").await);
        rename((a, "x"), (b, "y")).await.unwrap();
        assert_eq!(files.look_up(b, b"y", &caller).unwrap().id, x);
        assert!(matches!(files.attributes(y), Err(Error::Stale)));
        assert!(matches!(rename((top, "a"), (inner, "a")).await, Err(Error::Invalid)));
        assert!(matches!(rename((top, "a"), (a, "a")).await, Err(Error::Invalid)));
        assert!(matches!(rename((a, "inner"), (b, "y")).await, Err(Error::Exists)));
        assert!(matches!(rename((b, "y"), (a, "inner")).await, Err(Error::Exists)));
        assert!(matches!(rename((a, "inner"), (top, "b")).await, Err(Error::NotEmpty)));
        assert!(matches!(rename((a, "none"), (top, "b")).await, Err(Error::NoEntry)));
        rename((a, "inner"), (b, "moved")).await.unwrap();
        assert_eq!(files.look_up(inner, b"..", &caller).unwrap().id, b);
        assert_eq!([a, b].map(|dir| files.attributes(dir).unwrap().links), [2, 3]);
        rename((top, "b"), (top, "a")).await.unwrap();
        assert_eq!(names(&files, top), ["a"]);
        assert!(matches!(files.attributes(a), Err(Error::Stale)));
        assert_eq!(files.attributes(top).unwrap().links, 3);
        // Two names of one file: nothing happens.
        files.link(x, b, b"z", (&caller, None)).await.unwrap();
        rename((b, "y"), (b, "z")).await.unwrap();
        assert_eq!(files.attributes(x).unwrap().links, 2);
        rename((b, "y"), (b, "y")).await.unwrap();
    });
}

#[test]
fn listings_show_entries_that_stay_exactly_once() {
    run(async {
        let (_pool, files) = open(Arc::new(MemoryStore::new())).await;
        let (caller, top, mut rng) = (root(), files.root(), Rng(3));
        for n in 0..300 {
            create(&files, top, &format!("stays{n}")).await;
            create(&files, top, &format!("goes{n}")).await;
        }
        let (mut seen, mut cookie, mut turn) = (Vec::new(), 0, 0);
        loop {
            let page = files.list(top, cookie, 1 + rng.below(20) as usize, &caller).unwrap();
            seen.extend(page.entries.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()));
            let Some(last) = page.entries.last() else { break };
            cookie = last.cookie;
            // The entry of the cookie itself may go too.
            let _ = files.remove(top, &last.name, (&caller, None)).await.is_ok_and(|_| {
                assert!(!last.name.starts_with(b"stays") || seen.last().unwrap().as_bytes() == last.name);
                true
            });
            let _ = files.remove(top, format!("goes{}", rng.below(300)).as_bytes(), (&caller, None)).await;
            create(&files, top, &format!("comes{turn}")).await;
            turn += 1;
            if page.is_last || turn > 400 {
                break;
            }
        }
        let stays = seen.iter().filter(|name| name.starts_with("stays")).count();
        let mut unique = seen.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), seen.len(), "an entry was listed twice");
        assert_eq!(stays, 300);
        assert_eq!(seen[..2], [".", ".."]);
    });
}

#[test]
fn exclusive_creates_are_recognized_when_they_are_repeated() {
    run(async {
        let store = Arc::new(MemoryStore::new());
        let (pool, files) = open(store.clone()).await;
        let (caller, top) = (root(), files.root());
        let none = SetAttributes::default();
        let how = Create::Exclusive([5; 8]);
        let first = files.create(top, b"lock", how, &none, (&caller, None)).await.unwrap().object.id;
        drop(files);
        pool.close().await.unwrap();
        let (_pool, files) = open(store).await;
        let again = files.create(top, b"lock", how, &none, (&caller, None)).await.unwrap().object.id;
        assert_eq!(first, again);
        let other = Create::Exclusive([6; 8]);
        let refused = files.create(top, b"lock", other, &none, (&caller, None)).await;
        assert!(matches!(refused, Err(Error::Exists)));
        let plain = create(&files, top, "plain").await;
        let refused = files.create(top, b"plain", Create::Exclusive([0; 8]), &none, (&caller, None)).await;
        assert!(matches!(refused, Err(Error::Exists)));
        files.write(plain, 0, b"content", true, &caller).await.unwrap();
        let opened = files.create(top, b"plain", Create::Unchecked, &none, (&caller, None)).await.unwrap();
        assert_eq!((opened.object.id, opened.object.size), (plain, 7));
        let emptied =
            files.create(top, b"plain", Create::Unchecked, &size(0), (&caller, None)).await.unwrap();
        assert_eq!((emptied.object.id, emptied.object.size), (plain, 0));
    });
}

#[test]
fn repeated_requests_are_answered_from_what_was_stored() {
    run(async {
        let store = Arc::new(MemoryStore::new());
        let (pool, files) = open(store.clone()).await;
        let (caller, top) = (root(), files.root());
        let key = |number| RequestKey { client: [9; 16], number, procedure: 8, digest: 1 };
        let Begun::New(ticket) = files.begin(key(1)).await.unwrap() else { panic!("new") };
        let made = files.create(top, b"file", Create::Guarded, &mode(0o600), (&caller, Some(&ticket))).await;
        let id = made.unwrap().object.id;
        drop(ticket);
        let Begun::New(ticket) = files.begin(key(2)).await.unwrap() else { panic!("new") };
        let failed = files.remove(top, b"none", (&caller, Some(&ticket))).await;
        assert!(failed.is_err());
        drop(ticket);
        let Begun::New(ticket) = files.begin(key(3)).await.unwrap() else { panic!("new") };
        files.remove(top, b"file", (&caller, Some(&ticket))).await.unwrap();
        drop(ticket);
        // A request that is being performed is waited for.
        let Begun::New(ticket) = files.begin(key(4)).await.unwrap() else { panic!("new") };
        let mut waiting = Box::pin(files.begin(key(4)));
        let timeout = tokio::time::timeout(std::time::Duration::from_secs(1), waiting.as_mut());
        assert!(timeout.await.is_err());
        drop(ticket);
        assert!(matches!(waiting.await.unwrap(), Begun::New(_)));
        drop(files);
        pool.close().await.unwrap();
        let (_pool, files) = open(store).await;
        assert!(matches!(files.begin(key(1)).await.unwrap(), Begun::Repeated(Some(found)) if found == id));
        assert!(matches!(files.begin(key(2)).await.unwrap(), Begun::New(_)), "it failed");
        assert!(matches!(files.begin(key(3)).await.unwrap(), Begun::Repeated(None)));
        let other = RequestKey { client: [8; 16], ..key(3) };
        assert!(matches!(files.begin(other).await.unwrap(), Begun::New(_)));
    });
}

#[test]
fn permissions_and_times_follow_posix() {
    run(async {
        let (_pool, files) = open(Arc::new(MemoryStore::new())).await;
        let (caller, top) = (root(), files.root());
        let one = user(1000);
        let none = SetAttributes::default();
        let denied = files.create(top, b"file", Create::Guarded, &none, (&one, None)).await;
        assert!(matches!(denied, Err(Error::Access)));
        let dir = files.make_directory(top, b"home", &mode(0o2775), (&caller, None)).await.unwrap();
        let dir = dir.object.id;
        let give = SetAttributes { gid: Some(50), ..none };
        files.set_attributes(dir, &give, None, (&caller, None)).await.unwrap();
        let made = files.create(dir, b"file", Create::Guarded, &mode(0o640), (&one, None)).await.unwrap();
        let file = made.object;
        assert_eq!((file.uid, file.gid, file.mode), (1000, 50, 0o640));
        assert_eq!(made.dir.after.id, dir);
        assert!(made.dir.after.modified > made.dir.before.modified);
        let stranger = Caller { uid: 2000, gid: 2000, groups: Vec::new() };
        assert!(matches!(files.try_read(file.id, &stranger), Err(Error::Access)));
        assert!(files.try_read(file.id, &user(1001)).is_ok(), "it is in the group");
        assert!(matches!(files.write(file.id, 0, b"x", false, &user(1001)).await, Err(Error::Access)));
        let chmod = files.set_attributes(file.id, &mode(0o666), None, (&user(1001), None)).await;
        assert!(matches!(chmod, Err(Error::NotOwner)));
        let chown = SetAttributes { uid: Some(1001), ..none };
        assert!(matches!(
            files.set_attributes(file.id, &chown, None, (&one, None)).await,
            Err(Error::NotOwner)
        ));
        let before = files.attributes(file.id).unwrap();
        let guarded =
            files.set_attributes(file.id, &mode(0o600), Some(before.changed + 1), (&one, None)).await;
        assert!(matches!(guarded, Err(Error::NotSync)));
        let changed = files.set_attributes(file.id, &mode(0o600), Some(before.changed), (&one, None)).await;
        let changed = changed.unwrap();
        assert_eq!((changed.before, changed.after.mode), (before, 0o600));
        assert!(changed.after.changed > before.changed && changed.after.modified == before.modified);
        let past = SetAttributes { modified: SetTime::To(5), accessed: SetTime::Now, ..none };
        let changed = files.set_attributes(file.id, &past, None, (&one, None)).await.unwrap();
        assert_eq!(changed.after.modified, 5);
        let written = files.write(file.id, 0, b"data", false, &one).await.unwrap();
        assert!(written.file.after.modified > 5);
        assert_eq!(files.permissions(dir, &stranger).unwrap().0, 5);
        assert!(matches!(
            files.set_attributes(dir, &size(0), None, (&caller, None)).await,
            Err(Error::IsDirectory)
        ));
        let large = size(FILE_MAX + 1);
        let too_large = files.set_attributes(file.id, &large, None, (&one, None)).await;
        assert!(matches!(too_large, Err(Error::TooLarge)));
        assert!(matches!(files.write(file.id, FILE_MAX, b"x", false, &one).await, Err(Error::TooLarge)));
        assert!(matches!(files.write(file.id, u64::MAX, b"x", false, &one).await, Err(Error::TooLarge)));
    });
}

#[test]
fn clones_share_the_contents_and_then_differ() {
    run(async {
        let (_pool, files) = open(Arc::new(MemoryStore::new())).await;
        let (caller, top) = (root(), files.root());
        let (small, large) = (create(&files, top, "small").await, create(&files, top, "large").await);
        files.write(small, 0, b"small", false, &caller).await.unwrap();
        files.write(large, 5000, &[3; 100_000], false, &caller).await.unwrap();
        for (from, name) in [(small, "small2"), (large, "large2")] {
            let copy = files.clone_file(from, top, name.as_bytes(), &caller).await.unwrap().object.id;
            let before = content(&files, from).await;
            assert!(content(&files, copy).await == before);
            files.write(from, 2, b"other", false, &caller).await.unwrap();
            assert!(content(&files, copy).await == before);
            assert!(content(&files, from).await != before);
            let refused = files.clone_file(from, top, name.as_bytes(), &caller).await;
            assert!(matches!(refused, Err(Error::Exists)));
        }
    });
}

#[test]
fn on_a_full_store_truncations_free_room_for_removals() {
    run(async {
        let store = forebay_store::FaultyStore::new(1);
        store.set_capacity(64 << 20);
        let (_pool, files) = open(store).await;
        let (caller, top, mut rng) = (root(), files.root(), Rng(1));
        let mut ids = Vec::new();
        'fill: for n in 0..100 {
            let name = format!("f{n}");
            let made =
                files.create(top, name.as_bytes(), Create::Guarded, &mode(0o644), (&caller, None)).await;
            let Ok(made) = made else { break };
            ids.push((name, made.object.id));
            for piece in 0..16 {
                let data: Vec<u8> = (0..1 << 18).map(|_| rng.below(256) as u8).collect();
                match files.write(made.object.id, piece << 18, &data, true, &caller).await {
                    Ok(_) => {}
                    Err(Error::Engine(forebay_engine::Error::NoSpace)) => break 'fill,
                    Err(e) => panic!("{e}"),
                }
            }
        }
        assert!(ids.len() > 2, "the store has room for {} files", ids.len());
        // The data is freed although the change of the size may not fit.
        for (_, id) in &ids {
            let _ = files.set_attributes(*id, &size(0), None, (&caller, None)).await;
        }
        for (name, _) in &ids {
            let mut tries = 0;
            while let Err(e) = files.remove(top, name.as_bytes(), (&caller, None)).await {
                assert!(matches!(e, Error::Engine(forebay_engine::Error::NoSpace)), "{e}");
                tries += 1;
                assert!(tries < 100, "the room of truncated files is not freed");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
        }
        assert_eq!(names(&files, top), Vec::<String>::new());
    });
}
