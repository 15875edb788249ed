//! What a provider says of itself.

use std::time::Duration;

use cosky_core::{Metadata, Owner, Registration, STATUS, ServiceId, Ttl, Weight};

use crate::{Error, Result};

/// An instance to register. Values are checked when it is registered; the error then names the field.
///
/// ```
/// use std::time::Duration;
/// use cosky::Instance;
///
/// let order = Instance::http("order", "10.0.0.5", 8080)
///     .weight(3)
///     .metadata("zone", "eu-1")
///     .ttl(Duration::from_secs(15));
/// assert_eq!(order.id().unwrap().as_str(), "order@http#10.0.0.5#8080");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    service: String,
    schema: String,
    host: String,
    port: u16,
    weight: u32,
    metadata: Vec<(String, String)>,
    ttl: Option<Duration>,
    beat_every: Option<Duration>,
    permanent: bool,
}

/// A checked instance, and how often it is to beat.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) registration: Registration,
    pub(crate) beat_every: Option<Duration>,
}

impl Instance {
    /// An ephemeral instance of weight 1 without metadata. `schema` is a URI scheme, or `__` for a process that listens
    /// to nothing; `host` is an IPv4 address, an IPv6 address or a host name.
    pub fn new(
        service: impl Into<String>,
        schema: impl Into<String>,
        host: impl Into<String>,
        port: u16,
    ) -> Self {
        Self {
            service: service.into(),
            schema: schema.into(),
            host: host.into(),
            port,
            weight: 1,
            metadata: Vec::new(),
            ttl: None,
            beat_every: None,
            permanent: false,
        }
    }

    /// As [`Instance::new`] with the scheme `http`.
    pub fn http(service: impl Into<String>, host: impl Into<String>, port: u16) -> Self {
        Self::new(service, "http", host, port)
    }

    /// As [`Instance::new`] with the scheme `https`.
    pub fn https(service: impl Into<String>, host: impl Into<String>, port: u16) -> Self {
        Self::new(service, "https", host, port)
    }

    /// Its share in weighted balancing, 0 to 2³¹−1; 0 is never chosen.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets one metadata entry. Keys are not empty and do not begin with `_`.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Its status, kept as metadata `instance_status`: `UP` is in service, anything else is not chosen by balancers.
    #[must_use]
    pub fn status(self, status: impl Into<String>) -> Self {
        self.metadata(STATUS, status)
    }

    /// How long it lives without a beat: whole seconds from 3 to 86,400. The server's default without this.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The period between beats, a third of the TTL without this. One that is not below the TTL is refused; one above
    /// half of it is shortened to half, with a warning, so that one lost beat makes nothing flicker.
    #[must_use]
    pub fn beat_every(mut self, period: Duration) -> Self {
        self.beat_every = Some(period);
        self
    }

    /// Makes it stay until somebody deregisters it: it does not beat, and dropping its handle still deregisters it.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.permanent = true;
        self
    }

    /// The id that it will have.
    ///
    /// # Errors
    /// [`cosky_core::Error::InvalidArgument`] that names the field.
    pub fn id(&self) -> Result<cosky_core::InstanceId> {
        self.base().map(|registration| registration.id())
    }

    fn base(&self) -> Result<Registration> {
        let service = ServiceId::new(&self.service)?;
        Ok(Registration::new(service, &self.schema, &self.host, self.port.into())?)
    }

    /// Checks everything, also the period against the TTL when that is given here.
    pub(crate) fn check(self) -> Result<Wanted> {
        let mut registration = self.base()?;
        registration.weight = Weight::new(self.weight.into())?;
        registration.metadata = Metadata::new(self.metadata)?;
        registration.ephemeral = !self.permanent;
        registration.ttl = self.ttl.map(seconds).transpose()?;
        registration.owner = Some(Owner::random());
        let ttl = registration.ttl.map(Ttl::duration);
        period(self.beat_every, ttl.unwrap_or(Duration::MAX))?;
        Ok(Wanted { registration, beat_every: self.beat_every })
    }
}

fn seconds(ttl: Duration) -> Result<Ttl> {
    if ttl.subsec_nanos() != 0 {
        return Err(cosky_core::Error::invalid("ttlSeconds", "must be whole seconds").into());
    }
    Ok(Ttl::from_api(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX))?)
}

/// The period between beats that keeps an instance of this TTL alive.
///
/// # Errors
/// [`Error::Period`] when the one that is wanted is not below the TTL, [`Error::Config`] when it is zero.
pub(crate) fn period(wanted: Option<Duration>, ttl: Duration) -> Result<Duration> {
    match wanted {
        None => Ok(ttl / 3),
        Some(Duration::ZERO) => Err(Error::config("beat_every", "must be longer than zero")),
        Some(period) if period >= ttl => Err(Error::Period { period, ttl }),
        Some(period) => Ok(period.min(ttl / 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_checked_and_named() {
        let error = |instance: Instance| instance.check().unwrap_err().to_string();
        let good = Instance::http("order", "10.0.0.5", 8080);
        assert!(good.clone().check().is_ok());
        assert!(error(Instance::http("a@b", "10.0.0.5", 8080)).starts_with("serviceId"));
        assert!(error(Instance::http("a", "300.1.1.1", 8080)).starts_with("host"));
        assert!(error(Instance::http("a", "10.0.0.5", 0)).starts_with("port"));
        assert!(error(good.clone().weight(u32::MAX)).starts_with("weight"));
        assert!(error(good.clone().metadata("_x", "1")).starts_with("metadata._x"));
        assert!(error(good.clone().ttl(Duration::from_secs(2))).starts_with("ttlSeconds"));
        assert!(error(good.ttl(Duration::from_millis(3500))).starts_with("ttlSeconds"));
    }

    #[test]
    fn each_check_makes_an_owner_of_its_own() {
        let instance = Instance::http("order", "10.0.0.5", 8080);
        let owner = |instance: &Instance| instance.clone().check().unwrap().registration.owner;
        assert_ne!(owner(&instance), owner(&instance));
    }

    #[test]
    fn periods_leave_room_for_a_lost_beat() {
        let ttl = Duration::from_secs(3);
        let of = |ms| period(Some(Duration::from_millis(ms)), ttl);
        assert_eq!(period(None, ttl).unwrap(), Duration::from_secs(1));
        assert_eq!(of(1500).unwrap(), Duration::from_millis(1500));
        assert_eq!(of(2999).unwrap(), Duration::from_millis(1500));
        for refused in [3000, 5000] {
            let error = of(refused).unwrap_err();
            assert!(matches!(error, Error::Period { .. }));
            let text = error.to_string();
            assert!(
                text.contains(&format!("{:?}", Duration::from_millis(refused))) && text.contains("3s"),
                "{text}"
            );
        }
        assert!(of(0).is_err());
    }
}
