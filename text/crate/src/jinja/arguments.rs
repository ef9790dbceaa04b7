//! Arguments as Python's built-in functions take them.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

pub fn refuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// What may be repeated by a call, in bytes or items.
const MAX_REPEATED: usize = 64 << 20;

/// The arguments of a call by its parameters. The first `required` must be given. A parameter named "" takes
/// no keyword.
pub fn bind<const N: usize>(args: &[Value], names: [&str; N], required: usize) -> Result<[Option<Value>; N], Error> {
    let (positional, keywords) = split_keywords(args)?;
    if positional.len() > N {
        return Err(refuse(format!("{} arguments are given, at most {N} are taken", positional.len())));
    }
    let mut bound = [const { None }; N];
    for (slot, value) in bound.iter_mut().zip(positional) {
        *slot = Some(value.clone());
    }
    for (name, value) in keywords {
        let place = names.iter().position(|known| !known.is_empty() && *known == name);
        match place {
            Some(place) if bound[place].is_none() => bound[place] = Some(value),
            Some(_) => return Err(refuse(format!("the argument {name} is given twice"))),
            None => return Err(refuse(format!("unexpected keyword argument {name}"))),
        }
    }
    if bound[..required].iter().any(Option::is_none) {
        return Err(refuse(format!("at least {required} arguments are needed")));
    }
    Ok(bound)
}

pub type Keywords = Vec<(String, Value)>;

/// Positional arguments, and keywords with their values.
pub fn split_keywords(args: &[Value]) -> Result<(&[Value], Keywords), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => {
            let kwargs = Kwargs::try_from(last.clone())?;
            let names: Vec<String> = kwargs.args().map(str::to_string).collect();
            let pairs = names.into_iter().map(|name| Ok((name.clone(), kwargs.get(&name)?)));
            Ok((rest, pairs.collect::<Result<_, Error>>()?))
        }
        _ => Ok((args, Vec::new())),
    }
}

pub fn nothing(args: &[Value]) -> Result<(), Error> {
    bind(args, [], 0).map(|_| ())
}

/// Python's `None`, or left out.
pub fn is_absent(value: &Option<Value>) -> bool {
    value.as_ref().is_none_or(|value| value.is_none())
}

pub fn text(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| refuse(format!("a string is needed, not {}", value.kind())))
}

/// A whole number or a bool. Numbers beyond 64 bits are as good as the largest.
pub fn integer(value: &Value) -> Result<i64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => Ok(match i128::try_from(value.clone()) {
            Ok(number) => number.clamp(i64::MIN as i128, i64::MAX as i128) as i64,
            Err(_) => i64::MAX,
        }),
        kind => Err(refuse(format!("an integer is needed, not {kind}"))),
    }
}

pub fn integer_or(value: &Option<Value>, default: i64) -> Result<i64, Error> {
    value.as_ref().map_or(Ok(default), integer)
}

pub fn truth_or(value: &Option<Value>, default: bool) -> bool {
    value.as_ref().map_or(default, Value::is_true)
}

/// A width or a count, if what it leads to is not too large.
pub fn length(number: i64) -> Result<usize, Error> {
    let length = usize::try_from(number.max(0)).unwrap_or(usize::MAX);
    if length > MAX_REPEATED {
        return Err(refuse(format!("{number} is over the limit of {MAX_REPEATED}")));
    }
    Ok(length)
}

/// The items that a Python loop would see: none of an undefined value.
pub fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Number | ValueKind::Bool => {
            Err(refuse(format!("{} is not iterable", value.kind())))
        }
        _ => value.try_iter()?.checked().collect(),
    }
}

pub fn pair(value: &Value) -> Result<(Value, Value), Error> {
    match items(value)?.as_slice() {
        [first, second] => Ok((first.clone(), second.clone())),
        other => Err(refuse(format!("a pair is needed, not {} items", other.len()))),
    }
}
