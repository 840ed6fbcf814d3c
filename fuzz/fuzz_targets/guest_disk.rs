#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_guest::fuzzing::guest_disk(data));
