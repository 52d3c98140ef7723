//! The tag `generation`, by which Hugging Face's templates mark an assistant's words for training. Nothing is to be done about it when a
//! conversation is rendered, but its body is a scope of its own.

/// The tag, its end, and what stands for each.
const TAGS: [(&str, &str); 2] = [("generation", "with"), ("endgeneration", "endwith")];

/// `source` with scopes (`with`) in place of `generation`. Comments, raw text and texts in quotes stay as they are, and so do line numbers.
pub(super) fn as_scopes(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, from) = rest.split_at(start);
        let end = match from.as_bytes().get(1) {
            Some(b'%') => end_of(from, "%}"),
            Some(b'{') => end_of(from, "}}"),
            Some(b'#') => from.find("#}").map(|at| at + 2),
            _ => Some(1),
        };
        // The parser complains of what has no end.
        let (item, after) = from.split_at(end.unwrap_or(from.len()));
        let tag = tag_of(item);
        out += before;
        match TAGS.iter().find(|(name, _)| tag == Some(name)) {
            Some((name, scope)) => out += &item.replacen(name, scope, 1),
            None => out += item,
        }
        let raw = if tag == Some("raw") {
            end_of_raw(after)
        } else {
            0
        };
        out += &after[..raw];
        rest = &after[raw..];
    }
    out + rest
}

/// The beginning of the tag that ends raw text.
fn end_of_raw(text: &str) -> usize {
    let tags = text.match_indices("{%").map(|(at, _)| at);
    let ends = |&at: &usize| {
        let item = &text[at..];
        let len = item.find("%}").map_or(item.len(), |end| end + 2);
        tag_of(&item[..len]) == Some("endraw")
    };
    tags.into_iter().find(ends).unwrap_or(text.len())
}

/// The name of a tag that has nothing else in it.
fn tag_of(item: &str) -> Option<&str> {
    let inner = item.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    Some(inner.trim())
}

/// The end of the first `close` that is in no text in quotes.
fn end_of(from: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in from.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if from[at..].starts_with(close) => return Some(at + close.len()),
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_keep_their_blanks_and_their_signs() {
        for (source, expected) in [
            (
                "{% generation %}x{% endgeneration %}",
                "{% with %}x{% endwith %}",
            ),
            (
                "{%-generation-%}x{%+ endgeneration -%}",
                "{%-with-%}x{%+ endwith -%}",
            ),
            ("{%\n generation\n%}", "{%\n with\n%}"),
            ("{{ {} }}{% generation %}", "{{ {} }}{% with %}"),
        ] {
            assert_eq!(as_scopes(source), expected);
        }
    }

    #[test]
    fn what_is_no_tag_stays() {
        for source in [
            "{% raw %}{% generation %}{{ '{% endraw %}",
            "{%- raw -%}{% generation %}",
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{{ \"\\\"{% generation %}\" }}",
            "{% set generation = 1 %}{{ generation }}",
            "{ generation }{",
            "{% generation",
            "{{ '",
        ] {
            assert_eq!(as_scopes(source), source);
        }
        assert_eq!(
            as_scopes("{% raw %}{{ '{% endraw %}{% generation %}"),
            "{% raw %}{{ '{% endraw %}{% with %}"
        );
    }
}
