//! Plain connections of a server: what came on them, what goes out, and writes that are plainly right [HOTPATH].
//!
//! ```text
//! epoll ─▶ ready lines ─▶ recv ─┬▶ head was seen before, body nothing but plain records ─▶ a run of its topic
//!                               └▶ everything else: told, byte for byte
//! ```
//!
//! A line is read once in a pass, and not at all while its write is under way: requests of a connection are executed one
//! after another. Events are edges, so what was seen and not read yet is remembered here. No rules: a head is known
//! because Python judged it, and whatever differs from it is told.

use crate::answer;
use crate::frame::Out;
use crate::render::number;
use crate::write::{self, Limits, Place, Record, Scanned, Text};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::{self, Errno};
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::OwnedFd;

/// At most so much is read of a line in a pass, and of all together: the others have their turn first [P-10].
pub const READ_BYTES: usize = 32 << 10;
const PASS_BYTES: usize = 256 << 10;
const PASS_LINES: usize = 128;
const EVENTS: usize = 256;
/// What is staged at once, as in `server/gather.py`.
const RUN_BYTES: usize = 256 << 10;
const RUN_WRITES: usize = 128;
const RUN_RECORDS: usize = 1024;
const PIECES: usize = 64;

/// Which line: its place, and how often that was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u64);

impl Handle {
    fn new(at: usize, generation: u32) -> Self {
        Handle(at as u64 | u64::from(generation) << 32)
    }

    fn at(self) -> usize {
        (self.0 & 0xFFFF_FFFF) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What came on a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// From where to where in the pass's bytes.
    Data(usize, usize),
    Ended,
    Lost(Errno),
    /// Output that somebody waits for is on its way.
    Sent,
}

enum Piece<B> {
    Given(B),
    Made(Vec<u8>),
}

impl<B: AsRef<[u8]>> Piece<B> {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Given(given) => given.as_ref(),
            Piece::Made(made) => made,
        }
    }
}

struct Line<O, B> {
    fd: OwnedFd,
    owner: O,
    out: VecDeque<Piece<B>>,
    /// Of the first piece.
    sent: usize,
    unsent: usize,
    /// Bytes that went out.
    gone: u64,
    answered: u64,
    /// Where its last known head is.
    last: usize,
    readable: bool,
    ended: bool,
    /// There was urgent data, at which a read ends early.
    urgent: bool,
    paused: bool,
    /// A write that was taken is under way.
    busy: bool,
    /// What comes next may be taken.
    plain: bool,
    is_ready: bool,
    is_dirty: bool,
    /// It took no more; an event says when it does.
    blocked: bool,
    tells: bool,
    /// The other side sends no more.
    deaf: bool,
    /// Our side ends with what was written.
    mute: bool,
    failed: bool,
}

struct Spot<O, B> {
    generation: u32,
    line: Option<Line<O, B>>,
}

/// A head that was judged: whatever has these bytes is a write to this topic.
struct Head {
    bytes: Box<[u8]>,
    declared: usize,
    /// Answers to more records would be packed.
    most_records: usize,
    topic: u32,
    number: u32,
}

/// A write that was taken.
pub struct Taken {
    pub line: Handle,
    /// The number of its head.
    pub head: u32,
    /// Of its body.
    pub begin: usize,
    pub end: usize,
    pub found: Scanned,
}

/// Writes to one topic that were taken in one pass.
pub struct Run {
    pub topic: u32,
    pub writes: Vec<Taken>,
    pub bodies: Vec<u8>,
    pub records: usize,
    /// Canonical bytes of data and meta [REC-12].
    pub total: usize,
}

impl Run {
    pub fn body(&self, taken: &Taken) -> &[u8] {
        &self.bodies[taken.begin..taken.end]
    }

    /// Of all writes.
    pub fn each(&self) -> impl Iterator<Item = (&[u8], &Record)> {
        self.writes.iter().flat_map(|taken| taken.found.records.iter().map(|record| (self.body(taken), record)))
    }

