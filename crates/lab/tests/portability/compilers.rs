//! Compilers that this machine may have: each takes a file, or says what is wrong with it.

use crate::ensure;
use crate::language::Language;
use std::path::Path;
use std::process::{Command, Stdio};

/// How a compiler of a language is called: the program and what it is told before the file.
const fn call(language: Language) -> Option<&'static [&'static str]> {
    Some(match language {
        // As wgpu calls DXC on a device with f16.
        Language::Hlsl62 => &[
            "dxc",
            "-E",
            "main",
            "-HV",
            "2018",
            "-no-warnings",
            "-Ges",
            "-enable-16bit-types",
            "-T",
            "cs_6_2",
        ],
        Language::Hlsl64 => &[
            "dxc",
            "-E",
            "main",
            "-HV",
            "2018",
            "-no-warnings",
            "-Ges",
            "-enable-16bit-types",
            "-T",
            "cs_6_4",
        ],
        Language::Spirv13 => &["spirv-val", "--target-env", "vulkan1.1"],
        Language::Spirv16 => &["spirv-val", "--target-env", "vulkan1.3"],
        Language::Wgsl => &["tint", "--format", "wgsl"],
        // Apple's compiler is on Macs alone.
        Language::Msl => return None,
    })
}

/// The messages of compilers that are not about the shader (docs/portability.md): versions of spirv-val from before cooperative matrices,
/// and a rule against layouts that nobody reads, which naga breaks everywhere.
const PASSED_OVER: [&str; 2] = [
    "Invalid capability operand: 6022",
    "VUID-StandaloneSpirv-None-10684",
];

/// The program that compiles `language`, where this machine has one.
pub fn installed(language: Language) -> Option<&'static str> {
    let program = call(language)?[0];
    let silent = || Stdio::null();
    let started = Command::new(program)
        .arg("--help")
        .stdin(silent())
        .stdout(silent())
        .stderr(silent())
        .status();
    started.is_ok().then_some(program)
}

/// Has the compiler of `language` read the file.
///
/// # Errors
/// The messages of the compiler.
pub fn compile(language: Language, file: &Path) -> Result<(), String> {
    let Some([program, arguments @ ..]) = call(language) else {
        return Err(format!("nothing compiles {}", language.name()));
    };
    let output = Command::new(program).args(arguments).arg(file).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let passed_over = PASSED_OVER.iter().any(|known| said.contains(known));
    ensure(output.status.success() || passed_over, || {
        format!("{program}: {said}")
    })
}
