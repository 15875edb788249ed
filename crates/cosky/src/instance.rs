//! What a provider says of itself.

use std::{net::SocketAddr, time::Duration};

use cosky_core::{Metadata, Owner, Registration, STATUS, Schema, ServiceId, Ttl, Weight};

use crate::{Error, Result, detect::Home};

/// The status of an instance that is in service; the same as none.
pub const UP: &str = "UP";
/// The status of an instance that is registered and not to be chosen.
pub const OUT_OF_SERVICE: &str = "OUT_OF_SERVICE";

/// The most that [`Instance::drain_wait`] takes.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);

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
///
/// Host and port need not be known: [`Instance::named`] finds the host, and [`Instance::listening`] tells the port that
/// a listener on port 0 got. [`Instance::from_env`] lets the environment say everything that the program does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    service: String,
    schema: String,
    host: Option<String>,
    /// 0 for that of the listener.
    port: u16,
    listening: Option<SocketAddr>,
    weight: u32,
    metadata: Vec<(String, String)>,
    ttl: Option<Duration>,
    pace: Pace,
    limits: Limits,
    permanent: bool,
    enabled: bool,
    auto_register: bool,
}

/// How often it is to beat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The first time after a registration.
    pub(crate) first: Option<Duration>,
    pub(crate) every: Option<Duration>,
}

/// How long its operations may take; `None` is as the client has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) timeout: Option<Duration>,
    pub(crate) drain_wait: Duration,
}

/// A checked instance, and how it is to be kept.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) registration: Registration,
    pub(crate) pace: Pace,
    pub(crate) limits: Limits,
    pub(crate) enabled: bool,
    pub(crate) auto_register: bool,
}

impl Instance {
    /// An ephemeral instance of weight 1 without metadata. `schema` is a URI scheme, or `__` for a process that listens
    /// to nothing; `host` is an IPv4 address, an IPv6 address or a host name; port 0 is that of [`Instance::listening`].
    pub fn new(
        service: impl Into<String>,
        schema: impl Into<String>,
        host: impl Into<String>,
        port: u16,
    ) -> Self {
        Self { host: Some(host.into()), port, ..Self::of(service.into(), schema.into()) }
    }

    /// As [`Instance::new`] with the scheme `http`.
    pub fn http(service: impl Into<String>, host: impl Into<String>, port: u16) -> Self {
        Self::new(service, "http", host, port)
    }

    /// As [`Instance::new`] with the scheme `https`.
    pub fn https(service: impl Into<String>, host: impl Into<String>, port: u16) -> Self {
        Self::new(service, "https", host, port)
    }

    /// An instance of the scheme `http` whose host is found when it is registered, and whose port is still to be told by
    /// [`Instance::port`] or [`Instance::listening`].
    ///
    /// The host is the address that this machine has towards the configured server (nothing is sent to find it), else
    /// the one that it has towards the outside. A loopback address is taken only when the server is on this machine.
    pub fn named(service: impl Into<String>) -> Self {
        Self::of(service.into(), "http".into())
    }

    /// A process that listens to nothing: the schema is `__`, and the process id stands where others have a port. An id
    /// above 65,535 is counted on from 1.
    pub fn process(service: impl Into<String>) -> Self {
        let folded = (std::process::id().max(1) - 1) % u32::from(u16::MAX) + 1;
        let port = u16::try_from(folded).expect("the remainder by 65,535 and 1 have 16 bits");
        Self { port, ..Self::of(service.into(), Schema::NONE.into()) }
    }

    fn of(service: String, schema: String) -> Self {
        Self {
            service,
            schema,
            host: None,
            port: 0,
            listening: None,
            weight: 1,
            metadata: Vec::new(),
            ttl: None,
            pace: Pace::default(),
            limits: Limits { timeout: None, drain_wait: Duration::from_secs(2) },
            permanent: false,
            enabled: true,
            auto_register: true,
        }
    }

