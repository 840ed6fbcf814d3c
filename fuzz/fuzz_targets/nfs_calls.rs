#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_wire::fuzzing::nfs_calls(data));