    pub fn has_tags(&self) -> bool {
        self.each().any(|(_, record)| record.tag != Text::Absent)
    }

    pub fn frames_bytes(&self) -> usize {
        let sizes = self.writes.iter();
        sizes.map(|taken| write::frames_bytes(self.body(taken), &taken.found.records, &taken.found.node)).sum()
    }

    /// Frames and index entries of all writes, each a chain of its own unless there is `more`; where frames begin.
    pub fn frames(&self, place: &Place, out: &mut Out, entries: &mut Vec<u8>) -> Vec<u8> {
        let mut offsets = Vec::with_capacity(self.records * 8);
        let mut first_seq = place.first_seq;
        for taken in &self.writes {
            let place = Place { first_seq, ..*place };
            let Scanned { records, node, .. } = &taken.found;
            offsets.extend(write::frames(self.body(taken), records, node, &place, out, entries));
            first_seq += records.len() as u64;
        }
        offsets
    }

    fn is_full(&self) -> bool {
        self.bodies.len() > RUN_BYTES || self.records >= RUN_RECORDS || self.writes.len() >= RUN_WRITES
    }
}

/// What a pass found. Bytes of events are in `Lines::bytes` until the next one.
pub struct Pass {
    pub runs: Vec<Run>,
    pub events: Vec<(Handle, Event)>,
    /// There is more to do, without another event.
    pub more: bool,
}

/// All lines of a server; `O` is whoever owns one, `B` bytes that are sent as they are.
pub struct Lines<O, B> {
    epoll: OwnedFd,
    places: Vec<Spot<O, B>>,
    free: Vec<usize>,
    ready: VecDeque<Handle>,
    dirty: Vec<Handle>,
    /// To be told in the next pass.
    told: Vec<(Handle, Event)>,
    heads: Vec<Head>,
    by_bytes: HashMap<Box<[u8]>, usize>,
    body_bytes_max: usize,
    limits: Option<Limits>,
    arena: Vec<u8>,
    /// Of `arena`.
    used: usize,
    /// Pieces that were sent: whoever owns them lets go of them.
    spent: Vec<Piece<B>>,
}

impl<O, B: AsRef<[u8]>> Lines<O, B> {
    pub fn new(body_bytes_max: usize) -> io::Result<Self> {
        Ok(Lines {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            places: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            told: Vec::new(),
            heads: Vec::new(),
            by_bytes: HashMap::new(),
            body_bytes_max,
            limits: None,
            arena: vec![0; PASS_BYTES + READ_BYTES],
            used: 0,
            spent: Vec::new(),
        })
    }

