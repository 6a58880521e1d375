//! What Python sees. Values are converted here and nowhere else; the other modules know bytes.
//!
//! From `ALONE_BYTES` on a call lets go of the interpreter while it works.

use crate::alone::alone;
use crate::answer;
use crate::data::{self, Made};
use crate::frame::{self, Checked, Head, Out, FRAME_BYTES, FRAME_LEN_MAX, HAS_NODE, HAS_TAG, MORE};
use crate::places::{self, Chosen};
use crate::record;
use crate::render::{self, Wanted};
use crate::write::{self, Limits, Place, Scanned, Text};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

/// Changes with any signature: `topics.codec.kernel` uses no other one.
const INTERFACE: u32 = 10;

/// About what is done in the time that handing the interpreter over and back takes.
const ALONE_BYTES: usize = 64 << 10;

/// What a record counts for where bytes are not counted: a usual one has as many.
const ALONE_RECORD: usize = 160;

/// Work on so many bytes, without the interpreter if they are many.
fn work<T: Send>(py: Python<'_>, bytes: usize, call: impl FnOnce() -> T + Send) -> T {
    if bytes >= ALONE_BYTES {
        alone(py, call)
    } else {
        call()
    }
}

fn is_contiguous(buffer: &PyBuffer<u8>) -> PyResult<()> {
    if buffer.is_c_contiguous() {
        Ok(())
    } else {
        Err(PyBufferError::new_err("bytes that lie side by side are needed"))
    }
}

/// The bytes of a buffer.
fn bytes(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    is_contiguous(buffer)?;
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: a held buffer keeps its exporter's memory in place and at its size, for at least as long as the borrow.
    // Callers hand over what nobody writes to meanwhile: immutable bytes, files that are mapped, buffers of their own.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) })
}

/// The bytes of a buffer that is changed in place.
fn bytes_mut(buffer: &mut PyBuffer<u8>) -> PyResult<&mut [u8]> {
    is_contiguous(buffer)?;
    if buffer.readonly() {
        return Err(PyBufferError::new_err("these bytes cannot be changed"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as above; it is writable, and the caller has it to itself.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) })
}

/// Numbers that came as the bytes of an array of 64-bit integers.
fn numbers(raw: &[u8]) -> Vec<u64> {
    raw.chunks_exact(8).map(|word| frame::u64_at(word, 0)).collect()
}

/// The body of a write: as it came, or put together here.
enum Body {
    Whole(Py<PyBytes>),
    Joined(Vec<u8>),
}

impl Body {
    fn as_bytes<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        match self {
            Body::Whole(body) => body.as_bytes(py),
            Body::Joined(body) => body,
        }
    }
}

impl Drop for Body {
    /// Giving megabytes back takes its time, which need not be the interpreter's.
    fn drop(&mut self) {
        if let Body::Joined(body) = self {
            let body = std::mem::take(body);
            Python::try_attach(|py| work(py, body.len(), || drop(body)));
        }
    }
}

/// The body of a write that is plainly right.
#[pyclass(frozen, module = "topics_kernel")]
struct Written {
    body: Body,
    found: Scanned,
}

impl Written {
    fn text<'py>(&self, py: Python<'py>, text: &Text) -> Option<Bound<'py, PyString>> {
        let found = text.bytes(self.body.as_bytes(py))?;
        // It was checked as a part of the body, or made of characters.
        Some(PyString::new(py, std::str::from_utf8(found).expect("valid UTF-8")))
    }

    fn other<'py>(&self, py: Python<'py>, at: usize) -> Option<Bound<'py, PyBytes>> {
        let (begin, end) = self.found.others[at]?;
        Some(PyBytes::new(py, &self.body.as_bytes(py)[begin..end]))
    }

    fn envelope_of<'py>(&self, py: Python<'py>, record: &write::Record) -> PyResult<Bound<'py, PyBytes>> {
        let body = self.body.as_bytes(py);
        let size = record.accounted() + if record.meta.is_some() { 11 } else { 6 };
        PyBytes::new_with(py, size, |raw| {
            record.envelope(body, &mut Out::new(raw));
            Ok(())
        })
    }
}

