//! Working without the interpreter, and coming back to it; calling what may do so.
//!
//! Before 3.14 the interpreter ends a thread that comes back while the process exits: `pthread_exit` unwinds its stack,
//! and Rust aborts the process over that. Daemon threads come back at any time, so here such a thread stops for good
//! instead, which is what 3.14 does to it.

#[cfg(target_os = "linux")]
use pyo3::ffi::PyObject;
use pyo3::ffi::{PyEval_SaveThread, PyThreadState};
use pyo3::prelude::*;
#[cfg(target_os = "linux")]
use pyo3::types::PyTuple;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

extern "C-unwind" {
    /// As in `pyo3::ffi`, where it is said never to unwind.
    fn PyEval_RestoreThread(state: *mut PyThreadState);
    #[cfg(target_os = "linux")]
    fn PyObject_CallObject(callable: *mut PyObject, arguments: *mut PyObject) -> *mut PyObject;
}

/// Dropped by nothing but an unwinding stack.
struct Halt;

impl Drop for Halt {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Call what knows nothing of Python, while other threads have the interpreter.
pub fn alone<T: Send>(_py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    // SAFETY: `_py` says that this thread has the interpreter. It gets it back before anything of Python is touched,
    // and before a panic goes on.
    let state = unsafe { PyEval_SaveThread() };
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let halt = Halt;
    unsafe { PyEval_RestoreThread(state) };
    std::mem::forget(halt);
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Call Python that may wait for something, and so comes back to the interpreter too.
#[cfg(target_os = "linux")]
pub fn call<'py>(callable: &Bound<'py, PyAny>, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    let halt = Halt;
    // SAFETY: both are alive, and this thread has the interpreter. It gives a reference of ours, or null and an error.
    let made = unsafe { PyObject_CallObject(callable.as_ptr(), arguments.as_ptr()) };
    std::mem::forget(halt);
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), made) }
}
