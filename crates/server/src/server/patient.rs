//! A connection whose peer has to take what is written to it.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::line::Line;

/// How long a peer may take nothing.
pub(super) const UNTAKEN: Duration = Duration::from_secs(30);

/// A connection whose peer has to take what is written to it.
pub(super) struct Patient {
    stream: Arc<TcpStream>,
    /// The line that knows how long the peer has let it wait.
    line: Arc<Line>,
    most: Duration,
    /// The timer that wakes the stream when a wait was too long.
    waits: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(super) fn new(stream: Arc<TcpStream>, line: Arc<Line>) -> Self {
        Self {
            stream,
            line,
            most: UNTAKEN,
            waits: None,
        }
    }

    /// Writes when it can.
    fn write(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while self.stream.poll_write_ready(context)?.is_ready() {
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.waits = None;
                    self.line.has_taken(count);
                    return Poll::Ready(Ok(count));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let (line, most) = (&self.line, self.most);
        let left = || most.saturating_sub(line.is_unread());
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(left())));
        ready!(waits.as_mut().poll(context));
        let message = "the peer does not read";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.line.has_sent(count);
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .write(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = |stream: &TcpStream| stream.try_write_vectored(pieces);
        self.get_mut().write(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Read;

    use tokio::net::TcpListener;

    use super::*;

    /// The error that ends endless writing to a peer that takes `takes` bytes, again and again.
    async fn written(takes: usize, pause: Duration, most: Duration) -> Option<io::ErrorKind> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let mut peer = std::net::TcpStream::connect(address).expect("it listens");
        let (stream, _) = listener.accept().await.expect("the peer");
        let mut patient = Patient::new(Arc::new(stream), Arc::new(Line::new()));
        patient.most = most;
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let taking = std::thread::spawn(move || {
            let mut bytes = vec![0; takes];
            while ended
                .recv_timeout(pause)
                .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                let _ = peer.read_exact(&mut bytes);
            }
        });
        let writing = async {
            loop {
                let bytes = [0; 1 << 16];
                let write =
                    |context: &mut Context<'_>| Pin::new(&mut patient).poll_write(context, &bytes);
                if let Err(error) = poll_fn(write).await {
                    return error.kind();
                }
            }
        };
        let found = tokio::time::timeout(2 * most, writing).await.ok();
        drop(end);
        drop(patient);
        taking.join().expect("it ends");
        found
    }

    #[test]
    fn a_peer_that_takes_nothing_or_single_bytes_is_not_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("the system gives a runtime");
        let most = Duration::from_millis(600);
        let pause = Duration::from_millis(10);
        let of = |takes| runtime.block_on(written(takes, pause, most));
        assert_eq!(of(0), Some(io::ErrorKind::TimedOut));
        assert_eq!(of(1), Some(io::ErrorKind::TimedOut));
        assert_eq!(of(1 << 20), None);
    }
}
