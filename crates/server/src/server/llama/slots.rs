//! `POST /slots/{id}`: the conversation of a slot is saved, restored or erased, as llama.cpp's server does it.

use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::super::app::App;
use super::super::error::ApiError;
use super::super::fields::Fields;
use crate::engine::SessionFileError;
use crate::engine::scheduler::{SlotAction, SlotDone, SlotError};

/// A request to save, restore or erase a slot.
pub(in crate::server) struct Asked {
    slot: usize,
    action: SlotAction,
    /// The name of the file, if there is one.
    filename: Option<String>,
}

impl Asked {
    /// Reads the route and the query of a request, and of its body the name of the file.
    ///
    /// # Errors
    /// The fault, by its field; or 501 where no folder is named for files.
    pub(in crate::server) fn read(
        id: &str,
        query: Option<&str>,
        fields: Option<&Fields<'_>>,
        folder: Option<&Path>,
    ) -> Result<Self, ApiError> {
        let slot = id.parse();
        let slot = slot.map_err(|_| ApiError::bad(format!("'{id}' is no number of a slot")))?;
        let Some(folder) = folder else {
            let message = "this server keeps no slots; start it with --slot-save-path and a folder";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, message));
        };
        let mut parameters = query.unwrap_or_default().split('&');
        let action = parameters.find_map(|parameter| parameter.strip_prefix("action="));
        let filename = fields.map_or(Ok(None), |fields| fields.text("filename"))?;
        let path = || place(folder, filename);
        let action = match action {
            Some("save") => SlotAction::Save(path()?),
            Some("restore") => SlotAction::Restore(path()?),
            Some("erase") => SlotAction::Erase,
            _ => {
                let message = "'action' must be save, restore or erase, as in /slots/0?action=save";
                return Err(ApiError::field("action", message));
            }
        };
        Ok(Self {
            slot,
            action,
            filename: filename.map(str::to_owned),
        })
    }

    /// Has it done.
    ///
    /// # Errors
    /// The refusal of the scheduler.
    pub(in crate::server) async fn answer(self, app: &App) -> Result<Value, ApiError> {
        let Self {
            slot,
            action,
            filename,
        } = self;
        let began = Instant::now();
        let done = app.served()?.desk.act(slot, action.clone()).await;
        let done = done.map_err(|_| ApiError::unavailable("about to end"))?;
        let SlotDone { tokens, bytes } = done.map_err(|error| refused(&error))?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let ms = ms(began.elapsed());
        Ok(match action {
            SlotAction::Save(_) => json!({
                "id_slot": slot, "filename": filename, "n_saved": tokens, "n_written": bytes, "timings": {"save_ms": ms},
            }),
            SlotAction::Restore(_) => json!({
                "id_slot": slot, "filename": filename, "n_restored": tokens, "n_read": bytes, "timings": {"restore_ms": ms},
            }),
            SlotAction::Erase => json!({"id_slot": slot, "n_erased": tokens}),
        })
    }
}

/// The path of a file in the folder.
///
/// # Errors
/// [`ApiError`] if there is no name, or if the name leads out of the folder.
fn place(folder: &Path, filename: Option<&str>) -> Result<PathBuf, ApiError> {
    let wrong = |found: &str| {
        let message = format!(
            "'filename' must be the name of a file in the folder of --slot-save-path, without / and \\, but is {found}"
        );
        ApiError::field("filename", message)
    };
    let name = filename.ok_or_else(|| wrong("missing"))?;
    let is_plain = !name.contains(['/', '\\', '\0', ':']);
    match Path::new(name).components().collect::<Vec<_>>()[..] {
        [Component::Normal(_)] if is_plain => Ok(folder.join(name)),
        _ => Err(wrong(&format!("{name:?}"))),
    }
}

/// A refusal of the scheduler as an answer.
fn refused(error: &SlotError) -> ApiError {
    let (status, code) = match error {
        SlotError::NoSuchSlot { .. } => (StatusCode::NOT_FOUND, "slot_not_found"),
        SlotError::NoFile { .. } => (StatusCode::NOT_FOUND, "file_not_found"),
        SlotError::Busy { .. } | SlotError::File(SessionFileError::InUse { .. }) => {
            (StatusCode::CONFLICT, "busy")
        }
        SlotError::NoRoom { .. } => (StatusCode::SERVICE_UNAVAILABLE, "cache_full"),
        SlotError::File(SessionFileError::Io { .. } | SessionFileError::Engine(_)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "file_failed")
        }
        SlotError::File(_) => (StatusCode::BAD_REQUEST, "file_refused"),
    };
    ApiError::new(status, error.to_string()).with_code(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_out_of_no_folder() {
        let folder = Path::new("/kept");
        let inside = place(folder, Some("a talk.bin")).expect("a name");
        assert_eq!(inside, folder.join("a talk.bin"));
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/b",
            "a/",
            "a\\b",
            "C:x",
            "a\0",
        ] {
            let error = place(folder, Some(name)).expect_err(name);
            assert!(error.message().contains(&format!("{name:?}")), "{error:?}");
        }
        assert!(place(folder, None).is_err());
    }

    #[test]
    fn requests_name_a_slot_and_an_action() {
        let folder = Some(Path::new("/kept"));
        let read = |id, query, folder| {
            let asked = Asked::read(id, query, None, folder);
            asked.map(|asked| (asked.slot, asked.action))
        };
        let erased = read("3", Some("x=1&action=erase"), folder);
        assert_eq!(erased, Ok((3, SlotAction::Erase)));
        let without = read("3", Some("action=erase"), None).expect_err("there is no folder");
        assert_eq!(without.status, StatusCode::NOT_IMPLEMENTED);
        for (id, query) in [
            ("x", "action=erase"),
            ("-1", "action=erase"),
            ("1", "action=drop"),
        ] {
            let error = read(id, Some(query), folder).expect_err(query);
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{id} {query}");
        }
    }
}
