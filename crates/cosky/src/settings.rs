//! An instance from environment variables.

use std::{str::FromStr, time::Duration};

use cosky_core::{Host, Metadata, STATUS, Schema, ServiceId, Ttl, Weight};

use crate::{Error, Instance, Result};

impl Instance {
    /// As [`Instance::named`] with what the environment says; `service` is the id without `COSKY_SERVICE`. What the
    /// builder is told afterwards replaces it. A blank variable counts as absent. Times are whole numbers with a unit:
    /// `1500ms`, `30s`, `15m`, `3h`, `1d`.
    ///
    /// | variable | as |
    /// |---|---|
    /// | `COSKY_ENABLED` | [`Instance::enabled`] |
    /// | `COSKY_AUTO_REGISTER` | [`Instance::auto_register`] |
    /// | `COSKY_SERVICE` | [`Instance::service`] |
    /// | `COSKY_INSTANCE_SCHEMA` | [`Instance::schema`] |
    /// | `COSKY_ADVERTISE_HOST` | [`Instance::host`] |
    /// | `COSKY_ADVERTISE_PORT` | [`Instance::port`] |
    /// | `COSKY_INSTANCE_WEIGHT` | [`Instance::weight`] |
    /// | `COSKY_INSTANCE_EPHEMERAL` | [`Instance::ephemeral`] |
    /// | `COSKY_INSTANCE_TTL` | [`Instance::ttl`] |
    /// | `COSKY_INSTANCE_METADATA` | [`Instance::metadata`]: `key=value`, separated by commas |
    /// | `COSKY_INITIAL_STATUS` | [`Instance::status`] |
    /// | `COSKY_ZONE`, `COSKY_REGION` | [`Instance::zone`], [`Instance::region`] |
    /// | `COSKY_RENEW_INITIAL_DELAY` | [`Instance::first_beat`] |
    /// | `COSKY_RENEW_PERIOD` | [`Instance::beat_every`] |
    /// | `COSKY_REGISTER_TIMEOUT` | [`Instance::timeout`] |
    /// | `COSKY_DRAIN_WAIT` | [`Instance::drain_wait`] |
    ///
    /// # Errors
    /// [`Error::Config`] that names the variable.
    pub fn from_env(service: impl Into<String>) -> Result<Self> {
        Self::from_lookup(service, |name| std::env::var(name).ok())
    }

    /// As [`Instance::from_env`], with the variables from anywhere.
    ///
    /// # Errors
    /// The same.
    pub fn from_lookup(service: impl Into<String>, lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let from = Lookup(&lookup);
        let mut instance = Self::named(service);
        // In this order, so that a variable of its own goes before an entry of the metadata.
        for (key, value) in from.read("COSKY_INSTANCE_METADATA", entries)?.unwrap_or_default() {
            instance = instance.metadata(key, value);
        }
        let entry = |key: &'static str| {
            move |text: &str| checked(Metadata::new([(key, text)])).map(|_| text.to_owned())
        };
        let text = |kept: Result<(), cosky_core::Error>, text: &str| checked(kept).map(|()| text.to_owned());
        from.set(&mut instance, "COSKY_ENABLED", yes_or_no, Self::enabled)?;
        from.set(&mut instance, "COSKY_AUTO_REGISTER", yes_or_no, Self::auto_register)?;
        from.set(&mut instance, "COSKY_SERVICE", |t| text(ServiceId::new(t).map(drop), t), Self::service)?;
        from.set(
            &mut instance,
            "COSKY_INSTANCE_SCHEMA",
            |t| text(Schema::new(t).map(drop), t),
            Self::schema,
        )?;
        from.set(&mut instance, "COSKY_ADVERTISE_HOST", |t| text(Host::new(t).map(drop), t), Self::host)?;
        from.set(&mut instance, "COSKY_ADVERTISE_PORT", number::<u16>, Self::port)?;
        from.set(&mut instance, "COSKY_INSTANCE_WEIGHT", weight, Self::weight)?;
        from.set(&mut instance, "COSKY_INSTANCE_EPHEMERAL", yes_or_no, Self::ephemeral)?;
        from.set(&mut instance, "COSKY_INSTANCE_TTL", ttl, Self::ttl)?;
        from.set(&mut instance, "COSKY_INITIAL_STATUS", entry(STATUS), Self::status)?;
        from.set(&mut instance, "COSKY_ZONE", entry("zone"), Self::zone)?;
        from.set(&mut instance, "COSKY_REGION", entry("region"), Self::region)?;
        from.set(&mut instance, "COSKY_RENEW_INITIAL_DELAY", duration, Self::first_beat)?;
        from.set(&mut instance, "COSKY_RENEW_PERIOD", more_than_zero, Self::beat_every)?;
        from.set(&mut instance, "COSKY_REGISTER_TIMEOUT", more_than_zero, Self::timeout)?;
        from.set(&mut instance, "COSKY_DRAIN_WAIT", duration, Self::drain_wait)?;
        Ok(instance)
    }
}

