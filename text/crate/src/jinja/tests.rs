//! Tests (`x is odd`) that differ from minijinja's.

use super::arguments::refuse;
use super::values::is_namespace;
use minijinja::value::{ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error};

pub fn add(environment: &mut Environment) {
    for name in ["startingwith", "endingwith", "safe"] {
        environment.remove_test(name);
    }
    environment.add_test("odd", |value: Value| Ok::<_, Error>(remainder(&value)? == 1.0));
    environment.add_test("even", |value: Value| Ok::<_, Error>(remainder(&value)? == 0.0));
    environment.add_test("iterable", |value: Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Number | ValueKind::Bool) && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: Value| {
        let sized = matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined);
        (sized || value.kind() == ValueKind::Iterable)
            && !is_namespace(&value)
            && value.downcast_object_ref::<super::values::DictView>().is_none()
    });
    environment.add_test("mapping", |value: Value| value.kind() == ValueKind::Map && !is_namespace(&value));
    environment.add_test("callable", |value: Value| {
        value.as_object().is_some_and(|object| object.repr() == ObjectRepr::Plain) || value.is_undefined()
    });
}

fn remainder(value: &Value) -> Result<f64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => Ok(f64::try_from(value.clone())?.rem_euclid(2.0)),
        kind => Err(refuse(format!("{kind} is neither odd nor even"))),
    }
}