#[pymethods]
impl Written {
    /// How many there are.
    #[getter]
    fn records(&self) -> usize {
        self.found.records.len()
    }

    /// It is one.
    #[getter]
    fn writes(&self) -> usize {
        1
    }

    /// Canonical bytes of all data and meta [REC-12].
    #[getter]
    fn total(&self) -> usize {
        self.found.accounted
    }

    /// Whether it has no member but records and node.
    #[getter]
    fn is_plain(&self) -> bool {
        self.found.others.iter().all(Option::is_none)
    }

    #[getter]
    fn node<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        self.text(py, &self.found.node)
    }

    #[getter]
    fn idempotency_key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.other(py, 0)
    }

    #[getter]
    fn producer<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.other(py, 1)
    }

    #[getter]
    fn create<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.other(py, 2)
    }

    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.other(py, 3)
    }

    #[getter]
    fn disable_backpressure<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.other(py, 4)
    }

    /// Whether any record has a tag.
    #[getter]
    fn has_tags(&self) -> bool {
        self.found.records.iter().any(|record| record.tag != Text::Absent)
    }

    /// The tag of each record.
    #[getter]
    fn tags<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.found.records.iter().map(|record| self.text(py, &record.tag)))
    }

    /// Each record as it is stored [S-40].
    #[getter]
    fn envelopes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let made = self.found.records.iter().map(|record| self.envelope_of(py, record));
        PyList::new(py, made.collect::<PyResult<Vec<_>>>()?)
    }

    /// Accounted bytes of each record.
    #[getter]
    fn accounted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.found.records.iter().map(write::Record::accounted))
    }

    /// Node, tag and envelope of each record.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for record in &self.found.records {
            let node = if record.node == Text::Absent { &self.found.node } else { &record.node };
            list.append((self.text(py, node), self.text(py, &record.tag), self.envelope_of(py, record)?))?;
        }
        Ok(list)
    }

    /// WAL frames of some records, all by default, where each begins, and their `.idx` entries.
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
        let (body, node) = (self.body.as_bytes(py), &self.found.node);
        let records = &self.found.records;
        let Some(chosen) = records.get(begin..end.unwrap_or(records.len())) else {
            return Err(PyValueError::new_err("no such records"));
        };
        if first_seq.checked_add(chosen.len() as u64).is_none() {
            return Err(PyValueError::new_err("a field does not fit its frame"));
        }
        let place = Place { topic_id, first_seq, ts, flags, more };
        let mut entries = Vec::new();
        let mut offsets = Vec::new();
        let frames = PyBytes::new_with(py, write::frames_bytes(body, chosen, node), |raw| {
            offsets =
                work(py, raw.len(), || write::frames(body, chosen, node, &place, &mut Out::new(raw), &mut entries));
            Ok(())
        })?;
        Ok((frames, PyBytes::new(py, &offsets), PyBytes::new(py, &entries)))
    }
}

/// Scan the body of a write; `None` for what is not plainly right. `limits` begins with the six of 01 §1.1.
#[pyfunction]
#[pyo3(signature = (body, limits, /))]
fn scan_write(py: Python<'_>, body: Bound<'_, PyBytes>, limits: &Bound<'_, PyTuple>) -> PyResult<Option<Written>> {
    let limits = limits_of(limits)?;
    let raw = body.as_bytes();
    let found = work(py, raw.len(), || write::scan(raw, &limits));
    Ok(found.map(|found| Written { body: Body::Whole(body.unbind()), found }))
}

pub(crate) fn limits_of(given: &Bound<'_, PyTuple>) -> PyResult<Limits> {
    let limit = |at: usize| given.get_item(at)?.extract::<usize>();
    Ok(Limits {
        records: limit(0)?,
        record_bytes: limit(1)?,
        meta_bytes: limit(2)?,
        meta_members: limit(3)?,
        tag_bytes: limit(4)?,
        node_bytes: limit(5)?,
    })
}

