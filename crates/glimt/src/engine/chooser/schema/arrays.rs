//! Lists, in the keywords of any draft.

use serde_json::{Map, Value};

use super::SchemaError;
use super::walk::Walker;

impl<'a> Walker<'a> {
    /// Writes what `map` says of lists to `out`.
    pub(super) fn arrays(
        &mut self,
        map: &'a Map<String, Value>,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let given = |keyword: &str| map.get(keyword).filter(|value| !value.is_null());
        // Until draft 2019-09 a list of schemas stood in `items`, and the schema of further items in `additionalItems`.
        let (prefix, rest) = match given("items") {
            Some(items @ Value::Array(_)) => (
                Some(("items", items)),
                given("additionalItems").map(|rest| ("additionalItems", rest)),
            ),
            items => (
                given("prefixItems").map(|items| ("prefixItems", items)),
                items.map(|items| ("items", items)),
            ),
        };
        if let Some((keyword, items)) = prefix {
            let Value::Array(items) = items else {
                return Err(self.wrong(keyword, items, "a list of schemas"));
            };
            let mut all = vec![];
            for (i, item) in items.iter().enumerate() {
                all.push(self.inner(&[keyword, &i.to_string()], item)?);
            }
            out.insert("prefixItems".to_owned(), all.into());
        }
        let rest = match given("unevaluatedItems") {
            Some(others) if rest.is_none() && !Self::has_applicators(map) => {
                Some(("unevaluatedItems", others))
            }
            Some(_) => {
                self.lose("unevaluatedItems");
                rest
            }
            None => rest,
        };
        if let Some((keyword, items)) = rest {
            let items = self.inner(&[keyword], items)?;
            out.insert("items".to_owned(), items);
        }
        for keyword in ["minItems", "maxItems"] {
            if let Some(count) = self.count(map, keyword)? {
                out.insert(keyword.to_owned(), count.into());
            }
        }
        if given("contains").is_some() && self.count(map, "minContains")? != Some(0) {
            self.lose("contains");
        }
        let most = self.count(map, "maxItems")?;
        if given("uniqueItems") == Some(&Value::Bool(true)) && most.is_none_or(|most| most > 1) {
            self.lose("uniqueItems");
        }
        Ok(())
    }
}
