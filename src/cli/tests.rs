//! Protects the definitions of flags.

use super::{config, definition};

mod advice;

#[test]
fn the_argument_definitions_are_consistent() {
    definition().debug_assert();
    config::without_environment(definition()).debug_assert();
}

/// The long help of a flag says what the short one does: a command that changes one of them must not leave the other as it was.
#[test]
fn both_helps_of_a_flag_say_the_same() {
    for command in definition().get_subcommands() {
        for flag in command.get_arguments() {
            let (Some(short), Some(long)) = (flag.get_help(), flag.get_long_help()) else {
                continue;
            };
            let (short, long) = (short.to_string(), long.to_string());
            let told = short.split(" [default: ").next().unwrap_or_default();
            assert!(
                long.starts_with(told),
                "{} --{}: {told:?}, but {long:?}",
                command.get_name(),
                flag.get_id()
            );
        }
    }
}

#[test]
fn modules_that_log_are_named_as_in_the_library() {
    assert_eq!(
        super::room("glimt_formats::gguf::reader"),
        "glimt::gguf::reader"
    );
    assert_eq!(super::room("glimt::engine"), "glimt::engine");
    assert_eq!(super::room("wgpu_core::device"), "wgpu_core::device");
}