/// The same of a large body that came in pieces.
#[pyfunction]
#[pyo3(signature = (chunks, limits, /))]
fn scan_chunks(
    py: Python<'_>,
    chunks: Vec<Bound<'_, PyBytes>>,
    limits: &Bound<'_, PyTuple>,
) -> PyResult<Option<Written>> {
    let limits = limits_of(limits)?;
    let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
    let found = alone(py, || {
        let body = pieces.concat();
        write::scan(&body, &limits).map(|found| (body, found))
    });
    Ok(found.map(|(body, found)| Written { body: Body::Joined(body), found }))
}

type Uploaded<'py> = (Bound<'py, PyList>, usize, usize, Bound<'py, PyBytes>);

/// Frames that a client sent, in pieces, as they are staged, how many, their accounted bytes, and the digest of all;
/// `None` unless all are plainly right.
#[pyfunction]
#[pyo3(signature = (chunks, limits, piece_bytes, /))]
fn uploaded<'py>(
    py: Python<'py>,
    chunks: Vec<Bound<'py, PyBytes>>,
    limits: &Bound<'py, PyTuple>,
    piece_bytes: usize,
) -> PyResult<Option<Uploaded<'py>>> {
    let limits = limits_of(limits)?;
    let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
    let size = pieces.iter().map(|piece| piece.len()).sum();
    let Some(made) = work(py, size, || match pieces[..] {
        [whole] => data::uploaded(whole, &limits, piece_bytes),
        _ => data::uploaded(&pieces.concat(), &limits, piece_bytes),
    }) else {
        return Ok(None);
    };
    let list = PyList::empty(py);
    for piece in made.pieces {
        list.append(PyBytes::new_with(py, piece.len(), |raw| {
            work(py, piece.len(), || {
                raw.copy_from_slice(&piece);
                drop(piece);
            });
            Ok(())
        })?)?;
    }
    Ok(Some((list, made.records, made.accounted, PyBytes::new(py, &made.digest))))
}

type Row<'py> = (Option<Bound<'py, PyString>>, Option<Bound<'py, PyString>>, Bound<'py, PyBytes>);

/// WAL frames of records given as node, tag and envelope; `None` for a value that fits no frame.
#[pyfunction]
#[pyo3(signature = (records, topic_id, first_seq, ts, flags, more, /))]
fn frame_values<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyList>,
    topic_id: u64,
    first_seq: u64,
    ts: u64,
    flags: u8,
    more: bool,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let rows = records.iter().map(|row| row.extract::<Row>()).collect::<PyResult<Vec<_>>>()?;
    let mut size = 0;
    for (node, tag, data) in &rows {
        let node_len = node.as_ref().map_or(Ok(0), |node| node.to_str().map(str::len))?;
        let tag_len = tag.as_ref().map_or(Ok(0), |tag| tag.to_str().map(str::len))?;
        let frame = FRAME_BYTES + node_len + tag_len + data.as_bytes().len();
        if frame > FRAME_LEN_MAX + 4 || node_len.max(tag_len) > usize::from(u16::MAX) {
            return Ok(None);
        }
        size += frame;
    }
    if first_seq.checked_add(rows.len() as u64).is_none() {
        return Ok(None);
    }
    PyBytes::new_with(py, size, |raw| {
        let mut out = Out::new(raw);
        for (i, (node, tag, data)) in rows.iter().enumerate() {
            let kind = tag.as_ref().map_or(0, |_| HAS_TAG) | node.as_ref().map_or(0, |_| HAS_NODE);
            let chained = if more || i + 1 != rows.len() { MORE } else { 0 };
            let data = data.as_bytes();
            let head = Head {
                flags: flags | kind | chained,
                topic_id,
                seq: first_seq + i as u64,
                ts,
                node: node.as_ref().map_or(Ok(""), |node| node.to_str())?.as_bytes(),
                tag: tag.as_ref().map_or(Ok(""), |tag| tag.to_str())?.as_bytes(),
                data_len: data.len(),
            };
            frame::append(&mut out, &head, |out| out.put(data));
        }
        Ok(())
    })
    .map(Some)
}

