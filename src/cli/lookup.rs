//! The meaning of a model's name: a file, else a model of this machine, else one that a hub would give.

use std::path::Path;

use super::error::CliError;
use super::output::note;
use super::{ask, fetch};
use crate::aliases::{ALIASES, PREFERRED};
use crate::engine::ModelSource;
use crate::hub::{Hub, HubError, Name, Settings, stores};
use crate::synth::ModelName;

/// The model that is named. What is not on this machine is fetched if somebody says so in a terminal.
///
/// # Errors
/// [`CliError::NoModel`] where it is nowhere, [`CliError::NotFetched`], and what the hub refuses.
pub(super) fn source(model: &Path) -> Result<ModelSource, CliError> {
    let text = model.to_string_lossy();
    if model.exists() || Name::is_path(model) {
        return Ok(ModelSource::File(model.to_owned()));
    }
    let name = Name::parse(&text)?;
    let settings = Settings::from_env()?;
    if let Some(found) = stores::find(&settings, &name)?
        && let Some(first) = found.files.first()
    {
        note(format_args!(
            "{text} is {} ({})",
            first.display(),
            found.store
        ));
        return Ok(ModelSource::File(first.clone()));
    }
    refuse_synthetic(&name)?;
    let unknown = |advice| CliError::NoModel {
        text: text.to_string(),
        advice,
    };
    let Name::Repository { .. } = name else {
        let advice = format!(
            "glimt list shows what there is, and these names can be fetched: {}, user/repo",
            ALIASES.map(|(alias, _)| alias).join(", ")
        );
        return Err(unknown(advice));
    };
    if settings.offline {
        return Err(HubError::Offline(text.into_owned()).into());
    }
    if !ask::possible() {
        return Err(unknown(format!("fetch it with: glimt pull {text}")));
    }
    let hub = Hub::new(&settings);
    let (offer, missing) = fetch::offer(&hub, &name)?;
    match fetch::may(&hub, &offer, missing)? {
        true => Ok(ModelSource::File(fetch::pull(&hub, &offer)?)),
        false => Err(CliError::NotFetched(text.into_owned())),
    }
}

/// Refuses the name of a synthetic model, which nobody offers.
///
/// # Errors
/// [`CliError::OnlySynthetic`].
pub(super) fn refuse_synthetic(name: &Name) -> Result<(), CliError> {
    let Name::Ollama {
        model,
        tag,
        told: false,
    } = name
    else {
        return Ok(());
    };
    let recipe = tag.as_deref().unwrap_or(PREFERRED).to_ascii_lowercase();
    match model.parse::<ModelName>() {
        Ok(model) => Err(CliError::OnlySynthetic {
            model: model.name(),
            recipe,
        }),
        Err(_) => Ok(()),
    }
}
