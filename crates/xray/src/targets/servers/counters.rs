//! Sets of counters of a Forebay server, read from `forebay stats --json`.

/// Defines a struct of counters. Each counter has JSON pointers, whose values are added. `since` returns the
/// growth of the counters in `grow`; a counter in `level` is the value at a moment, and `since` keeps it.
macro_rules! counters {
    (
        $(#[$about:meta])* $set:ident;
        grow { $($(#[$doc:meta])* $name:ident: $($pointer:literal)+;)+ }
        level { $($(#[$level_doc:meta])* $level:ident: $level_pointer:literal;)* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub struct $set {
            $($(#[$doc])* pub $name: u64,)+
            $($(#[$level_doc])* pub $level: u64,)*
        }

        impl $set {
            /// The counters in the server's output.
            pub fn of(stats: &$crate::targets::servers::Stats) -> $crate::error::Result<$set> {
                Ok($set {
                    $($name: 0 $(+ stats.get($pointer)?)+,)+
                    $($level: stats.get($level_pointer)?,)*
                })
            }

            /// Growth since `before`; `None` if the counters began again, which they do with a server.
            pub fn since(&self, before: &$set) -> Option<$set> {
                Some($set {
                    $($name: self.$name.checked_sub(before.$name)?,)+
                    $($level: self.$level,)*
                })
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// Operations and bytes of the store below a target.
    StoreOps;
    grow {
        /// Reads and writes of clients, as the server counts them.
        guest_ops: "/guest/read/ops" "/guest/write/ops";
        /// Reads of the store.
        read_ops: "/store/read/ops";
        /// Writes of the store.
        write_ops: "/store/write/ops";
        /// Bytes that were read from the store.
        read_bytes: "/store/read/bytes";
        /// Bytes that were written to the store.
        write_bytes: "/store/write/bytes";
        /// Syncs of the store.
        sync_ops: "/store/sync_ops";
    }
    level {}
}
