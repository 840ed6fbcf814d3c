//! The fuzz corpora of image files and URLs, and generated damage.

use forebay_control::fuzzing::{self, TARGETS};

use crate::images;
use crate::stored::{check_programs, run_inputs};

#[test]
fn every_image_and_url_of_the_corpus_passes() {
    images::put_all();
    TARGETS.iter().for_each(run_inputs);
}

#[test]
fn damaged_images_cause_no_panic() {
    images::damage(fuzzing::image_file);
    images::damage_packed(fuzzing::packed_file);
}

#[test]
fn every_target_has_a_program() {
    check_programs(TARGETS);
}
