//! Kernels compiled for the CPU, each once, and what runs them.

use super::cpp;
use super::msl::Msl;
use glimt::gpu::testing::metal::Math;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// A kernel that runs on the CPU.
pub(super) struct Program {
    path: PathBuf,
    math: Math,
}

/// The memory that is bound to a slot.
pub(super) struct Slot {
    pub number: u8,
    pub written: bool,
    pub contents: Vec<u8>,
}

/// The files of the standard library and of the host, by name.
const FILES: [(&str, &str); 10] = [
    ("metal_stdlib", include_str!("cpp/metal_stdlib")),
    ("simd/simd.h", include_str!("cpp/simd/simd.h")),
    ("half.h", include_str!("cpp/half.h")),
    ("vectors.h", include_str!("cpp/vectors.h")),
    ("numbers.h", include_str!("cpp/numbers.h")),
    ("waits.h", include_str!("cpp/waits.h")),
    ("matrices.h", include_str!("cpp/matrices.h")),
    ("fibers.h", include_str!("cpp/fibers.h")),
    ("fibers.cpp", include_str!("cpp/fibers.cpp")),
    // Only for those who read the folder.
    (
        "README",
        "Kernels of glimt, compiled by its tests. It can be deleted.",
    ),
];

/// Flags of all. Stacks of fibers are not the sanitizer's, so it leaves them alone. A load stays where the kernel has it, even if its value is
/// used in one branch alone: else the sanitizer would not see loads behind a buffer whose values are not used.
const FLAGS: [&str; 11] = [
    "-std=c++17",
    "-g1",
    "-w",
    "-fsanitize=address,shift,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "-mllvm",
    "-asan-stack=0",
    "-mllvm",
    "-instcombine-code-sinking=0",
    "-fno-stack-protector",
    "-pipe",
];

const fn flags(math: Math) -> &'static [&'static str] {
    match math {
        Math::Precise => &["-O1", "-ffp-contract=off"],
        Math::Fast => &["-O1", "-ffast-math", "-ffp-contract=fast"],
    }
}

/// The folder in which the compiled kernels stay, for the next dispatch, too. The last of its files tells that the others are there.
fn folder() -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    (FILES, FLAGS).hash(&mut hasher);
    let name = format!("glimt-metal-{:016x}", hasher.finish());
    let folder = std::env::temp_dir().join(name);
    if !FILES
        .last()
        .is_some_and(|(name, _)| folder.join(name).exists())
    {
        fs::create_dir_all(folder.join("simd")).map_err(|e| e.to_string())?;
        for (name, text) in FILES {
            replace(&folder.join(name), text.as_bytes())?;
        }
    }
    Ok(folder)
}

/// Writes a file that others may read or write at the same time.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let fresh = path.with_extension(std::process::id().to_string());
    let written = fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, path));
    written.map_err(|e| format!("{}: {e}", path.display()))
}

/// The compiler of kernels, with its flags.
fn compiler(folder: &Path, math: Math) -> Command {
    let mut compiler = Command::new("clang++");
    compiler
        .args(FLAGS)
        .args(flags(math))
        // Conversions of halves in one instruction.
        .args(cfg!(target_arch = "x86_64").then_some("-march=native"))
        .arg("-I")
        .arg(folder);
    compiler
}

/// Has the compiler write a file. Other processes may write the same file, so it gets its name when it is complete.
fn written_by(mut compiler: Command, path: &Path) -> Result<(), String> {
    let fresh = path.with_extension(std::process::id().to_string());
    let output = compiler
        .arg("-o")
        .arg(&fresh)
        .output()
        .map_err(|e| format!("clang++ cannot be run: {e}; install clang"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {said}", path.display()));
    }
    fs::rename(&fresh, path).map_err(|e| e.to_string())
}

/// The compiled host, which runs the threads of a kernel. It is the same for all kernels, so it is compiled once.
fn host(folder: &Path, math: Math) -> Result<PathBuf, String> {
    let path = folder.join(format!("fibers-{math:?}.o"));
    if !path.exists() {
        let mut compiler = compiler(folder, math);
        compiler.arg("-c").arg(folder.join("fibers.cpp"));
        written_by(compiler, &path)?;
    }
    Ok(path)
}

/// The program of a kernel. It is kept for the next dispatch.
///
/// # Errors
/// The message of the compiler.
pub(super) fn compiled(kernel: &str, msl: &Msl, math: Math) -> Result<Program, String> {
    let text = cpp::translated(msl)?;
    let folder = &folder()?;
    let mut hasher = DefaultHasher::new();
    (&text, math).hash(&mut hasher);
    let name = format!("{kernel}-{:016x}", hasher.finish());
    let path = folder.join(&name);
    if !path.exists() {
        let source = folder.join(format!("{name}.cpp"));
        replace(&source, text.as_bytes())?;
        let mut compiler = compiler(folder, math);
        compiler.arg(&source).arg(host(folder, math)?);
        written_by(compiler, &path)?;
    }
    Ok(Program { path, math })
}

impl Program {
    /// Runs the threadgroups of `grid`, and gives the contents of the written slots, in their order.
    ///
    /// # Errors
    /// The fault of the kernel: an index out of bounds, an order of threads that matters, a barrier that some do not reach.
    pub fn run(&self, grid: [u32; 3], slots: &[Slot]) -> Result<Vec<Vec<u8>>, String> {
        let mut input: Vec<u8> = vec![];
        for word in grid.into_iter().chain([slots.len() as u32]) {
            input.extend(word.to_le_bytes());
        }
        for slot in slots {
            let bytes = slot.contents.len() as u32;
            for word in [u32::from(slot.number), u32::from(slot.written), bytes] {
                input.extend(word.to_le_bytes());
            }
            input.extend(&slot.contents);
        }
        let mut child = Command::new(&self.path)
            .arg(match self.math {
                Math::Precise => "precise",
                Math::Fast => "fast",
            })
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", self.path.display()))?;
        let mut stdin = child.stdin.take().ok_or("no input")?;
        let writer = thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        let sent = writer.join().map_err(|_| "the writer panicked")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: String = said.chars().take(4000).collect();
            return Err(format!(
                "{}: {}\n{said}",
                self.path.display(),
                output.status
            ));
        }
        sent.map_err(|e| e.to_string())?;
        let mut rest = output.stdout.as_slice();
        let mut results = vec![];
        for slot in slots.iter().filter(|slot| slot.written) {
            let (result, next) = rest
                .split_at_checked(slot.contents.len())
                .ok_or("the output is short")?;
            results.push(result.to_vec());
            rest = next;
        }
        if rest.is_empty() {
            Ok(results)
        } else {
            Err("the output is long".to_owned())
        }
    }
}