/// The body of what a write answers; `performance` is the member of that name.
#[pyfunction]
#[pyo3(signature = (topic, first, count, head, seqs, performance, /))]
fn answer_write<'py>(
    py: Python<'py>,
    topic: &str,
    first: u64,
    count: u64,
    head: u64,
    seqs: bool,
    performance: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    if count == 0 || first.checked_add(count).is_none() {
        return Err(PyValueError::new_err("an answer names at least one record"));
    }
    Ok(PyBytes::new(py, &answer::write(topic.as_bytes(), first, count, head, seqs, performance)))
}

type Verified<'py> = (Bound<'py, PyBytes>, usize, u8);

fn verified(py: Python<'_>, found: Checked) -> Verified<'_> {
    (PyBytes::new(py, &found.rows), found.stop, found.why as u8)
}

fn range(begin: usize, end: usize, len: usize) -> PyResult<()> {
    if begin <= end && end <= len {
        Ok(())
    } else {
        Err(PyValueError::new_err(format!("range {begin}..{end} is not in the buffer")))
    }
}

/// Rows of the valid WAL frames of a range, where they stop, and why.
#[pyfunction]
#[pyo3(signature = (buffer, begin, end, /))]
fn verify<'py>(py: Python<'py>, buffer: PyBuffer<u8>, begin: usize, end: usize) -> PyResult<Verified<'py>> {
    let raw = bytes(&buffer)?;
    range(begin, end, raw.len())?;
    let found = work(py, end - begin, || frame::verify(raw, begin, end));
    Ok(verified(py, found))
}

/// The same of `.data` frames.
#[pyfunction]
#[pyo3(signature = (buffer, mask, begin, end, /))]
fn verify_data<'py>(
    py: Python<'py>,
    buffer: PyBuffer<u8>,
    mask: u64,
    begin: usize,
    end: usize,
) -> PyResult<Verified<'py>> {
    let raw = bytes(&buffer)?;
    range(begin, end, raw.len())?;
    let found = work(py, end - begin, || data::verify(raw, mask, begin, end));
    Ok(verified(py, found))
}

fn as_many(columns: &[&[u8]]) -> PyResult<()> {
    if columns.iter().all(|column| column.len() == columns[0].len() && column.len() % 8 == 0) {
        Ok(())
    } else {
        Err(PyValueError::new_err("as many numbers of each kind are needed"))
    }
}

/// Which places hold a frame of that size and seq: 1 or 0 for each; with a mask, an intact one.
#[pyfunction]
#[pyo3(signature = (buffer, mask, starts, sizes, seqs, /))]
fn agree<'py>(
    py: Python<'py>,
    buffer: PyBuffer<u8>,
    mask: Option<u64>,
    starts: &[u8],
    sizes: &[u8],
    seqs: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let raw = bytes(&buffer)?;
    as_many(&[starts, sizes, seqs])?;
    let found = work(py, raw.len(), || places::agree(raw, mask, starts, sizes, seqs));
    Ok(PyBytes::new(py, &found))
}

type Arrow<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Node, tag and data of frames that agree with their entries, as Arrow has them: which there are (nothing for all of
/// them), their ends, their bytes. `None`: the twin has to look.
#[pyfunction]
#[pyo3(signature = (buffer, starts, entries, node, tag, data, binary, /))]
#[allow(clippy::too_many_arguments)]
fn columns<'py>(
    py: Python<'py>,
    buffer: PyBuffer<u8>,
    starts: &[u8],
    entries: &[u8],
    node: bool,
    tag: bool,
    data: bool,
    binary: bool,
) -> PyResult<Option<[Arrow<'py>; 3]>> {
    let raw = bytes(&buffer)?;
    if starts.len() % 8 != 0 || starts.len() / 8 * frame::ENTRY_BYTES != entries.len() {
        return Err(PyValueError::new_err("as many entries as places are needed"));
    }
    let chosen = Chosen { node, tag, data, binary };
    let found = work(py, raw.len(), || places::columns(raw, starts, entries, chosen));
    Ok(found.map(|columns| {
        columns
            .map(|one| (PyBytes::new(py, &one.present), PyBytes::new(py, &one.offsets), PyBytes::new(py, &one.values)))
    }))
}

