//! Makes files durable on a thread that never needs the interpreter, so that who holds it is not disturbed: the end is
//! told by an event that an event loop waits for.
//!
//! One sync at a time. Whoever asks keeps the descriptor open until the end is taken.

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fs::fdatasync;
use rustix::io::{self, Errno};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;

/// What both threads have.
struct Told {
    event: OwnedFd,
    /// How the last one ended: 0, or why it failed.
    errno: AtomicI32,
}

impl Told {
    fn tell(&self, ended: io::Result<()>) {
        let errno = ended.err().map_or(0, Errno::raw_os_error);
        self.errno.store(errno, Ordering::Release);
        // It fails only at a counter of nearly 2^64, and every end is taken before the next one begins.
        let _ = io::write(&self.event, &1u64.to_ne_bytes());
    }
}

pub struct Syncer {
    told: Arc<Told>,
    asked: Sender<RawFd>,
}

impl Syncer {
    /// Its thread ends when it is dropped, behind what was asked for.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let told = Arc::new(Told { event, errno: AtomicI32::new(0) });
        let (asked, asks) = channel::<RawFd>();
        let theirs = Arc::clone(&told);
        let work = move || {
            for fd in asks {
                // SAFETY: whoever asked keeps it open until the end is taken.
                let file = unsafe { BorrowedFd::borrow_raw(fd) };
                theirs.tell(io::retry_on_intr(|| fdatasync(file)));
            }
        };
        let begun = std::thread::Builder::new().name("topics-sync".into()).spawn(work);
        begun.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Syncer { told, asked })
    }

    /// Readable between the end of a sync and its being taken.
    pub fn event(&self) -> &OwnedFd {
        &self.told.event
    }

    /// Begin; what was asked for before must have been taken.
    pub fn ask(&self, fd: RawFd) {
        self.asked.send(fd).expect("its thread works as long as it is there");
    }

    /// How the sync ended, once: 0, or why it failed; `None` while it runs.
    pub fn take(&self) -> Option<i32> {
        io::read(&self.told.event, &mut [0; 8]).ok()?;
        Some(self.told.errno.load(Ordering::Acquire))
    }

    /// The same, at its end.
    pub fn wait(&self) -> i32 {
        loop {
            if let Some(errno) = self.take() {
                return errno;
            }
            // Whatever ends it early, it is looked at again.
            let _ = poll(&mut [PollFd::new(&self.told.event, PollFlags::IN)], None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn every_sync_is_told_once_with_how_it_ended() {
        let path = std::env::temp_dir().join(format!("topics-syncer-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        let (pipe, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let syncer = Syncer::new().unwrap();
        assert_eq!(syncer.take(), None);
        for _ in 0..3 {
            file.write_all(b"x").unwrap();
            syncer.ask(file.as_raw_fd());
            assert_eq!(syncer.wait(), 0);
            assert_eq!(syncer.take(), None);
            syncer.ask(pipe.as_raw_fd());
            assert_eq!(syncer.wait(), Errno::INVAL.raw_os_error());
        }
        std::fs::remove_file(path).unwrap();
    }
}
