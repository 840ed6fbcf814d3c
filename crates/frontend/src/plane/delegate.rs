//! Streams that are an enum of other streams.

/// Implements `AsyncRead` and `AsyncWrite` for an enum, each of whose variants holds a stream.
macro_rules! delegate_stream {
    ($stream:ident { $($variant:ident),+ }) => {
        impl tokio::io::AsyncRead for $stream {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($stream::$variant(s) => std::pin::Pin::new(s).poll_read(cx, buf)),+
                }
            }
        }

        impl tokio::io::AsyncWrite for $stream {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() {
                    $($stream::$variant(s) => std::pin::Pin::new(s).poll_write(cx, buf)),+
                }
            }
            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bufs: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() {
                    $($stream::$variant(s) => std::pin::Pin::new(s).poll_write_vectored(cx, bufs)),+
                }
            }
            fn is_write_vectored(&self) -> bool {
                true
            }
            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($stream::$variant(s) => std::pin::Pin::new(s).poll_flush(cx)),+
                }
            }
            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($stream::$variant(s) => std::pin::Pin::new(s).poll_shutdown(cx)),+
                }
            }
        }
    };
}

pub(crate) use delegate_stream;
