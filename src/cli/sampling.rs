//! The flags of sampling.

mod choice;

use clap::Args;

use super::args::SAMPLING;
pub(super) use choice::Choice;

/// How the next token is drawn; names and meaning are llama.cpp's.
#[derive(Args, Clone)]
pub(super) struct SamplingArgs {
    /// Temperature; 0 always takes the most probable token [default: what is recommended for the model, else 0.8]
    #[arg(long, alias = "temperature", value_name = "T", value_parser = non_negative, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) temp: Option<f32>,
    /// Draw from the K most probable tokens; 0 is off [default: what is recommended for the model, else 40]
    #[arg(long, value_name = "K", value_parser = top_k, allow_negative_numbers = true, help_heading = SAMPLING)]
    top_k: Option<u32>,
    /// Draw from the best tokens that sum up to P; 1 is off [default: what is recommended for the model, else 0.95]
    ///
    /// The best tokens are the most probable ones.
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true, help_heading = SAMPLING)]
    top_p: Option<f32>,
    /// Drop tokens below P times the best one; 0 is off [default: what is recommended for the model, else 0.05]
    ///
    /// Their probability is less than P times that of the most probable token.
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true, help_heading = SAMPLING)]
    min_p: Option<f32>,
    /// Make recent tokens less probable; 1 is off [default: what is recommended for the model, else 1]
    ///
    /// For the built-in model it is 1.05 where --temp is above 0.
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true, help_heading = SAMPLING)]
    repeat_penalty: Option<f32>,
    /// Lower the logits of recent tokens by X; 0 is off [default: 0]
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    presence_penalty: Option<f32>,
    /// Lower the logit of a recent token by X for each time that it occurs; 0 is off [default: 0]
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    frequency_penalty: Option<f32>,
    /// How many tokens are recent for these penalties; 0 is off, -1 is the whole context [default: 64]
    #[arg(long, value_name = "N", value_parser = last_n, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    repeat_last_n: Option<u32>,
    #[command(flatten)]
    host: HostArgs,
    /// Seed of the draws; -1 is random [default: random, printed]
    ///
    /// An answer is repeated by its seed, with equal flags on the same device.
    #[arg(short, long, value_name = "N", value_parser = seed, allow_negative_numbers = true, help_heading = SAMPLING)]
    seed: Option<Seed>,
}

/// Samplers that no device has: with them the host chooses.
#[derive(Args, Clone)]
struct HostArgs {
    /// Add BIAS to the logit of a token, as 15043+1 or 15043-1; 15043-inf excludes it; may be given several times
    #[arg(long, value_name = "TOKEN(+|-)BIAS", value_parser = bias, hide_short_help = true, help_heading = SAMPLING)]
    logit_bias: Vec<(u32, f32)>,
    /// Penalise tokens that would continue a repetition (DRY): X at the allowed length; 0 is off [default: 0]
    #[arg(long, value_name = "X", value_parser = non_negative, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    dry_multiplier: Option<f32>,
    /// The factor by which each token beyond the allowed length multiplies the penalty of DRY [default: 1.75]
    #[arg(long, value_name = "X", value_parser = at_least_one, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    dry_base: Option<f32>,
    /// The shortest repetition that DRY penalises when it is continued [default: 2]
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = SAMPLING)]
    dry_allowed_length: Option<u32>,
    /// How many of the last tokens DRY searches; 0 is off, -1 is the whole context [default: 64]
    #[arg(long, value_name = "N", value_parser = last_n, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    dry_penalty_last_n: Option<u32>,
    /// A text that ends repetitions for DRY, in place of the default ones; may be given several times; none is none
    /// [default: \n, :, ", *]
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        hide_short_help = true, help_heading = SAMPLING)]
    dry_sequence_breaker: Vec<String>,
    /// Keep the tokens that are about as surprising as the model expects, which sum up to P; 1 is off [default: 1]
    #[arg(long = "typical", alias = "typical-p", value_name = "P", value_parser = probability, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    typical: Option<f32>,
    /// How often the most probable tokens are left out (XTC); 0 is off [default: 0]
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    xtc_probability: Option<f32>,
    /// XTC leaves out all tokens at least so probable but the last of them; above 0.5 it is off [default: 0.1]
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    xtc_threshold: Option<f32>,
    /// Keep the surprise of the answer near a target (2), in place of all samplers but biases and temperature; 0 is off
    /// [default: 0]
    #[arg(long, value_name = "0|2", value_parser = mirostat, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    mirostat: Option<u32>,
    /// How fast Mirostat learns (eta) [default: 0.1]
    #[arg(long, value_name = "X", value_parser = non_negative, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    mirostat_lr: Option<f32>,
    /// The target of Mirostat, in bits per token (tau) [default: 5]
    #[arg(long, value_name = "X", value_parser = non_negative, allow_negative_numbers = true, hide_short_help = true, help_heading = SAMPLING)]
    mirostat_ent: Option<f32>,
}