/// Where variables come from.
struct Lookup<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Lookup<'_> {
    fn read<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>> {
        let Some(text) = (self.0)(name) else { return Ok(None) };
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        parse(text).map(Some).map_err(|reason| Error::config(name, format!("{text:?} {reason}")))
    }

    fn set<T>(
        &self,
        instance: &mut Instance,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
        set: impl Fn(Instance, T) -> Instance,
    ) -> Result<()> {
        if let Some(value) = self.read(name, parse)? {
            *instance = set(instance.clone(), value);
        }
        Ok(())
    }
}

/// What a rule of a field says, without the field's name: the variable's stands there.
fn checked<T>(kept: Result<T, cosky_core::Error>) -> Result<T, String> {
    kept.map_err(|error| match error {
        cosky_core::Error::InvalidArgument { reason, .. } => reason.into_owned(),
        other => other.to_string(),
    })
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: ToString,
{
    text.parse().map_err(|error: T::Err| format!("is no number that fits: {}", error.to_string()))
}

fn weight(text: &str) -> Result<u32, String> {
    checked(Weight::new(number(text)?)).map(Weight::get)
}

fn ttl(text: &str) -> Result<Duration, String> {
    let life = duration(text)?;
    let seconds = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
    if life.subsec_nanos() != 0 {
        return Err("must be whole seconds".into());
    }
    checked(Ttl::from_api(seconds)).map(Ttl::duration)
}

fn more_than_zero(text: &str) -> Result<Duration, String> {
    duration(text)
        .and_then(|time| if time.is_zero() { Err("must be more than zero".into()) } else { Ok(time) })
}

fn duration(text: &str) -> Result<Duration, String> {
    let help = "must be a whole number with a unit: ms, s, m, h or d, as in 30s";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let count: u32 = count.parse().map_err(|_| help.to_owned())?;
    let one = match unit {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        "d" => Duration::from_secs(86_400),
        _ => return Err(help.into()),
    };
    Ok(one * count)
}

fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut entries = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (key, value) = entry.split_once('=').ok_or("must be key=value, separated by commas")?;
        entries.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    checked(Metadata::new(entries.iter().map(|(key, value)| (key, value))))?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Instance> {
        Instance::from_lookup("order", |name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_variable_sets_what_its_method_sets() {
        let instance = from(&[
            ("COSKY_ENABLED", "TRUE"),
            ("COSKY_AUTO_REGISTER", "no"),
            ("COSKY_SERVICE", "orders"),
            ("COSKY_INSTANCE_SCHEMA", "https"),
            ("COSKY_ADVERTISE_HOST", " 10.0.0.5 "),
            ("COSKY_ADVERTISE_PORT", "8443"),
            ("COSKY_INSTANCE_WEIGHT", "7"),
            ("COSKY_INSTANCE_EPHEMERAL", "false"),
            ("COSKY_INSTANCE_TTL", "1m"),
            ("COSKY_INSTANCE_METADATA", "version=4, zone=other,"),
            ("COSKY_INITIAL_STATUS", "OUT_OF_SERVICE"),
            ("COSKY_ZONE", "z1"),
            ("COSKY_REGION", "eu"),
            ("COSKY_RENEW_INITIAL_DELAY", "0s"),
            ("COSKY_RENEW_PERIOD", "1500ms"),
            ("COSKY_REGISTER_TIMEOUT", "2s"),
            ("COSKY_DRAIN_WAIT", "1h"),
        ])
        .unwrap();
        let wanted = Instance::https("orders", "10.0.0.5", 8443)
            .metadata("version", "4")
            .metadata("zone", "other")
            .auto_register(false)
            .weight(7)
            .permanent()
            .ttl(Duration::from_secs(60))
            .status("OUT_OF_SERVICE")
            .zone("z1")
            .region("eu")
            .first_beat(Duration::ZERO)
            .beat_every(Duration::from_millis(1500))
            .timeout(Duration::from_secs(2))
            .drain_wait(Duration::from_secs(300));
        assert_eq!(instance, wanted);
        assert_eq!(instance.check().unwrap().registration.metadata.get("zone"), Some("z1"));
    }

    #[test]
    fn the_builder_goes_before_the_environment_and_that_before_the_default() {
        let pairs = [("COSKY_SERVICE", "by-env"), ("COSKY_ADVERTISE_HOST", "10.0.0.5"), ("COSKY_ZONE", "z1")];
        let by_env = from(&pairs).unwrap().port(80);
        assert_eq!(by_env.id().unwrap().as_str(), "by-env@http#10.0.0.5#80");
        let built = by_env.service("built").host("10.0.0.6").zone("z2");
        assert_eq!(built.id().unwrap().as_str(), "built@http#10.0.0.6#80");
        assert_eq!(built.check().unwrap().registration.metadata.get("zone"), Some("z2"));
        assert_eq!(from(&[]).unwrap(), Instance::named("order"));
        assert_eq!(from(&[("COSKY_INSTANCE_TTL", " ")]).unwrap(), Instance::named("order"));
        // What the environment advertises goes before what the listener has.
        let behind = from(&[("COSKY_ADVERTISE_HOST", "10.0.0.5"), ("COSKY_ADVERTISE_PORT", "80")]).unwrap();
        let behind = behind.listening("127.0.0.1:9000".parse().unwrap());
        assert_eq!(behind.id().unwrap().as_str(), "order@http#10.0.0.5#80");
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        for (name, value) in [
            ("COSKY_ENABLED", "maybe"),
            ("COSKY_AUTO_REGISTER", "2"),
            ("COSKY_SERVICE", "a@b"),
            ("COSKY_INSTANCE_SCHEMA", "4"),
            ("COSKY_ADVERTISE_HOST", "300.1.1.1"),
            ("COSKY_ADVERTISE_PORT", "65536"),
            ("COSKY_INSTANCE_WEIGHT", "-1"),
            ("COSKY_INSTANCE_EPHEMERAL", "x"),
            ("COSKY_INSTANCE_TTL", "2s"),
            ("COSKY_INSTANCE_TTL", "3500ms"),
            ("COSKY_INSTANCE_TTL", "30"),
            ("COSKY_INSTANCE_METADATA", "zone"),
            ("COSKY_INSTANCE_METADATA", "_x=1"),
            ("COSKY_RENEW_INITIAL_DELAY", "1 s"),
            ("COSKY_RENEW_PERIOD", "0ms"),
            ("COSKY_REGISTER_TIMEOUT", "99999999999s"),
            ("COSKY_DRAIN_WAIT", "-1s"),
        ] {
            let text = from(&[(name, value)]).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{name}: {value:?} ")), "{text}");
        }
    }
}
