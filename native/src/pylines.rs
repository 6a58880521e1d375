//! `lines`, `syncer` and `rounds`, as Python sees them: the connections of a server, the writes that were taken from them,
//! the thread that makes them durable, and how threads share that.
//!
//! Calls of the system that do not wait keep the interpreter: a helper that got it meanwhile would keep the event loop
//! for as long as it works, which is longer than they take.

use crate::alone::{alone, call};
use crate::frame::Out;
use crate::lines::{Event, Handle, Lines as Table, Pass, Run as Found};
use crate::python::limits_of;
use crate::rounds::{Came, Joined, Round};
use crate::write::{self, Place};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DATA: u8 = 0;
const ENDED: u8 = 1;
const LOST: u8 = 2;
const SENT: u8 = 3;

fn failed(error: Errno) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), "the system gives nothing to wait for"))
}

/// Writes to one topic that were taken in one pass; to the engine they are what `engine.records.Joined` is.
#[pyclass(frozen, module = "topics_kernel")]
pub struct Run {
    found: Found,
}

#[pymethods]
impl Run {
    /// The number of their topic.
    #[getter]
    fn topic(&self) -> u32 {
        self.found.topic
    }

    /// How many there are.
    #[getter]
    fn writes(&self) -> usize {
        self.found.writes.len()
    }

    /// Of their bodies.
    #[getter]
    fn body_bytes(&self) -> usize {
        self.found.bodies.len()
    }

    #[getter]
    fn records(&self) -> usize {
        self.found.records
    }

    /// Canonical bytes of all data and meta [REC-12].
    #[getter]
    fn total(&self) -> usize {
        self.found.total
    }

    #[getter]
    fn has_tags(&self) -> bool {
        self.found.has_tags()
    }

    /// The tag of each record.
    #[getter]
    fn tags<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let text = |found: &[u8]| PyString::new(py, std::str::from_utf8(found).expect("valid UTF-8"));
        let tags = self.found.each().map(|(body, record)| record.tag.bytes(body).map(text));
        PyList::new(py, tags.collect::<Vec<_>>())
    }

    /// Each record as it is stored [S-40].
    #[getter]
    fn envelopes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let made = self.found.each().map(|(body, record)| {
            let size = record.accounted() + if record.meta.is_some() { 11 } else { 6 };
            PyBytes::new_with(py, size, |raw| {
                record.envelope(body, &mut Out::new(raw));
                Ok(())
            })
        });
        PyList::new(py, made.collect::<PyResult<Vec<_>>>()?)
    }

    /// Accounted bytes of each record.
    #[getter]
    fn accounted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.found.each().map(|(_, record)| write::Record::accounted(record)).collect::<Vec<_>>())
    }

    /// The number of each write's head.
    #[getter]
    fn heads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.found.writes.iter().map(|taken| taken.head))
    }

    /// The body of each write, and how many records it has.
    fn each<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for taken in &self.found.writes {
            list.append((PyBytes::new(py, self.found.body(taken)), taken.found.records.len()))?;
        }
        Ok(list)
    }

    /// WAL frames of all records, where each begins, and their `.idx` entries.
    #[pyo3(signature = (topic_id, first_seq, ts, flags, more, begin=0, end=None, /))]
    #[allow(clippy::too_many_arguments)]
    fn framed<'py>(
        &self,
        py: Python<'py>,
        topic_id: u64,
        first_seq: u64,
        ts: u64,
        flags: u8,
        more: bool,
        begin: usize,
        end: Option<usize>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        if begin != 0 || end.is_some() {
            return Err(PyValueError::new_err("writes that were taken are framed together"));
        }
        if first_seq.checked_add(self.found.records as u64).is_none() {
            return Err(PyValueError::new_err("a field does not fit its frame"));
        }
        let place = Place { topic_id, first_seq, ts, flags, more };
        let mut entries = Vec::new();
        let mut offsets = Vec::new();
        let frames = PyBytes::new_with(py, self.found.frames_bytes(), |raw| {
            offsets = self.found.frames(&place, &mut Out::new(raw), &mut entries);
            Ok(())
        })?;
        Ok((frames, PyBytes::new(py, &offsets), PyBytes::new(py, &entries)))
    }
}

type Told<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, bool);

/// The connections of a server. Event loop only.
#[pyclass(module = "topics_kernel")]
pub struct Lines {
    table: Table<Py<PyAny>, PyBackedBytes>,
}

#[pymethods]
impl Lines {
    #[new]
    #[pyo3(signature = (body_bytes_max, /))]
    fn new(body_bytes_max: usize) -> PyResult<Self> {
        Ok(Lines { table: Table::new(body_bytes_max).map_err(failed)? })
    }

    /// Readable when `receive` has something to do.
    fn fileno(&self) -> RawFd {
        self.table.poll().as_raw_fd()
    }

    /// What a write may hold: the six of 01 §1.1.
    #[pyo3(signature = (limits, /))]
    fn limit(&mut self, limits: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.table.limit(limits_of(limits)?);
        Ok(())
    }