    /// Another service id.
    #[must_use]
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = service.into();
        self
    }

    /// How to speak to it: a URI scheme, or `__`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The address or host name that others reach it by.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// The port that others reach it by; 0 for that of [`Instance::listening`].
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The address of the application's listener, as its `local_addr()` tells it. It gives the port when nothing else
    /// does, and the host when it listens to one address alone.
    #[must_use]
    pub fn listening(mut self, address: SocketAddr) -> Self {
        self.listening = Some(address);
        self
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

    /// The status that it begins with, kept as metadata `instance_status`: [`UP`] is in service, anything else is not
    /// chosen by balancers. [`crate::Registration::set_status`] changes it.
    #[must_use]
    pub fn status(self, status: impl Into<String>) -> Self {
        self.metadata(STATUS, status)
    }

    /// Where it is, kept as metadata `zone`.
    #[must_use]
    pub fn zone(self, zone: impl Into<String>) -> Self {
        self.metadata("zone", zone)
    }

    /// Where it is at large, kept as metadata `region`.
    #[must_use]
    pub fn region(self, region: impl Into<String>) -> Self {
        self.metadata("region", region)
    }

    /// How long it lives without a beat: whole seconds from 3 to 86,400. The server's default, 30 s, without this.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// When the first beat follows a registration: after 1 s without this, and never later than a period.
    #[must_use]
    pub fn first_beat(mut self, delay: Duration) -> Self {
        self.pace.first = Some(delay);
        self
    }

    /// The period between beats, a third of the TTL without this. One that is not below the TTL is refused; one above
    /// half of it is shortened to half, with a warning, so that one lost beat makes nothing flicker.
    #[must_use]
    pub fn beat_every(mut self, period: Duration) -> Self {
        self.pace.every = Some(period);
        self
    }

    /// How long its registration and its deregistration are waited for; as the client has it
    /// ([`crate::Connect::request_timeout`], [`crate::Connect::close_timeout`]) without this.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limits.timeout = Some(limit);
        self
    }

    /// How long [`crate::Registration::drained_on`] goes on serving after the deregistration, for those who chose this
    /// instance just before: 2 s without this, 5 min at most.
    #[must_use]
    pub fn drain_wait(mut self, wait: Duration) -> Self {
        self.limits.drain_wait = wait.min(DRAIN_LIMIT);
        self
    }

    /// Makes it stay until somebody deregisters it: it does not beat, and dropping its handle still deregisters it.
    #[must_use]
    pub fn permanent(self) -> Self {
        self.ephemeral(false)
    }

    /// Whether it goes when its beats stop, as it does without this; see [`Instance::permanent`].
    #[must_use]
    pub fn ephemeral(mut self, ephemeral: bool) -> Self {
        self.permanent = !ephemeral;
        self
    }

    /// False: registering gives a handle that does nothing ([`crate::RegistrationState::Disabled`]), for a program that
    /// runs without its registry. A host and a port need not be known then.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// False: registering gives a handle that waits ([`crate::RegistrationState::Waiting`]) until
    /// [`crate::Registration::begin`].
    #[must_use]
    pub fn auto_register(mut self, auto: bool) -> Self {
        self.auto_register = auto;
        self
    }

    /// The id that it will have.
    ///
    /// # Errors
    /// [`cosky_core::Error::InvalidArgument`] or [`Error::Config`] that names the field, also for a host or port that is
    /// found only when it is registered.
    pub fn id(&self) -> Result<cosky_core::InstanceId> {
        let Some(host) = &self.host else {
            return Err(Error::config("host", "is found only when the instance is registered"));
        };
        self.base(host).map(|registration| registration.id())
    }

    fn base(&self, host: &str) -> Result<Registration> {
        let service = ServiceId::new(&self.service)?;
        let port = match (self.port, self.listening) {
            (0, Some(address)) if address.port() > 0 => address.port(),
            // It is told to nobody.
            (0, _) if !self.enabled => 1,
            (0, _) => {
                return Err(Error::config(
                    "port",
                    "is not known: give the listener's address by Instance::listening, or a port by \
                     Instance::port or COSKY_ADVERTISE_PORT",
                ));
            }
            (port, _) => port,
        };
        Ok(Registration::new(service, &self.schema, host, port.into())?)
    }

    /// Fills in the host. Looks names of servers up, so that it may wait up to 2 s.
    pub(crate) async fn at_home(self, home: &Home) -> Result<Self> {
        if self.host.is_some() || !self.enabled {
            return Ok(self);
        }
        let found = home.looked_up(self.listening).await?;
        Ok(self.host(found.to_string()))
    }

    /// Fills in the host without looking any name up.
    pub(crate) fn at_home_now(self, home: &Home) -> Result<Self> {
        if self.host.is_some() || !self.enabled {
            return Ok(self);
        }
        let found = home.known(self.listening)?;
        Ok(self.host(found.to_string()))
    }

    /// Checks everything, also the period against the TTL when that is given here.
    pub(crate) fn check(self) -> Result<Wanted> {
        let mut registration = self.base(self.host.as_deref().unwrap_or("localhost"))?;
        registration.weight = Weight::new(self.weight.into())?;
        registration.metadata = Metadata::new(self.metadata)?;
        registration.ephemeral = !self.permanent;
        registration.ttl = self.ttl.map(seconds).transpose()?;
        registration.owner = Some(Owner::random());
        let ttl = registration.ttl.map(Ttl::duration);
        period(self.pace.every, ttl.unwrap_or(Duration::MAX))?;
        if self.limits.timeout == Some(Duration::ZERO) {
            return Err(Error::config("timeout", "must be longer than zero"));
        }
        let Self { pace, limits, enabled, auto_register, .. } = self;
        Ok(Wanted { registration, pace, limits, enabled, auto_register })
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
        assert!(error(good.clone().ttl(Duration::from_millis(3500))).starts_with("ttlSeconds"));
        assert!(error(good.timeout(Duration::ZERO)).starts_with("timeout"));
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
