//! Typed arguments: the schema that a model is shown, and the reading of what it sends.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ToolError;

/// The arguments of a tool that takes none. What a model sends all the same is passed over.
#[derive(serde::Deserialize, JsonSchema)]
pub(super) struct NoArguments {}

/// The schema of `T`, reduced to what every provider takes: no `$schema`, titles or formats, no `null` beside a type.
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.remove("description");
        root.entry("properties").or_insert_with(|| Map::new().into());
    }
    schema
}

fn simplify(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    for noise in ["$schema", "title", "format", "additionalProperties", "minimum", "maximum"] {
        // A map's values are described by `additionalProperties`; a boolean there is noise.
        if !object.get(noise).is_some_and(Value::is_object) {
            object.remove(noise);
        }
    }
    if object.get("default").is_some_and(Value::is_null) {
        object.remove("default");
    }
    if let Some(Value::Array(types)) = object.get("type")
        && let Some(named) = types.iter().find(|t| *t != "null").cloned()
    {
        object.insert("type".to_owned(), named);
    }
    for part in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(part) {
            simplify(inner);
        }
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
}

/// The arguments as `T`.
///
/// # Errors
/// [`ToolError::Model`] with what is wrong.
pub(super) fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments).map_err(|error| ToolError::Model(format!("invalid arguments: {error}")))
}