/// A seed that was given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seed {
    Random,
    Is(u64),
}

fn number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("not a number".to_owned()),
    }
}

/// A number for which `holds` does; `must` says what it must be otherwise.
fn number_that(text: &str, holds: impl Fn(f32) -> bool, must: &str) -> Result<f32, String> {
    let value = number(text)?;
    match holds(value) {
        true => Ok(value),
        false => Err(format!("must be {must}")),
    }
}

fn non_negative(text: &str) -> Result<f32, String> {
    number_that(text, |value| value >= 0.0, "0 or more")
}

fn positive(text: &str) -> Result<f32, String> {
    // The inverse of the value must be a number, too.
    number_that(
        text,
        |value| value > 0.0 && value.is_normal(),
        "more than 0",
    )
}

fn at_least_one(text: &str) -> Result<f32, String> {
    number_that(text, |value| value >= 1.0, "1 or more")
}

fn probability(text: &str) -> Result<f32, String> {
    number_that(text, |value| (0.0..=1.0).contains(&value), "from 0 to 1")
}

/// A count, or `least` for -1, which means `meaning`.
fn count(text: &str, least: u32, meaning: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(least),
        Ok(count) if (0..i64::from(u32::MAX)).contains(&count) => Ok(count as u32),
        Ok(_) => Err(format!("must be 0 or more, or -1 ({meaning})")),
        Err(_) => Err("not a whole number".to_owned()),
    }
}

fn top_k(text: &str) -> Result<u32, String> {
    count(text, 0, "off")
}

fn last_n(text: &str) -> Result<u32, String> {
    count(text, u32::MAX, "the whole context")
}

fn mirostat(text: &str) -> Result<u32, String> {
    match text {
        "0" => Ok(0),
        "2" => Ok(2),
        "1" => Err("version 1 is not there; use 2".to_owned()),
        _ => Err("must be 0 or 2".to_owned()),
    }
}

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed::Random),
        _ => text
            .parse()
            .map(Seed::Is)
            .map_err(|_| "must be a whole number from 0 on, or -1 (random)".to_owned()),
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "must be a token id and its bias, as 15043+1, 15043-0.5 or 15043-inf".to_owned();
    let at = text.find(['+', '-']).ok_or_else(wrong)?;
    let (token, signed) = text.split_at(at);
    let token = token.parse().map_err(|_| wrong())?;
    // A second sign is none of a number's.
    if signed[1..].starts_with(['+', '-']) {
        return Err(wrong());
    }
    match signed.parse::<f32>() {
        Ok(bias) if bias < f32::INFINITY => Ok((token, bias)),
        Ok(bias) if bias == f32::INFINITY => Err("+inf would leave no other token".to_owned()),
        _ => Err(wrong()),
    }
}

/// The limit of `-n`: -1 is none.
pub(super) fn limit(text: &str) -> Result<usize, String> {
    match count(text, u32::MAX, "until the end")? {
        u32::MAX => Ok(usize::MAX),
        limit => Ok(limit as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert_eq!(non_negative("0"), Ok(0.0));
        assert!(non_negative("-0.5").is_err());
        assert!(non_negative("NaN").is_err());
        assert!(positive("0").is_err());
        assert!(positive("1e-40").is_err());
        assert!(at_least_one("0.99").is_err());
        assert_eq!(probability("1"), Ok(1.0));
        assert!(probability("1.5").is_err());
        assert!(probability("inf").is_err());
        assert!(probability("half").is_err());
        assert!(mirostat("1").is_err_and(|message| message.contains("use 2")));
    }

    #[test]
    fn minus_one_means_what_it_does_elsewhere() {
        assert_eq!(last_n("-1"), Ok(u32::MAX));
        assert_eq!(last_n("0"), Ok(0));
        assert_eq!(top_k("-1"), Ok(0));
        assert_eq!(limit("-1"), Ok(usize::MAX));
        assert_eq!(limit("7"), Ok(7));
        assert_eq!(seed("-1"), Ok(Seed::Random));
        assert_eq!(seed("18446744073709551615"), Ok(Seed::Is(u64::MAX)));
        for wrong in ["-2", "1.5", "", "x"] {
            assert!(last_n(wrong).is_err(), "{wrong}");
            assert!(limit(wrong).is_err(), "{wrong}");
            assert!(seed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn biases_are_read_as_llama_cpp_writes_them() {
        assert_eq!(bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(bias("15043-0.5"), Ok((15043, -0.5)));
        assert_eq!(bias("0-1e3"), Ok((0, -1000.0)));
        assert_eq!(bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in [
            "7", "7+", "+1", "x+1", "7+-1", "7+inf", "7+nan", "7=1", "-1",
        ] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }
}
