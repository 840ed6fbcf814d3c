//! Properties of the directory store only: locks, foreign files, and a full, read-only or deleted file
//! system.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::common::{Mount, block_on, id, options, pattern, superblock};
use forebay_store::{DirectoryOptions, DirectoryStore, IoBuf, IoMode, Store, StoreError};

fn open(path: &Path) -> Result<std::sync::Arc<DirectoryStore>, StoreError> {
    DirectoryStore::open(path, &DirectoryOptions::default())
}

fn reason(error: &StoreError) -> &str {
    match error {
        StoreError::Io { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

/// Prints the reason why a test is skipped.
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

#[test]
fn a_second_opener_is_refused_and_the_first_continues() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    block_on(first.append(id(1), 0, pattern(1, 4096), 8192)).unwrap();
    let busy = StoreError::Busy(format!(" (process {})", std::process::id()));
    assert_eq!(open(dir.path()).map(|_| ()), Err(busy.clone()));
    let reader = || DirectoryStore::open_read_only(dir.path(), &DirectoryOptions::default());
    assert_eq!(reader().map(|_| ()), Err(busy));
    block_on(first.append(id(1), 4096, pattern(2, 4096), 8192)).unwrap();
    drop(first);
    let readers = [reader().unwrap(), reader().unwrap()];
    assert_eq!(
        open(dir.path()).map(|_| ()),
        Err(StoreError::Busy(String::new())),
        "while readers have it open"
    );
    assert_eq!(block_on(readers[1].read(id(1), 4096, 4096)).unwrap()[..], pattern(2, 4096)[..]);
    drop(readers);
    open(dir.path()).unwrap();
}

#[test]
fn the_last_append_returns_unused_preallocated_space() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    block_on(store.append(id(1), 0, pattern(1, 4096), 1 << 20)).unwrap();
    let len = || block_on(store.list()).unwrap()[0].len;
    let preallocated = len();
    block_on(store.append(id(1), 4096, pattern(2, 4096), 8192)).unwrap();
    block_on(store.sync(id(1))).unwrap();
    assert_eq!(len(), 8192, "of {preallocated}");
    assert_eq!(block_on(store.read(id(1), 4096, 8192)).unwrap()[..], pattern(2, 4096)[..]);
}

#[test]
fn opening_read_only_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let looked = DirectoryStore::open_read_only(dir.path(), &DirectoryOptions::default());
    assert_eq!(looked.map(|_| ()), Err(StoreError::NotAStore(dir.path().into())));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let store = open(dir.path()).unwrap();
    block_on(store.append(id(1), 0, pattern(1, 4096), 4096)).unwrap();
    drop(store);
    let store = DirectoryStore::open_read_only(dir.path(), &DirectoryOptions::default()).unwrap();
    block_on(async {
        let refused = Err(StoreError::ReadOnly);
        assert_eq!(store.append(id(2), 0, IoBuf::zeroed(4096), 0).await.map(|_| ()), refused);
        assert_eq!(store.sync(id(1)).await, refused);
        assert_eq!(store.delete(id(1)).await, refused);
        assert_eq!(store.swap_superblock(&superblock(1)).await, refused);
        assert_eq!(store.list().await.unwrap().len(), 1);
    });
}

#[test]
fn a_directory_with_other_files_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    assert_eq!(open(dir.path()).map(|_| ()), Err(StoreError::NotAStore(dir.path().into())));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was added");
}

#[test]
fn a_missing_directory_is_created_and_the_servers_own_files_are_allowed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir.path().join("a/b")).unwrap());
    fs::create_dir(dir.path().join("c")).unwrap();
    fs::write(dir.path().join("c/forebay.sock"), "").unwrap();
    drop(open(&dir.path().join("c")).unwrap());
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(open(&dir.path().join("file")).is_err());
}

#[test]
fn segments_without_a_superblock_are_not_opened_as_a_new_store() {
    let dir = tempfile::tempdir().unwrap();
    block_on(open(dir.path()).unwrap().append(id(1), 0, pattern(1, 4096), 4096)).unwrap();
    fs::remove_file(dir.path().join("superblock")).unwrap();
    let error = open(dir.path()).map(|_| ()).unwrap_err();
    assert!(reason(&error).contains("superblock"), "{error}");
    assert!(!dir.path().join("superblock").exists());
}

#[test]
fn an_interrupted_creation_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lock"), "12345\n").unwrap();
    fs::create_dir(dir.path().join("segments")).unwrap();
    drop(open(dir.path()).unwrap());
    // A superblock file without its length.
    fs::write(dir.path().join("superblock"), "").unwrap();
    let store = open(dir.path()).unwrap();
    block_on(store.swap_superblock(&superblock(1))).unwrap();
    let copies = block_on(store.read_superblock()).unwrap();
    assert_eq!(copies, [None, Some(superblock(1).encode())]);
}

