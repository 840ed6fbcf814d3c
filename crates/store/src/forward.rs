//! Wrappers of stores: what a wrapper does not change is forwarded.

/// Implements operations of [`Store`](crate::Store) by those of the store in a field, in an `impl Store`
/// block: `forward_store!(inner; sync, read)`. An operation with a default has to be forwarded too: otherwise
/// the wrapper has the default instead of what its inner store does.
#[macro_export]
macro_rules! forward_store {
    ($field:tt; $($operation:ident),+ $(,)?) => { $($crate::forward_store!(@ $operation $field);)+ };
    (@ prepare $field:tt) => {
        $crate::forward_store!(@@ $field prepare(id: $crate::SegmentId, expected: u64)
            -> $crate::BoxFuture<'static, $crate::Result<()>>);
    };
    (@ append $field:tt) => {
        $crate::forward_store!(
            @@ $field append(id: $crate::SegmentId, offset: u64, data: $crate::IoBuf, expected: u64)
            -> $crate::BoxFuture<'_, $crate::Result<$crate::IoBuf>>);
    };
    (@ append_synced $field:tt) => {
        $crate::forward_store!(
            @@ $field append_synced(id: $crate::SegmentId, offset: u64, data: $crate::IoBuf, expected: u64)
            -> $crate::BoxFuture<'_, $crate::Result<$crate::IoBuf>>);
    };
    (@ overdue $field:tt) => {
        $crate::forward_store!(@@ $field overdue(len: usize) -> $crate::BoxFuture<'static, ()>);
    };
    (@ sync $field:tt) => {
        $crate::forward_store!(@@ $field sync(id: $crate::SegmentId)
            -> $crate::BoxFuture<'_, $crate::Result<()>>);
    };
    (@ read $field:tt) => {
        $crate::forward_store!(@@ $field read(id: $crate::SegmentId, offset: u64, len: usize)
            -> $crate::BoxFuture<'_, $crate::Result<$crate::IoBuf>>);
    };
    (@ delete $field:tt) => {
        $crate::forward_store!(@@ $field delete(id: $crate::SegmentId)
            -> $crate::BoxFuture<'_, $crate::Result<()>>);
    };
    (@ list $field:tt) => {
        $crate::forward_store!(@@ $field list()
            -> $crate::BoxFuture<'_, $crate::Result<Vec<$crate::ObjectStat>>>);
    };
    (@ list_lengths_of $field:tt) => {
        $crate::forward_store!(@@ $field list_lengths_of(selected: $crate::Selection)
            -> $crate::BoxFuture<'_, $crate::Result<Vec<$crate::ObjectStat>>>);
    };
    (@ tail $field:tt) => {
        $crate::forward_store!(@@ $field tail(listed: Vec<$crate::SegmentId>, from: $crate::SegmentId)
            -> $crate::BoxFuture<'_, $crate::Result<Vec<$crate::ObjectStat>>>);
    };
    (@ trim $field:tt) => {
        $crate::forward_store!(@@ $field trim(id: $crate::SegmentId, written: u64)
            -> $crate::BoxFuture<'_, Option<u64>>);
    };
    (@ read_superblock $field:tt) => {
        $crate::forward_store!(@@ $field read_superblock()
            -> $crate::BoxFuture<'_, $crate::Result<[Option<Vec<u8>>; 2]>>);
    };
    (@ swap_superblock $field:tt) => {
        $crate::forward_store!(@@ $field swap_superblock(new: &$crate::Superblock)
            -> $crate::BoxFuture<'_, $crate::Result<()>>);
    };
    (@ is_shared $field:tt) => { $crate::forward_store!(@@ $field is_shared() -> bool); };
    (@ max_object_bytes $field:tt) => { $crate::forward_store!(@@ $field max_object_bytes() -> u64); };
    (@ reserve $field:tt) => {
        $crate::forward_store!(@@ $field reserve(bytes: u64) -> $crate::BoxFuture<'_, ()>);
    };
    (@ capacity $field:tt) => {
        $crate::forward_store!(@@ $field capacity()
            -> $crate::BoxFuture<'_, $crate::Result<$crate::Capacity>>);
    };
    (@@ $field:tt $operation:ident($($arg:ident: $kind:ty),*) -> $answer:ty) => {
        fn $operation(&self, $($arg: $kind),*) -> $answer {
            self.$field.$operation($($arg),*)
        }
    };
}
