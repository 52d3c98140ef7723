//! Protects users of damaged files and faulty drivers: logits that are no numbers are an error, never a text or a figure.

use super::edited::edited;
use super::random::drawn_pairs;
use super::{error_line, run, stderr, stdout};

#[test]
#[ignore = "long: scripts/test --all"]
fn what_is_computed_from_damaged_weights_is_an_error() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let text = "Once upon a time there was a fox. ".repeat(40);
    let text = super::write(directory.path(), "text.txt", text.as_bytes());
    // A quiet NaN, a signalling one, and infinity, in a norm's weights.
    for (i, bits) in [0x7fc0_0000u32, 0xff80_0001, 0x7f80_0000]
        .into_iter()
        .enumerate()
    {
        let name = format!("damaged{i}.gguf");
        let model = edited(directory.path(), &name, &[], |tensor, bytes| {
            if tensor == "output_norm.weight" {
                bytes[8..12].copy_from_slice(&bits.to_le_bytes());
            }
        });
        let devices = [
            &["--device", "cpu"][..],
            &["--device", "0", "--tier", "plain"],
            &["--device", "0"],
        ];
        let commands = [
            &["generate", "-n", "4", "A fox"][..],
            &["generate", "-n", "4", "--temp", "0", "A fox"],
            &["logits", "A fox"],
            &["perplexity", "-c", "64", "-f", &text],
        ];
        for (device, command) in drawn_pairs(&devices, &commands) {
            let output = run(&[command, *device, &["-m", &model]].concat());
            let what = format!("{bits:#x} {device:?} {command:?}: {}", stderr(&output));
            if stderr(&output).contains("no GPU adapter") {
                continue;
            }
            assert_eq!(output.status.code(), Some(1), "{what}");
            assert_eq!(stdout(&output), "", "{what}");
            assert!(error_line(stderr(&output)).contains("not finite"), "{what}");
        }
    }
}