/// Entries of the frames at rows of `verify`, and their accounted sizes; `None` where the twin has to look.
#[pyfunction]
#[pyo3(signature = (buffer, rows, /))]
fn index_rows<'py>(
    py: Python<'py>,
    buffer: PyBuffer<u8>,
    rows: &[u8],
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let raw = bytes(&buffer)?;
    let made = work(py, rows.len(), || data::index_rows(raw, rows));
    Ok(made.map(|(entries, sizes)| (PyBytes::new(py, &entries), PyBytes::new(py, &sizes))))
}

/// How many bytes the WAL frames of new entries have; `None` if they are not what a tail may hold [S-104, S-123].
#[pyfunction]
#[pyo3(signature = (entries, ts_before, /))]
fn tail_bytes(entries: &[u8], ts_before: u64) -> Option<usize> {
    data::tail_bytes(entries, ts_before)
}

/// Mark entries deleted in place; how many of them lived, and their accounted bytes.
#[pyfunction]
#[pyo3(signature = (entries, first, seqs, /))]
fn mark(mut entries: PyBuffer<u8>, first: u64, seqs: Vec<u64>) -> PyResult<(usize, usize)> {
    data::mark(bytes_mut(&mut entries)?, first, &seqs).ok_or_else(|| PyValueError::new_err("no entry of this seq"))
}

/// `.data` frames and entries of WAL frames; an int tells which one is wrong, `None` that the twin has to look.
#[pyfunction]
#[pyo3(signature = (buffer, offsets, mask, at, hops, /))]
fn reframe<'py>(
    py: Python<'py>,
    buffer: PyBuffer<u8>,
    offsets: &[u8],
    mask: u64,
    at: usize,
    hops: Option<&[u8]>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let raw = bytes(&buffer)?;
    let offsets = numbers(offsets);
    if hops.is_some_and(|hops| hops.len() != offsets.len()) {
        return Err(PyValueError::new_err("as many hops as frames are needed"));
    }
    let made = work(py, raw.len(), || data::reframe(raw, &offsets, mask, at, hops));
    Ok(match made {
        Made::All(data, entries) => {
            Some((PyBytes::new(py, &data), PyBytes::new(py, &entries)).into_pyobject(py)?.into_any())
        }
        Made::Wrong(which) => Some(which.into_pyobject(py)?.into_any()),
        Made::Unclear => None,
    })
}

/// Stamp staged frames in place: their entries; an int tells which one is wrong, `None` that the twin has to look.
#[pyfunction]
#[pyo3(signature = (frames, begins, first_seq, ts, mask, /))]
fn stamp<'py>(
    py: Python<'py>,
    mut frames: PyBuffer<u8>,
    begins: &[u8],
    first_seq: u64,
    ts: u64,
    mask: u64,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let begins = numbers(begins);
    if first_seq.checked_add(begins.len() as u64).is_none() {
        return Err(PyValueError::new_err("a field does not fit its frame"));
    }
    let raw = bytes_mut(&mut frames)?;
    let made = work(py, raw.len(), || data::stamp(raw, &begins, first_seq, ts, mask));
    Ok(match made {
        Made::All(_, entries) => Some(PyBytes::new(py, &entries).into_any()),
        Made::Wrong(which) => Some(which.into_pyobject(py)?.into_any()),
        Made::Unclear => None,
    })
}

/// Records of a `.data` file as JSON with commas in between; `None` where anything is out of the ordinary.
#[pyfunction]
#[pyo3(signature = (buffer, entries, first_seq, mask, tags, metas, data, /))]
#[allow(clippy::too_many_arguments)]
fn project<'py>(
    py: Python<'py>,
    buffer: PyBuffer<u8>,
    entries: &[u8],
    first_seq: u64,
    mask: u64,
    tags: bool,
    metas: bool,
    data: bool,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let raw = bytes(&buffer)?;
    let wanted = Wanted { tags, metas, data };
    // A thousand records of a usual size take less time than letting go of the interpreter and getting it back.
    let found = work(py, entries.len(), || render::segment(raw, entries, first_seq, mask, wanted));
    Ok(found.map(|found| PyBytes::new(py, &found.text)))
}

