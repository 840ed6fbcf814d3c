//! Macros for wrappers of stores: operations that a wrapper does not change are forwarded.

/// Implements the operations of [`Store`](crate::Store) by those of the store in a field, or of the store
/// that a method returns, in an `impl Store` block: `forward_store!(inner; except sync)`. The operations that
/// are listed are implemented by the wrapper.
///
/// Two operations have a default that calls another operation: `append_synced` calls `append`, and `tail`
/// calls `list_lengths_of`. If the wrapper changes the called operation, the default is used and not
/// forwarded, because the operation of the inner store would bypass the change.
#[macro_export]
macro_rules! forward_store {
    ($method:ident(); except $($changed:ident),* $(,)?) => { $crate::forward_store!(@ [$method()] [$($changed)*]); };
    ($method:ident();) => { $crate::forward_store!(@ [$method()] []); };
    ($field:tt; except $($changed:ident),* $(,)?) => { $crate::forward_store!(@ [$field] [$($changed)*]); };
    (@ $inner:tt $changed:tt) => {
        $crate::forward_store! { $inner $changed
            append(id: $crate::SegmentId, offset: u64, data: $crate::IoBuf, expected: u64)
                -> $crate::Completion<$crate::IoBuf>;
            append_synced(id: $crate::SegmentId, offset: u64, data: $crate::IoBuf, expected: u64)
                -> $crate::Completion<$crate::IoBuf>;
            sync(id: $crate::SegmentId) -> $crate::Completion<()>;
            read(id: $crate::SegmentId, offset: u64, len: usize) -> $crate::Completion<$crate::IoBuf>;
            delete(id: $crate::SegmentId) -> $crate::Completion<()>;
            list_lengths_of(selected: $crate::Selection) -> $crate::Completion<Vec<$crate::ObjectStat>>;
            tail(listed: Vec<$crate::SegmentId>, from: $crate::SegmentId)
                -> $crate::Completion<Vec<$crate::ObjectStat>>;
            read_superblock() -> $crate::Completion<[Option<Vec<u8>>; 2]>;
            swap_superblock(new: &$crate::Superblock) -> $crate::Completion<()>;
            capacity() -> $crate::Completion<$crate::Capacity>;
            prepare(id: $crate::SegmentId, expected: u64) -> $crate::Completion<()>;
            overdue(len: usize) -> $crate::BoxFuture<'static, ()>;
            trim(id: $crate::SegmentId, written: u64) -> $crate::BoxFuture<'static, Option<u64>>;
            is_shared() -> bool;
            max_object_bytes() -> u64;
            reserve(bytes: u64) -> $crate::BoxFuture<'static, ()>;
        }
    };
    ($inner:tt $changed:tt $($operation:ident $args:tt -> $answer:ty;)*) => {
        $($crate::forward_store!(@@ $operation $changed $inner $args -> $answer);)*
    };
    // The wrapper implements the operation, or the default is made of an operation that it implements.
    (@@ append [append $($c:ident)*] $($rest:tt)*) => {};
    (@@ append_synced [append $($c:ident)*] $($rest:tt)*) => {};
    (@@ append_synced [append_synced $($c:ident)*] $($rest:tt)*) => {};
    (@@ sync [sync $($c:ident)*] $($rest:tt)*) => {};
    (@@ read [read $($c:ident)*] $($rest:tt)*) => {};
    (@@ delete [delete $($c:ident)*] $($rest:tt)*) => {};
    (@@ list_lengths_of [list_lengths_of $($c:ident)*] $($rest:tt)*) => {};
    (@@ tail [list_lengths_of $($c:ident)*] $($rest:tt)*) => {};
    (@@ tail [tail $($c:ident)*] $($rest:tt)*) => {};
    (@@ read_superblock [read_superblock $($c:ident)*] $($rest:tt)*) => {};
    (@@ swap_superblock [swap_superblock $($c:ident)*] $($rest:tt)*) => {};
    (@@ capacity [capacity $($c:ident)*] $($rest:tt)*) => {};
    (@@ prepare [prepare $($c:ident)*] $($rest:tt)*) => {};
    (@@ overdue [overdue $($c:ident)*] $($rest:tt)*) => {};
    (@@ trim [trim $($c:ident)*] $($rest:tt)*) => {};
    (@@ $operation:ident [$other:ident $($changed:ident)*] $($rest:tt)*) => {
        $crate::forward_store!(@@ $operation [$($changed)*] $($rest)*);
    };
    (@@ $operation:ident [] [$($inner:tt)+] ($($arg:ident: $kind:ty),*) -> $answer:ty) => {
        fn $operation(&self, $($arg: $kind),*) -> $answer {
            self.$($inner)+.$operation($($arg),*)
        }
    };
}
