//! The filter `groupby`: groups of equal values, each as a pair that also has names.

use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest};
use minijinja::{Error, Value};

/// A value of an attribute, and the items that have it.
#[derive(Debug)]
struct Group {
    grouper: Value,
    list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_i64()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> minijinja::value::Enumerator {
        minijinja::value::Enumerator::Seq(2)
    }
}

/// The value that an attribute with dots in it leads to.
pub(super) fn followed(item: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else {
        return item.get_item(path);
    };
    let mut value = item.clone();
    for name in path.split('.') {
        let key = name.parse::<usize>().map_or(Value::from(name), Value::from);
        value = value.get_item(&key)?;
    }
    Ok(value)
}

/// The groups of `items` by an attribute, sorted by it. Texts are compared without regard to their case unless it is asked for, and the name
/// of a group is that of its first item.
pub(super) fn groupby(items: &Value, given: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let names = ["attribute", "default", "case_sensitive"];
    let kwargs = super::python::by_name("groupby", &names, &given, &kwargs)?;
    let path: Value = kwargs.get("attribute")?;
    let default: Option<Value> = kwargs.get("default")?;
    let sensitive = kwargs
        .get::<Option<bool>>("case_sensitive")?
        .unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut found = Vec::new();
    for item in items.try_iter()?.checked() {
        let item = item?;
        let mut grouper = followed(&item, &path)?;
        if let (true, Some(default)) = (grouper.is_undefined(), &default) {
            grouper = default.clone();
        }
        let key = match grouper.as_str() {
            Some(text) if !sensitive => Value::from(text.to_lowercase()),
            _ => grouper.clone(),
        };
        found.push((key, grouper, item));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let groups = found.chunk_by(|a, b| a.0 == b.0).map(|group| {
        Value::from_object(Group {
            grouper: group[0].1.clone(),
            list: group.iter().map(|(_, _, item)| item.clone()).collect(),
        })
    });
    Ok(groups.collect())
}
