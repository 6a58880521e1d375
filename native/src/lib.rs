//! The hot loops of `topics`: bytes in, bytes and a verdict out. No rules; no I/O and no state but for `lines`, the
//! connections of a server, `syncer`, `gate` and `rounds`.
//!
//! The specification is the Python of `topics.codec`. Whatever is not plainly right is declined (`None`), and the twin
//! decides about it: a limit, an error code or its words exist in Python only.

#[cfg(feature = "python")]
mod alone;
pub mod answer;
pub mod data;
pub mod frame;
#[cfg(target_os = "linux")]
pub mod gate;
pub mod json;
#[cfg(target_os = "linux")]
pub mod lines;
pub mod places;
#[cfg(all(feature = "python", target_os = "linux"))]
mod pylines;
#[cfg(feature = "python")]
mod python;
pub mod record;
pub mod render;
#[cfg(target_os = "linux")]
pub mod rounds;
#[cfg(target_os = "linux")]
pub mod syncer;
pub mod write;