#[test]
fn a_write_by_another_server_is_detected_at_the_next_swap() {
    for direct in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = DirectoryStore::open(dir.path(), &options(IoMode::Auto, direct)).unwrap();
        block_on(store.swap_superblock(&superblock(1))).unwrap();
        let other = fs::File::options().write(true).open(dir.path().join("superblock")).unwrap();
        other.write_all_at(&superblock(2).encode(), 0).unwrap();
        other.sync_all().unwrap();
        assert_eq!(block_on(store.swap_superblock(&superblock(2))), Err(StoreError::Fenced));
    }
}

#[test]
fn a_full_disk_fails_appends_until_space_is_freed() {
    let Some(mount) = Mount::tmpfs(8 << 20) else {
        return skip("this test needs permission to mount a tmpfs");
    };
    for io in [IoMode::Auto, IoMode::Threads] {
        let store = DirectoryStore::open(&mount.path().join("data"), &options(io, true)).unwrap();
        block_on(async {
            let before = store.capacity().await.unwrap();
            assert!(before.total >= 7 << 20 && before.free <= before.total);
            store.append(id(1), 0, pattern(1, 1 << 20), 5 << 20).await.unwrap();
            assert!(store.capacity().await.unwrap().free <= before.free - (5 << 20), "space is preallocated");
            let full = store.append(id(2), 0, pattern(2, 1 << 20), 5 << 20).await;
            assert_eq!(full.map(|_| ()), Err(StoreError::Full));
            assert_eq!(store.list().await.unwrap().len(), 1, "an object without space is not created");
            // Appends within the expected length have space, and longer ones do not.
            store.append(id(1), 1 << 20, pattern(3, 4 << 20), 5 << 20).await.unwrap();
            store.sync(id(1)).await.unwrap();
            // Within it, an append that is synced at once has space, and beyond it finds none, before the
            // sync.
            store.append(id(4), 0, pattern(6, 4096), 1 << 20).await.unwrap();
            store.sync(id(4)).await.unwrap();
            store.append_synced(id(4), 4096, pattern(7, 64 << 10), 1 << 20).await.unwrap();
            let beyond =
                store.append_synced(id(4), (4 << 10) + (64 << 10), pattern(7, 6 << 20), 1 << 20).await;
            assert_eq!(beyond.map(|_| ()), Err(StoreError::Full));
            store.delete(id(4)).await.unwrap();
            let beyond = store.append(id(1), 5 << 20, pattern(4, 6 << 20), 5 << 20).await;
            assert_eq!(beyond.map(|_| ()), Err(StoreError::Full));
            assert!(store.sync(id(1)).await.is_err(), "no sync succeeds after a failure");
            assert_eq!(store.read(id(1), 1 << 20, 4096).await.unwrap()[..], pattern(3, 4096)[..]);
            store.delete(id(1)).await.unwrap();
            // The kernel closes a file shortly after it has completed the last request on it.
            while store.capacity().await.unwrap().free < before.free {
                std::thread::yield_now();
            }
            store.append(id(3), 0, pattern(5, 1 << 20), 5 << 20).await.unwrap();
            store.delete(id(3)).await.unwrap();
            while store.capacity().await.unwrap().free < before.free {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn a_store_on_a_full_disk_opens() {
    let Some(mount) = Mount::tmpfs(1 << 20) else {
        return skip("this test needs permission to mount a tmpfs");
    };
    let data = mount.path().join("data");
    drop(open(&data).unwrap());
    let full = fs::write(mount.path().join("other"), vec![1; 2 << 20]);
    assert_eq!(full.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    let store = open(&data).unwrap();
    assert_eq!(open(&data).map(drop), Err(StoreError::Busy(String::new())), "the lock is held");
    assert_eq!(block_on(store.list()).unwrap(), []);
}

#[test]
fn a_directory_that_cannot_be_used_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = open(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains("choose a directory") && !error.contains("os error"), "{error}");
    }
    // Root may write everywhere.
    let sealed = dir.path().join("sealed");
    fs::create_dir(&sealed).unwrap();
    fs::set_permissions(&sealed, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(sealed.join("probe"), "").is_err() {
        let error = open(&sealed.join("data")).map(drop).unwrap_err().to_string();
        assert!(error.contains("permission denied: the server runs as user"), "{error}");
    }
}

#[test]
fn a_file_system_that_becomes_read_only_is_reported() {
    let Some(mount) = Mount::tmpfs(8 << 20) else {
        return skip("this test needs permission to mount a tmpfs");
    };
    drop(open(mount.path()).unwrap());
    if !mount.make_read_only() {
        return skip("the tmpfs cannot be made read-only");
    }
    assert_eq!(open(mount.path()).map(|_| ()), Err(StoreError::ReadOnly));
    let looked = DirectoryStore::open_read_only(mount.path(), &DirectoryOptions::default()).unwrap();
    assert!(block_on(looked.list()).unwrap().is_empty());
}

#[test]
fn a_deleted_directory_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let store = DirectoryStore::open(&path, &options(IoMode::Auto, true)).unwrap();
    block_on(async {
        store.append(id(1), 0, pattern(1, 4096), 8192).await.unwrap();
        store.swap_superblock(&superblock(1)).await.unwrap();
        fs::remove_dir_all(&path).unwrap();
        let errors = [
            store.append(id(2), 0, pattern(1, 4096), 4096).await.map(|_| ()).unwrap_err(),
            store.read(id(3), 0, 4096).await.map(|_| ()).unwrap_err(),
            store.list().await.map(|_| ()).unwrap_err(),
            store.swap_superblock(&superblock(2)).await.unwrap_err(),
        ];
        for error in errors {
            assert!(reason(&error).contains("was deleted"), "{error}");
        }
    });
}

#[test]
fn reads_of_a_truncated_file_are_short() {
    let dir = tempfile::tempdir().unwrap();
    for direct in [true, false] {
        let store = DirectoryStore::open(dir.path(), &options(IoMode::Auto, direct)).unwrap();
        block_on(store.delete(id(1))).unwrap();
        block_on(async { store.append(id(1), 0, pattern(1, 65536), 65536).await }).unwrap();
        let file = fs::File::options().write(true).open(dir.path().join("segments/00000001.seg")).unwrap();
        file.set_len(10_000).unwrap();
        let read = block_on(store.read(id(1), 0, 65536)).unwrap();
        assert!(read[..] == pattern(1, 65536)[..10_000]);
        assert!(block_on(store.read(id(1), 12288, 4096)).unwrap().is_empty());
    }
}

#[test]
fn files_with_other_names_are_not_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    for name in ["1.seg", "00000001.bak", "notes"] {
        fs::write(dir.path().join("segments").join(name), "x").unwrap();
    }
    assert!(block_on(store.list()).unwrap().is_empty());
}

#[test]
fn more_operations_than_a_queue_holds_all_complete() {
    for io in [IoMode::Auto, IoMode::Threads] {
        let dir = tempfile::tempdir().unwrap();
        let store = DirectoryStore::open(dir.path(), &options(io, true)).unwrap();
        let data = pattern(1, 1 << 20);
        block_on(async {
            store.append(id(1), 0, IoBuf::from(&data[..]), 1 << 20).await.unwrap();
            let reads = (0..6000).map(|n| (n % 256 * 4096, store.read(id(1), n as u64 % 256 * 4096, 4096)));
            for (at, read) in reads.collect::<Vec<_>>() {
                assert!(read.await.unwrap()[..] == data[at..at + 4096]);
            }
        });
    }
}

#[test]
fn a_sandbox_without_io_uring_and_direct_io_gets_threads_and_the_page_cache() {
    // A filter applies to one thread and those that it starts.
    let sandboxed = std::thread::spawn(|| {
        if !crate::common::forbid_uring_and_direct_io() {
            return skip("this system does not support seccomp filters");
        }
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        assert_eq!(store.modes(), (false, false));
        block_on(async {
            store.append(id(1), 0, pattern(1, 65536), 1 << 20).await.unwrap();
            store.sync(id(1)).await.unwrap();
            store.swap_superblock(&superblock(1)).await.unwrap();
            assert_eq!(store.read(id(1), 4096, 8192).await.unwrap()[..], pattern(1, 65536)[4096..12288]);
        });
    });
    sandboxed.join().unwrap();
}

/// A sandbox may know `pwritev2`, or its flags, only to refuse them.
#[test]
fn a_sandbox_that_refuses_synced_writes_gets_writes_and_syncs() {
    for errno in [libc::ENOSYS, libc::EPERM, libc::EOPNOTSUPP] {
        let sandboxed = std::thread::spawn(move || {
            if !crate::common::forbid_uring_and_synced_writes(errno) {
                return skip("this system does not support seccomp filters");
            }
            // A file system on which appends are synced writes.
            let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return skip("no directory in /dev/shm") };
            let store = open(dir.path()).unwrap();
            block_on(async {
                for n in 0..4 {
                    store.append_synced(id(1), n * 4096, pattern(n, 4096), 1 << 20).await.unwrap();
                }
                assert_eq!(store.read(id(1), 12288, 4096).await.unwrap()[..], pattern(3, 4096)[..]);
            });
            drop(store);
            assert!(!dir.path().join("forebay.probe").exists());
        });
        sandboxed.join().unwrap();
    }
}