    /// Take a connected socket over that does not block; the number by which it is called from now on.
    #[pyo3(signature = (fd, owner, /))]
    fn add(&mut self, fd: RawFd, owner: Py<PyAny>) -> PyResult<u64> {
        if fd < 0 {
            return Err(PyValueError::new_err("a socket is needed"));
        }
        // SAFETY: the caller detached it from its object, so that nobody else closes it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(self.table.add(fd, owner).map_err(failed)?.0)
    }

    #[pyo3(signature = (line, /))]
    fn close(&mut self, line: u64) {
        drop(self.table.close(Handle(line)));
        drop(self.table.take_spent());
    }

    #[pyo3(signature = (line, /))]
    fn shutdown(&mut self, line: u64) {
        self.table.shutdown(Handle(line));
    }

    #[pyo3(signature = (line, /))]
    fn pause(&mut self, line: u64) {
        self.table.pause(Handle(line));
    }

    /// Whether another pass has something to do then.
    #[pyo3(signature = (line, /))]
    fn resume(&mut self, line: u64) -> bool {
        self.table.resume(Handle(line));
        self.table.has_more()
    }

    /// The next bytes on the line may be a write that is taken.
    #[pyo3(signature = (line, /))]
    fn plain(&mut self, line: u64) {
        self.table.plain(Handle(line));
    }

    /// Whether a write that was taken is under way, and how many were answered.
    #[pyo3(signature = (line, /))]
    fn served(&self, line: u64) -> (bool, u64) {
        self.table.served(Handle(line))
    }

    /// Take writes with this head from now on.
    #[pyo3(signature = (head, declared, most_records, topic, number, /))]
    fn know(&mut self, head: &[u8], declared: usize, most_records: usize, topic: u32, number: u32) {
        self.table.know(head, declared, most_records, topic, number);
    }

    /// Take none any more.
    fn forget(&mut self) {
        self.table.forget();
    }

    /// Writes that were taken, what else came (owner, kind, bytes or error number), and whether there is more.
    fn receive<'py>(&mut self, py: Python<'py>) -> PyResult<Told<'py>> {
        let Pass { runs, events, more } = self.table.receive();
        drop(self.table.take_spent());
        let taken = PyList::empty(py);
        for found in runs {
            taken.append(Bound::new(py, Run { found })?)?;
        }
        let told = PyList::empty(py);
        for (handle, event) in events {
            let Some(owner) = self.table.owner(handle) else { continue };
            match event {
                Event::Data(begin, end) => {
                    told.append((owner, DATA, PyBytes::new(py, self.table.bytes(begin, end))))?
                }
                Event::Ended => told.append((owner, ENDED, py.None()))?,
                Event::Lost(error) => told.append((owner, LOST, error.raw_os_error()))?,
                Event::Sent => told.append((owner, SENT, py.None()))?,
            }
        }
        self.table.wipe();
        Ok((taken, told, more))
    }

    /// Answer the writes of a run; whether another pass has something to do then.
    #[pyo3(signature = (run, prefix, topic, first, head, performance, /))]
    fn answer(
        &mut self,
        run: &Bound<'_, Run>,
        prefix: &[u8],
        topic: &str,
        first: u64,
        head: u64,
        performance: &[u8],
    ) -> bool {
        self.table.answer(&run.get().found, prefix, topic.as_bytes(), first, head, performance);
        self.table.has_more()
    }

    /// Who is to answer the writes of a run instead; None where the connection is gone.
    #[pyo3(signature = (run, /))]
    fn give_up<'py>(&mut self, py: Python<'py>, run: &Bound<'py, Run>) -> PyResult<Bound<'py, PyList>> {
        let found = &run.get().found;
        self.table.give_up(found);
        PyList::new(py, found.writes.iter().map(|taken| self.table.owner(taken.line)))
    }

    /// Send with the next `flush`; how much waits then.
    #[pyo3(signature = (line, data, /))]
    fn write(&mut self, line: u64, data: PyBackedBytes) -> usize {
        self.table.write(Handle(line), data)
    }

    /// Send the same on many lines at once: the owners of those that did not take all of it, where it waits, and
    /// whether another pass has something to do then.
    #[pyo3(signature = (lines, data, /))]
    fn spread<'py>(
        &mut self,
        py: Python<'py>,
        lines: Vec<u64>,
        data: &Bound<'py, PyBytes>,
    ) -> PyResult<(Bound<'py, PyList>, bool)> {
        let handles: Vec<Handle> = lines.into_iter().map(Handle).collect();
        let left = self.table.spread(&handles, data.as_bytes());
        let waiting = PyList::empty(py);
        for (handle, took) in left {
            self.table.keep(handle, PyBackedBytes::from(data.clone()), took);
            waiting.append(self.table.owner(handle))?;
        }
        Ok((waiting, self.table.has_more()))
    }

    /// Nothing is spread to a line any more.
    #[pyo3(signature = (line, /))]
    fn mute(&mut self, line: u64) {
        self.table.mute(Handle(line));
    }

    /// How many bytes went out on a line.
    #[pyo3(signature = (line, /))]
    fn gone(&self, line: u64) -> u64 {
        self.table.gone(Handle(line))
    }

    /// Whether it is told when output went.
    #[pyo3(signature = (line, tells, /))]
    fn tell(&mut self, line: u64, tells: bool) {
        self.table.tell(Handle(line), tells);
    }

    #[pyo3(signature = (line, /))]
    fn unsent(&self, line: u64) -> usize {
        self.table.unsent(Handle(line))
    }

    /// Send what waits; whether another pass has something to tell then.
    fn flush(&mut self) -> bool {
        self.table.flush();
        drop(self.table.take_spent());
        self.table.has_more()
    }

    /// The same of one line: how much still waits.
    #[pyo3(signature = (line, /))]
    fn send(&mut self, line: u64) -> usize {
        self.table.send(Handle(line));
        drop(self.table.take_spent());
        self.table.unsent(Handle(line))
    }
}

