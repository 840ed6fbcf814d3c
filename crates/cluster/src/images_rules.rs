//! The rules of the images of a cluster one by one: each operation that compares what it depends on, with
//! another server that changes it in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_store::rados::{Cluster, SimulatedClient, SimulatedRados};

use crate::error::ClusterError;
use crate::images::{Image, Images, Registration, Seen, State, Use, Uuid};
use crate::testing::{Intercepted, run};

const IMAGE: Uuid = [7; 16];
const HOME: u32 = 1;
const OTHER: u32 = 2;

/// A cluster with a live image, and what a server does with it.
fn live() -> (Arc<SimulatedRados>, Arc<Images>) {
    let rados = SimulatedRados::immediate();
    let images = Arc::new(Images::new(rados.client()));
    let seen = run(images.reserve(IMAGE, ("golden", 4096, 0), 3, (HOME, 1))).unwrap();
    assert!(run(images.publish(&IMAGE, &seen, ([1; 12], 2, 64), 1)).unwrap().is_some());
    (rados, images)
}

fn image(images: &Images) -> Seen<Image> {
    run(images.read()).unwrap().images[&IMAGE].clone()
}

fn registration(images: &Images, shard: u32) -> Seen<Registration> {
    run(images.read()).unwrap().registrations[&(IMAGE, shard)].clone()
}

fn users(images: &Images) -> Vec<u32> {
    run(images.read()).unwrap().users(IMAGE).map(|(shard, _)| shard).collect()
}

/// Deletes the image, as its home does when no shard uses it.
fn delete(images: &Images) {
    let begun = run(images.begin_deletion(&IMAGE, &image(images), 1)).unwrap().unwrap();
    assert!(run(images.unregister(&IMAGE, HOME, &registration(images, HOME))).unwrap());
    assert!(users(images).is_empty());
    assert!(run(images.remove(&IMAGE, &begun)).unwrap());
}

#[test]
fn a_shard_does_not_register_for_an_image_that_was_deleted_in_between() {
    let (rados, images) = live();
    let other = images.clone();
    // The image is deleted after the registration has read it.
    let is_deleted = AtomicBool::new(false);
    let operate = move |client: &SimulatedClient, object: &str, steps, full| {
        if !is_deleted.swap(true, Relaxed) {
            delete(&other);
        }
        client.operate(object, steps, full)
    };
    let late = Images::new(Arc::new(Intercepted { client: rados.client(), operate }));
    let registered = run(late.register(&IMAGE, "golden", OTHER, 5));
    assert_eq!(registered, Err(ClusterError::Missing("golden".into())));
    assert!(users(&images).is_empty());
}

#[test]
fn a_late_removal_of_a_registration_has_no_effect_on_a_newer_one() {
    let (_, images) = live();
    run(images.register(&IMAGE, "golden", OTHER, 5)).unwrap();
    let seen = registration(&images, OTHER);
    // The same owner, and the next one, use the image again.
    for term in [5, 6] {
        run(images.register(&IMAGE, "golden", OTHER, term)).unwrap();
        assert!(!run(images.unregister(&IMAGE, OTHER, &seen)).unwrap());
        assert!(!run(images.state_use(&IMAGE, OTHER, &seen, 5, (Use::Detached, None))).unwrap());
        assert_eq!(users(&images), [HOME, OTHER]);
    }
    let earlier = run(images.register(&IMAGE, "golden", OTHER, 5));
    assert_eq!(earlier, Err(ClusterError::Lost(OTHER)), "an earlier owner does not replace it");
    assert!(run(images.unregister(&IMAGE, OTHER, &registration(&images, OTHER))).unwrap());
    assert_eq!(users(&images), [HOME]);
}

#[test]
fn an_image_without_its_home_does_not_become_live_again() {
    let (_, images) = live();
    let home = registration(&images, HOME);
    let begun = run(images.begin_deletion(&IMAGE, &image(&images), 1)).unwrap().unwrap();
    assert!(run(images.unregister(&IMAGE, HOME, &home)).unwrap());
    assert!(!run(images.restore(&IMAGE, &begun, &home, 1)).unwrap());
    assert_eq!(image(&images).value.state, State::Deleting);
}

#[test]
fn what_was_read_before_a_deletion_that_was_given_up_is_not_compared_with_success() {
    let (_, images) = live();
    let first = image(&images);
    let begun = run(images.begin_deletion(&IMAGE, &first, 1)).unwrap().unwrap();
    assert!(run(images.restore(&IMAGE, &begun, &registration(&images, HOME), 1)).unwrap());
    assert!(run(images.begin_deletion(&IMAGE, &first, 1)).unwrap().is_none());
    let again = run(images.begin_deletion(&IMAGE, &image(&images), 1)).unwrap().unwrap();
    assert!(!run(images.remove(&IMAGE, &begun)).unwrap(), "the entry of the first deletion");
    assert!(run(images.remove(&IMAGE, &again)).unwrap());
}

#[test]
fn numbers_are_reserved_once_and_a_copy_that_was_given_up_is_not_published() {
    let (_, images) = live();
    let taken = run(images.reserve(IMAGE, ("golden", 4096, 0), 3, (HOME, 1)));
    assert_eq!(taken.unwrap_err(), ClusterError::Exists("golden".into()));
    let next = run(images.reserve([8; 16], ("next", 4096, 0), 3, (OTHER, 1))).unwrap();
    assert_eq!(next.value.segments(), (1 << 31) + 3..(1 << 31) + 6);
    let all = run(images.read()).unwrap();
    let is_leak = |segment: u32| !all.has_segment((1 << 31) + segment);
    // The image that is live has two of the three segments that were reserved for its copy.
    assert_eq!([0, 1, 2, 3, 5, 6].map(is_leak), [false, false, true, false, false, true]);
    assert!(run(images.remove(&[8; 16], &next)).unwrap());
    assert!(run(images.publish(&[8; 16], &next, ([1; 12], 3, 64), 1)).unwrap().is_none());
    let most = run(images.reserve([9; 16], ("large", 4096, 0), u32::MAX, (OTHER, 1)));
    assert!(matches!(most, Err(ClusterError::Refused(_))), "{most:?}");
}