/// The live records in a row from the entry at `at` on, how many they are, and their accounted bytes.
///
/// `limits`: at most so many records and bytes, and how many are too few to end at a dead one. `None`: a closer look.
#[pyfunction]
#[pyo3(signature = (buffer, index, at, limits, first_seq, mask, tags, metas, data, /))]
#[allow(clippy::too_many_arguments)]
fn page<'py>(
    py: Python<'py>,
    buffer: PyBuffer<u8>,
    index: PyBuffer<u8>,
    at: usize,
    limits: (usize, usize, usize),
    first_seq: u64,
    mask: u64,
    tags: bool,
    metas: bool,
    data: bool,
) -> PyResult<Option<(Bound<'py, PyBytes>, usize, usize)>> {
    let (raw, entries) = (bytes(&buffer)?, bytes(&index)?);
    let begin = at.checked_mul(frame::ENTRY_BYTES).filter(|begin| *begin <= entries.len());
    let Some(begin) = begin else { return Err(PyValueError::new_err("no entry is there")) };
    let (wanted, most) =
        (Wanted { tags, metas, data }, render::Most { records: limits.0, bytes: limits.1, few: limits.2 });
    let found = render::page(raw, &entries[begin..], most, first_seq, mask, wanted);
    Ok(found.map(|found| (PyBytes::new(py, &found.text), found.records, found.accounted)))
}

/// The same of WAL frames that were made here and never left memory.
#[pyfunction]
#[pyo3(signature = (frames, offsets, tags, metas, data, /))]
fn project_wal<'py>(
    py: Python<'py>,
    frames: &[u8],
    offsets: &[u8],
    tags: bool,
    metas: bool,
    data: bool,
) -> Option<Bound<'py, PyBytes>> {
    let wanted = Wanted { tags, metas, data };
    render::wal(frames, &numbers(offsets), wanted).map(|found| PyBytes::new(py, &found.text))
}

/// The same as jobs that were claimed for the first time.
#[pyfunction]
#[pyo3(signature = (frames, offsets, first_id, deadline, /))]
fn jobs<'py>(
    py: Python<'py>,
    frames: &[u8],
    offsets: &[u8],
    first_id: u64,
    deadline: u64,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let offsets = numbers(offsets);
    if first_id.checked_add(offsets.len() as u64).is_none() {
        return Err(PyValueError::new_err("an id does not fit 64 bits"));
    }
    Ok(render::jobs(frames, &offsets, first_id, deadline).map(|found| PyBytes::new(py, &found)))
}

/// A batch as server-sent events.
#[pyfunction]
#[pyo3(signature = (name, from_seq, to_seq, head, records, chunked, /))]
fn events<'py>(
    py: Python<'py>,
    name: &str,
    from_seq: u64,
    to_seq: u64,
    head: u64,
    records: Vec<PyBackedBytes>,
    chunked: bool,
) -> Bound<'py, PyBytes> {
    let pieces: Vec<&[u8]> = records.iter().map(|piece| piece.as_ref()).collect();
    PyBytes::new(py, &answer::events(name.as_bytes(), from_seq, to_seq, head, &pieces, chunked))
}

type Appends<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyList>, usize);

/// WAL frames of staged frames, where each begins, their entries, tags and accounted bytes; `None`: the twin has to look.
#[pyfunction]
#[pyo3(signature = (chunk, begins, topic_id, first_seq, ts, flags, more, /))]
#[allow(clippy::too_many_arguments)]
fn appends<'py>(
    py: Python<'py>,
    chunk: &[u8],
    begins: &[u8],
    topic_id: u64,
    first_seq: u64,
    ts: u64,
    flags: u8,
    more: bool,
) -> PyResult<Option<Appends<'py>>> {
    let begins = numbers(begins);
    if first_seq.checked_add(begins.len() as u64).is_none() {
        return Ok(None);
    }
    let place = Place { topic_id, first_seq, ts, flags, more };
    let Some(made) = work(py, begins.len() * ALONE_RECORD, || data::appends(chunk, &begins, &place)) else {
        return Ok(None);
    };
    let tags = PyList::new(py, made.tags.iter().map(|tag| tag.map(|tag| PyBytes::new(py, tag))))?;
    let (frames, offsets) = (PyBytes::new(py, &made.frames), PyBytes::new(py, &made.offsets));
    Ok(Some((frames, offsets, PyBytes::new(py, &made.entries), tags, made.accounted)))
}