/// Makes files durable beside the interpreter.
#[pyclass(frozen, module = "topics_kernel")]
pub struct Syncer {
    syncer: crate::syncer::Syncer,
    asked: AtomicBool,
}

#[pymethods]
impl Syncer {
    #[new]
    fn new() -> PyResult<Self> {
        let syncer = crate::syncer::Syncer::new().map_err(failed)?;
        Ok(Syncer { syncer, asked: AtomicBool::new(false) })
    }

    /// Readable between the end of a sync and its being taken.
    fn fileno(&self) -> RawFd {
        self.syncer.event().as_raw_fd()
    }

    /// Begin to sync a descriptor, which must stay open until the end is taken; one at a time.
    #[pyo3(signature = (fd, /))]
    fn ask(&self, fd: RawFd) -> PyResult<()> {
        if self.asked.swap(true, Ordering::AcqRel) {
            return Err(PyValueError::new_err("another sync is under way"));
        }
        self.syncer.ask(fd);
        Ok(())
    }

    /// How it ended, once: 0 or the number of an error; `None` while it runs.
    fn take(&self) -> Option<i32> {
        let errno = self.syncer.take()?;
        self.asked.store(false, Ordering::Release);
        Some(errno)
    }

    /// The same, at its end.
    fn wait(&self, py: Python<'_>) -> PyResult<i32> {
        if !self.asked.load(Ordering::Acquire) {
            return Err(PyValueError::new_err("no sync is under way"));
        }
        let errno = alone(py, || self.syncer.wait());
        self.asked.store(false, Ordering::Release);
        Ok(errno)
    }
}

/// How threads share work: one of them has it done for all.
#[pyclass(frozen, module = "topics_kernel")]
pub struct Rounds {
    rounds: crate::rounds::Rounds<Py<PyAny>>,
}

#[pymethods]
impl Rounds {
    #[new]
    #[pyo3(signature = (hand_over, look_again, /))]
    fn new(hand_over: f64, look_again: f64) -> PyResult<Self> {
        Ok(Rounds { rounds: crate::rounds::Rounds::new(seconds(hand_over)?, seconds(look_again)?) })
    }

    /// How many wait for the next round.
    fn gathered(&self) -> usize {
        self.rounds.gathered()
    }

    /// Return when a round with this work is over; one caller serves the work of all, and hears what `serve` raises.
    #[pyo3(signature = (work, serve, /))]
    fn share(&self, py: Python<'_>, work: Py<PyAny>, serve: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut place = match self.rounds.join(work) {
            Joined::Lead(round) => return self.lead(py, round, serve),
            Joined::Wait(place) => place,
        };
        loop {
            let waited = alone(py, || self.rounds.wait(&place));
            match self.rounds.came(&mut place, waited) {
                Came::Over => return Ok(()),
                Came::Lead(round) => return self.lead(py, round, serve),
                Came::Again => {}
            }
            if let Err(error) = py.check_signals() {
                self.rounds.leave(&place);
                return Err(error);
            }
        }
    }
}

impl Rounds {
    fn lead(&self, py: Python<'_>, mut round: Round<Py<PyAny>>, serve: &Bound<'_, PyAny>) -> PyResult<()> {
        let work = std::mem::take(&mut round.work);
        let _led = Led { rounds: &self.rounds, round: Some(round) };
        let work = PyList::new(py, work)?;
        call(serve, &PyTuple::new(py, [work])?).map(|_| ())
    }
}

/// Ends its round, whatever happens.
struct Led<'a> {
    rounds: &'a crate::rounds::Rounds<Py<PyAny>>,
    round: Option<Round<Py<PyAny>>>,
}

impl Drop for Led<'_> {
    fn drop(&mut self) {
        if let Some(round) = self.round.take() {
            self.rounds.end(round);
        }
    }
}

fn seconds(given: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(given).map_err(|error| PyValueError::new_err(error.to_string()))
}