    /// Readable when a pass has something to do.
    pub fn poll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// What a write may hold; none is taken before.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = Some(limits);
    }

    // -- lines -------------------------------------------------------------------------------------------------------

    pub fn add(&mut self, fd: OwnedFd, owner: O) -> io::Result<Handle> {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Spot { generation: 0, line: None });
            self.places.len() - 1
        });
        let handle = Handle::new(at, self.places[at].generation);
        let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, &fd, EventData::new_u64(handle.0), flags) {
            self.free.push(at);
            return Err(error);
        }
        self.places[at].line = Some(Line {
            fd,
            owner,
            out: VecDeque::new(),
            sent: 0,
            unsent: 0,
            gone: 0,
            answered: 0,
            last: 0,
            readable: false,
            ended: false,
            urgent: false,
            paused: false,
            busy: false,
            plain: false,
            is_ready: false,
            is_dirty: false,
            blocked: false,
            tells: false,
            deaf: false,
            mute: false,
            failed: false,
        });
        Ok(handle)
    }

    fn line(&mut self, handle: Handle) -> Option<&mut Line<O, B>> {
        let place = self.places.get_mut(handle.at())?;
        if place.generation == handle.generation() {
            place.line.as_mut()
        } else {
            None
        }
    }

    fn look(&self, handle: Handle) -> Option<&Line<O, B>> {
        let place = self.places.get(handle.at())?;
        if place.generation == handle.generation() {
            place.line.as_ref()
        } else {
            None
        }
    }

    pub fn owner(&self, handle: Handle) -> Option<&O> {
        self.look(handle).map(|line| &line.owner)
    }

    /// Close; nothing of it is told any more. Its owner and unsent bytes go back.
    pub fn close(&mut self, handle: Handle) -> Option<O> {
        self.line(handle)?;
        let place = &mut self.places[handle.at()];
        place.generation = place.generation.wrapping_add(1);
        let line = place.line.take()?;
        self.free.push(handle.at());
        self.spent.extend(line.out);
        drop(line.fd);
        Some(line.owner)
    }

    /// No more output.
    pub fn shutdown(&mut self, handle: Handle) {
        if let Some(line) = self.line(handle) {
            // The other side may be gone: then there is nobody to tell.
            let _ = net::shutdown(&line.fd, Shutdown::Write);
        }
    }

    pub fn pause(&mut self, handle: Handle) {
        if let Some(line) = self.line(handle) {
            line.paused = true;
        }
    }

    pub fn resume(&mut self, handle: Handle) {
        if let Some(line) = self.line(handle) {
            line.paused = false;
            self.make_ready(handle);
        }
    }

    /// The next bytes on the line may be a write that is taken.
    pub fn plain(&mut self, handle: Handle) {
        if let Some(line) = self.line(handle) {
            line.plain = true;
        }
    }

    /// Whether a write that was taken is under way, and how many were answered.
    pub fn served(&self, handle: Handle) -> (bool, u64) {
        self.look(handle).map_or((false, 0), |line| (line.busy, line.answered))
    }

    /// There is work for another pass.
    pub fn has_more(&self) -> bool {
        !self.ready.is_empty() || !self.told.is_empty()
    }

    fn make_ready(&mut self, handle: Handle) {
        let Some(line) = self.line(handle) else { return };
        if line.readable && !line.paused && !line.busy && !line.is_ready && !line.deaf {
            line.is_ready = true;
            self.ready.push_back(handle);
        }
    }

    // -- heads -------------------------------------------------------------------------------------------------------

    /// Whatever begins with these bytes, and has so many behind them, is a plain write to this topic.
    pub fn know(&mut self, bytes: &[u8], declared: usize, most_records: usize, topic: u32, number: u32) {
        let at = self.heads.len();
        self.heads.push(Head { bytes: bytes.into(), declared, most_records, topic, number });
        self.by_bytes.insert(bytes.into(), at);
    }

    pub fn forget(&mut self) {
        self.heads.clear();
        self.by_bytes.clear();
    }

    /// The head these bytes begin with, if a write follows and nothing else.
    fn known(&self, data: &[u8], last: usize) -> Option<usize> {
        let fits = |head: &Head| data.len() == head.bytes.len() + head.declared && data.starts_with(&head.bytes);
        if self.heads.get(last).is_some_and(fits) {
            return Some(last);
        }
        let end = data.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let at = *self.by_bytes.get(&data[..end])?;
        fits(&self.heads[at]).then_some(at)
    }

    // -- input -------------------------------------------------------------------------------------------------------

    /// Read what is there.
    pub fn receive(&mut self) -> Pass {
        self.wipe();
        self.poll_lines();
        let mut pass = Pass { runs: Vec::new(), events: std::mem::take(&mut self.told), more: false };
        // Who has more has it in the next pass.
        for _ in 0..self.ready.len().min(PASS_LINES) {
            if self.used > PASS_BYTES {
                break;
            }
            let Some(handle) = self.ready.pop_front() else { break };
            self.read(handle, &mut pass);
        }
        pass.more = !self.ready.is_empty();
        pass
    }

    /// Forget the bytes of the last pass: there may be a key in them, which nothing is to keep [KEY-5].
    pub fn wipe(&mut self) {
        self.arena[..self.used].fill(0);
        self.used = 0;
    }

    /// Bytes of the last pass.
    pub fn bytes(&self, begin: usize, end: usize) -> &[u8] {
        &self.arena[begin..end]
    }

    fn poll_lines(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        if found.is_ok() {
            for event in &events {
                self.note(Handle(event.data.u64()), event.flags);
            }
        }
    }

    fn note(&mut self, handle: Handle, flags: EventFlags) {
        let Some(line) = self.line(handle) else { return };
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            line.ended = true;
        }
        line.urgent |= flags.contains(EventFlags::PRI);
        if flags.contains(EventFlags::IN) || line.ended {
            line.readable = true;
        }
        if flags.contains(EventFlags::OUT) {
            line.blocked = false;
            if line.unsent > 0 {
                self.send(handle);
            }
        }
        self.make_ready(handle);
    }

    fn read(&mut self, handle: Handle, pass: &mut Pass) {
        let (begin, most) = (self.used, READ_BYTES);
        let spot = &mut self.places[handle.at()];
        if spot.generation != handle.generation() {
            return;
        }
        let Some(line) = spot.line.as_mut() else { return };
        line.is_ready = false;
        if line.paused || line.busy || line.deaf {
            return;
        }
        let room = &mut self.arena[begin..begin + most];
        match net::recv(&line.fd, room, RecvFlags::empty()).map(|(count, _)| count) {
            Ok(0) => {
                line.deaf = true;
                pass.events.push((handle, Event::Ended));
            }
            Ok(count) => {
                // A stream that gave less than it might has no more; its end is an event that was seen.
                line.readable = count == most || line.ended || line.urgent;
                let (plain, last, ended) = (line.plain && line.unsent == 0, line.last, line.ended);
                if !(plain && !ended && self.take(handle, begin, begin + count, last, pass)) {
                    self.used = begin + count;
                    if let Some(line) = self.line(handle) {
                        line.plain = false;
                    }
                    pass.events.push((handle, Event::Data(begin, begin + count)));
                }
                self.make_ready(handle);
            }
            Err(Errno::AGAIN) => line.readable = false,
            Err(Errno::INTR) => self.make_ready(handle),
            Err(error) => {
                line.deaf = true;
                if !line.failed {
                    line.failed = true;
                    pass.events.push((handle, Event::Lost(error)));
                }
            }
        }
    }

    /// Take a write, if it is plain.
    fn take(&mut self, handle: Handle, begin: usize, end: usize, last: usize, pass: &mut Pass) -> bool {
        let data = &self.arena[begin..end];
        let (Some(limits), Some(at)) = (&self.limits, self.known(data, last)) else { return false };
        let head = &self.heads[at];
        let body = &data[head.bytes.len()..];
        if body.len() > self.body_bytes_max || !body.is_ascii() {
            return false;
        }
        let Some(found) = write::scan(body, limits) else { return false };
        if found.others.iter().any(Option::is_some) || found.records.len() > head.most_records {
            return false;
        }
        let (topic, number) = (head.topic, head.number);
        let open = pass.runs.iter().position(|run| run.topic == topic && !run.is_full());
        let run = match open {
            Some(at) => &mut pass.runs[at],
            None => {
                pass.runs.push(Run { topic, writes: Vec::new(), bodies: Vec::new(), records: 0, total: 0 });
                pass.runs.last_mut().expect("it was pushed")
            }
        };
        let begin = run.bodies.len();
        run.bodies.extend_from_slice(body);
        run.records += found.records.len();
        run.total += found.accounted;
        run.writes.push(Taken { line: handle, head: number, begin, end: run.bodies.len(), found });
        if let Some(line) = self.line(handle) {
            line.busy = true;
            line.last = at;
        }
        true
    }

    // -- output ------------------------------------------------------------------------------------------------------

    /// Answer the writes of a run: their seqs begin at `first`. `prefix` is a head up to the number of its length.
    pub fn answer(&mut self, run: &Run, prefix: &[u8], name: &[u8], first: u64, head: u64, performance: &[u8]) {
        let mut first = first;
        let mut made = Vec::with_capacity(1024);
        for taken in &run.writes {
            let count = taken.found.records.len() as u64;
            let body = answer::write(name, first, count, head, true, performance);
            first += count;
            made.clear();
            made.extend_from_slice(prefix);
            number(body.len() as u64, &mut made);
            made.extend_from_slice(b"\r\n\r\n");
            made.extend_from_slice(&body);
            let Some(line) = self.line(taken.line) else { continue };
            line.busy = false;
            line.answered += 1;
            if line.failed {
                continue;
            }
            let sent = if line.out.is_empty() { net::send(&line.fd, &made, SendFlags::NOSIGNAL) } else { Ok(0) };
            line.gone += sent.unwrap_or(0) as u64;
            if sent != Ok(made.len()) {
                let sent = sent.unwrap_or(0); // what is wrong is found once more
                line.unsent += made.len() - sent;
                line.out.push_back(Piece::Made(made[sent..].to_vec()));
                line.plain = false;
                self.send(taken.line);
            }
            self.make_ready(taken.line);
        }
    }

    /// The writes of a run are somebody else's to answer.
    pub fn give_up(&mut self, run: &Run) {
        for taken in &run.writes {
            if let Some(line) = self.line(taken.line) {
                line.busy = false;
                line.plain = false;
                self.make_ready(taken.line);
            }
        }
    }

    /// Send behind what waits, with the next `flush`; how much waits then.
    pub fn write(&mut self, handle: Handle, data: B) -> usize {
        let Some(line) = self.line(handle) else { return 0 };
        line.unsent += data.as_ref().len();
        line.out.push_back(Piece::Given(data));
        let unsent = line.unsent;
        self.make_dirty(handle);
        unsent
    }

    fn make_dirty(&mut self, handle: Handle) {
        let Some(line) = self.line(handle) else { return };
        if !line.is_dirty {
            line.is_dirty = true;
            self.dirty.push(handle);
        }
    }

    /// Whether the owner wants to know when output went.
    pub fn tell(&mut self, handle: Handle, tells: bool) {
        if let Some(line) = self.line(handle) {
            line.tells = tells;
        }
    }

    pub fn unsent(&self, handle: Handle) -> usize {
        self.look(handle).map_or(0, |line| line.unsent)
    }

    /// Nothing is spread to it any more.
    pub fn mute(&mut self, handle: Handle) {
        if let Some(line) = self.line(handle) {
            line.mute = true;
        }
    }

    /// How many bytes went out.
    pub fn gone(&self, handle: Handle) -> u64 {
        self.look(handle).map_or(0, |line| line.gone)
    }

    /// Send the same on many lines at once; those that did not take all of it, and how much they took: see `keep`.
    pub fn spread(&mut self, handles: &[Handle], data: &[u8]) -> Vec<(Handle, usize)> {
        let mut left = Vec::new();
        for &handle in handles {
            let Some(line) = self.line(handle) else { continue };
            if line.failed || line.mute {
                continue;
            }
            if !line.out.is_empty() || line.blocked {
                left.push((handle, 0));
                continue;
            }
            let mut at = 0;
            match line.pour_new(data, &mut at) {
                Ok(()) if at == data.len() => {}
                Ok(()) => left.push((handle, at)),
                Err(error) => self.fail(handle, error),
            }
        }
        left
    }

    /// What `spread` could not send all of goes on behind what waits on the line, with the next `flush`.
    pub fn keep(&mut self, handle: Handle, data: B, took: usize) {
        let Some(line) = self.line(handle) else { return };
        line.unsent += data.as_ref().len() - took;
        if line.out.is_empty() {
            line.sent = took;
        }
        line.out.push_back(Piece::Given(data));
        self.make_dirty(handle);
    }

    /// Send what waits on all lines, as far as they take it.
    pub fn flush(&mut self) {
        for handle in std::mem::take(&mut self.dirty) {
            self.send(handle);
        }
    }

    /// The same of one.
    pub fn send(&mut self, handle: Handle) {
        let Some(line) = self.line(handle) else { return };
        line.is_dirty = false;
        let before = line.unsent;
        let mut spent = Vec::new();
        let outcome = line.pour(&mut spent);
        let moved = line.unsent < before && line.tells;
        self.spent.append(&mut spent);
        if let Err(error) = outcome {
            self.fail(handle, error);
        } else if moved {
            self.told.push((handle, Event::Sent));
        }
    }

    fn fail(&mut self, handle: Handle, error: Errno) {
        let Some(line) = self.line(handle) else { return };
        line.deaf = true;
        if !line.failed {
            line.failed = true;
            self.told.push((handle, Event::Lost(error)));
        }
    }

    /// What was sent and may be let go of.
    pub fn take_spent(&mut self) -> impl Sized {
        std::mem::take(&mut self.spent)
    }
}

