//! The browser's console: warnings of the library, and what a panic says.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::sync::Once;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console)]
    fn warn(text: &str);
    #[wasm_bindgen(js_namespace = console)]
    fn error(text: &str);
}

struct Console;

impl Log for Console {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Other crates tell what helps nobody here.
        metadata.level() <= Level::Warn && metadata.target().starts_with("glimt")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            warn(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Has warnings and panics told there from now on.
pub(super) fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| error(&panic.to_string())));
        if log::set_logger(&Console).is_ok() {
            log::set_max_level(LevelFilter::Warn);
        }
    });
}