/// Places with what is added to each of them, one part behind another.
#[pyfunction]
#[pyo3(signature = (parts, /))]
fn shifted<'py>(py: Python<'py>, parts: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyBytes>> {
    let mut made = Vec::with_capacity(parts.len() * 8);
    for part in parts {
        let (base, offsets) = part.extract::<(u64, Bound<'py, PyBytes>)>()?;
        for offset in offsets.as_bytes().chunks_exact(8) {
            let Some(place) = base.checked_add(frame::u64_at(offset, 0)) else {
                return Err(PyValueError::new_err("a place does not fit 64 bits"));
            };
            made.extend_from_slice(&place.to_le_bytes());
        }
    }
    Ok(PyBytes::new(py, &made))
}

/// A record of the log library without a TTL, its value as it is.
#[pyfunction]
#[pyo3(signature = (key, value, tombstone, /))]
fn encode_record<'py>(
    py: Python<'py>,
    key: &Bound<'py, PyBytes>,
    value: &Bound<'py, PyBytes>,
    tombstone: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let (key, value) = (key.as_bytes(), value.as_bytes());
    let size = record::size(key, value);
    PyBytes::new_with(py, size, |made| {
        work(py, size, || record::encode(made, key, value, tombstone));
        Ok(())
    })
}

/// How many usual records of the log library lie behind `begin`, and where the first other bytes are.
#[pyfunction]
#[pyo3(signature = (buffer, begin, end, /))]
fn walk_records(py: Python<'_>, buffer: PyBuffer<u8>, begin: usize, end: usize) -> PyResult<(usize, usize)> {
    let raw = bytes(&buffer)?;
    range(begin, end, raw.len())?;
    Ok(work(py, end - begin, || record::walk(raw, begin, end)))
}

#[pymodule]
fn topics_kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<Written>()?;
    #[cfg(target_os = "linux")]
    {
        module.add_class::<crate::pylines::Lines>()?;
        module.add_class::<crate::pylines::Run>()?;
        module.add_class::<crate::pylines::Syncer>()?;
        module.add_class::<crate::pylines::Rounds>()?;
    }
    module.add_function(wrap_pyfunction!(scan_write, module)?)?;
    module.add_function(wrap_pyfunction!(scan_chunks, module)?)?;
    module.add_function(wrap_pyfunction!(uploaded, module)?)?;
    module.add_function(wrap_pyfunction!(frame_values, module)?)?;
    module.add_function(wrap_pyfunction!(answer_write, module)?)?;
    module.add_function(wrap_pyfunction!(verify, module)?)?;
    module.add_function(wrap_pyfunction!(verify_data, module)?)?;
    module.add_function(wrap_pyfunction!(agree, module)?)?;
    module.add_function(wrap_pyfunction!(columns, module)?)?;
    module.add_function(wrap_pyfunction!(index_rows, module)?)?;
    module.add_function(wrap_pyfunction!(tail_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(mark, module)?)?;
    module.add_function(wrap_pyfunction!(reframe, module)?)?;
    module.add_function(wrap_pyfunction!(stamp, module)?)?;
    module.add_function(wrap_pyfunction!(appends, module)?)?;
    module.add_function(wrap_pyfunction!(shifted, module)?)?;
    module.add_function(wrap_pyfunction!(encode_record, module)?)?;
    module.add_function(wrap_pyfunction!(walk_records, module)?)?;
    module.add_function(wrap_pyfunction!(project, module)?)?;
    module.add_function(wrap_pyfunction!(page, module)?)?;
    module.add_function(wrap_pyfunction!(project_wal, module)?)?;
    module.add_function(wrap_pyfunction!(jobs, module)?)?;
    module.add_function(wrap_pyfunction!(events, module)?)?;
    Ok(())
}