impl<O, B: AsRef<[u8]>> Line<O, B> {
    /// Send as much as the other side takes.
    fn pour(&mut self, spent: &mut Vec<Piece<B>>) -> io::Result<()> {
        while !self.out.is_empty() && !self.blocked {
            let sent = if self.out.len() == 1 {
                net::send(&self.fd, &self.out[0].bytes()[self.sent..], SendFlags::NOSIGNAL)
            } else {
                let mut parts: Vec<IoSlice> =
                    self.out.iter().take(PIECES).map(|one| IoSlice::new(one.bytes())).collect();
                parts[0] = IoSlice::new(&self.out[0].bytes()[self.sent..]);
                net::sendmsg(&self.fd, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
            };
            match sent {
                Ok(sent) => self.passed(sent, spent),
                Err(Errno::AGAIN) => self.blocked = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The same of bytes that nothing waits in front of; `at`: how much it took.
    fn pour_new(&mut self, data: &[u8], at: &mut usize) -> io::Result<()> {
        while *at < data.len() && !self.blocked {
            match net::send(&self.fd, &data[*at..], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    *at += sent;
                    self.gone += sent as u64;
                }
                Err(Errno::AGAIN) => self.blocked = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn passed(&mut self, count: usize, spent: &mut Vec<Piece<B>>) {
        self.unsent -= count;
        self.gone += count as u64;
        self.sent += count;
        while let Some(first) = self.out.front() {
            let size = first.bytes().len();
            if self.sent < size {
                break;
            }
            self.sent -= size;
            spent.extend(self.out.pop_front());
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))] // which has no sockets
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    const HEAD: &[u8] = b"POST /t HTTP/1.1\r\n\r\n";
    const BODY: &[u8] = b"{\"records\":[{\"data\":1}]}";
    const LIMITS: Limits =
        Limits { records: 9, record_bytes: 99, meta_bytes: 9, meta_members: 9, tag_bytes: 9, node_bytes: 9 };

    fn line(lines: &mut Lines<u8, Vec<u8>>, owner: u8) -> (UnixStream, Handle) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (theirs, lines.add(ours.into(), owner).unwrap())
    }

    fn lines() -> Lines<u8, Vec<u8>> {
        let mut lines = Lines::new(1 << 16).unwrap();
        lines.limit(LIMITS);
        lines.know(HEAD, BODY.len(), 9, 7, 0);
        lines
    }

    #[test]
    fn what_is_told_is_wiped() {
        let mut lines = lines();
        let (mut client, handle) = line(&mut lines, 1);
        client.write_all(b"a secret").unwrap();
        let pass = lines.receive();
        let [(told, Event::Data(begin, end))] = pass.events[..] else { panic!("{:?}", pass.events) };
        assert_eq!((told, lines.bytes(begin, end)), (handle, &b"a secret"[..]));
        lines.wipe();
        assert!(lines.arena.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_write_is_taken_only_of_a_line_that_may_have_one_and_answered_once() {
        let mut lines = lines();
        let (mut client, handle) = line(&mut lines, 1);
        let request = [HEAD, BODY].concat();
        client.write_all(&request).unwrap();
        assert!(lines.receive().runs.is_empty());
        lines.plain(handle);
        client.write_all(&request).unwrap();
        let pass = lines.receive();
        assert_eq!((pass.runs.len(), pass.runs[0].topic, pass.runs[0].records), (1, 7, 1));
        client.write_all(&request).unwrap(); // not looked at before the answer
        assert!(lines.receive().runs.is_empty());
        lines.answer(&pass.runs[0], b"HTTP/1.1 200 OK\r\ncontent-length: ", b"t", 5, 5, b"\"p\":1");
        let mut answer = [0; 4096];
        let size = client.read(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer[..size]).contains("\"first_seq\":5"));
        assert!(lines.has_more());
        assert_eq!(lines.receive().runs.len(), 1);
        assert_eq!(lines.served(handle), (true, 1));
    }

    #[test]
    fn a_place_that_is_used_again_is_another_line() {
        let mut lines = lines();
        let (mut client, old) = line(&mut lines, 1);
        lines.plain(old);
        client.write_all(&[HEAD, BODY].concat()).unwrap();
        let pass = lines.receive();
        assert_eq!(lines.close(old), Some(1));
        let (mut other, new) = line(&mut lines, 2);
        assert_eq!(old.at(), new.at());
        lines.answer(&pass.runs[0], b"", b"t", 5, 5, b"");
        lines.write(old, b"for nobody".to_vec());
        lines.write(new, b"hello".to_vec());
        lines.flush();
        let mut heard = [0; 99];
        let size = other.read(&mut heard).unwrap();
        assert_eq!(&heard[..size], b"hello");
        assert_eq!((lines.owner(old), lines.owner(new)), (None, Some(&2)));
    }

    #[test]
    fn what_is_not_taken_waits_and_goes_on() {
        let mut lines = lines();
        let (mut client, handle) = line(&mut lines, 1);
        let sent: Vec<u8> = (0..4_000_000u32).map(|n| n as u8).collect();
        for piece in sent.chunks(99_999) {
            lines.write(handle, piece.to_vec());
        }
        lines.flush();
        assert!(lines.unsent(handle) > 0);
        lines.tell(handle, true);
        let mut heard = Vec::new();
        let mut part = [0; 65536];
        while heard.len() < sent.len() {
            let size = client.read(&mut part).unwrap();
            heard.extend_from_slice(&part[..size]);
            lines.receive();
        }
        assert!(heard == sent);
        assert_eq!(lines.unsent(handle), 0);
    }

    #[test]
    fn what_is_spread_reaches_everybody_once_and_in_its_place() {
        let mut lines = lines();
        let (mut quick, first) = line(&mut lines, 1);
        let (mut slow, second) = line(&mut lines, 2);
        let (_mute, third) = line(&mut lines, 3);
        let (gone, fourth) = line(&mut lines, 4);
        drop(gone);
        lines.mute(third);
        lines.write(second, b"before".to_vec()); // not flushed yet: what is spread comes behind it
        let handles = [first, second, third, fourth];
        let mut expected = Vec::new();
        let mut part = [0; 1 << 20];
        for n in 0..40u8 {
            let data = vec![n; 50_000];
            for (handle, took) in lines.spread(&handles, &data) {
                assert!(handle == second && took <= data.len());
                lines.keep(handle, data.clone(), took);
            }
            expected.extend_from_slice(&data);
            let mut heard = 0;
            while heard < data.len() {
                heard += quick.read(&mut part[heard..]).unwrap();
            }
            assert_eq!(part[..heard], data);
            if n == 0 {
                lines.flush();
            }
        }
        assert_eq!((lines.unsent(first), lines.gone(first)), (0, 2_000_000));
        assert!(lines.unsent(second) > 0, "its buffers are smaller than that");
        let mut heard = Vec::new();
        while heard.len() < 6 + expected.len() {
            let size = slow.read(&mut part).unwrap();
            heard.extend_from_slice(&part[..size]);
            lines.receive();
        }
        assert!(heard == [b"before", &expected[..]].concat());
        assert_eq!((lines.gone(second), lines.gone(third)), (2_000_006, 0));
        assert!(lines.look(fourth).unwrap().failed);
    }
}
