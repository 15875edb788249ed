//! A session that this client keeps for a user: bought with the password, renewed with its refresh token.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use cosky_core::{Error, Result, UserName, wire::TokenPair};

use crate::{
    access::{self, Denied, Why},
    secret,
    transport::Transport,
};

/// How often a password file is looked at while its last password is not to be tried again.
const LOOK: Duration = Duration::from_secs(1);
/// The wait after the first refusal of a password; each further one is three times as long. Servers freeze an account
/// after 10 wrong ones, for everybody.
const REFUSED: Duration = Duration::from_secs(5);
/// The longest wait after a refusal. Servers forget wrong passwords 15 minutes after the last one, so that one client
/// that tries for ever never freezes an account.
const REFUSED_LONGEST: Duration = Duration::from_secs(16 * 60);
/// The longest that a server's wish to stay away is followed. A right login of somebody else, or a new password, ends a
/// freeze long before its time; and what is tried meanwhile does not make it longer.
const AWAY_LONGEST: Duration = Duration::from_secs(5);

/// Who logs in.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: UserName,
    pub(crate) password: Password,
}

/// A password, or the file that holds it.
#[derive(Clone)]
pub(crate) enum Password {
    Text(String),
    File(PathBuf),
}

/// The session of one [`Login`].
#[derive(Default)]
pub(crate) struct Session {
    pair: Option<TokenPair>,
    /// The password that was tried last and bought nothing, and how often it was refused in a row.
    tried: Option<(String, u32)>,
    /// When the password file was looked at for another one.
    looked: Option<Instant>,
}

/// A renewal that failed.
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// How long to wait before the next one, at least, when more is known than that it failed.
    pub(crate) wait: Option<Duration>,
}

impl Login {
    async fn password(&self) -> Result<String> {
        match &self.password {
            Password::Text(text) => Ok(text.clone()),
            Password::File(path) => {
                Ok(secret::read(path, None).await?.map(|(_, text)| text).unwrap_or_default())
            }
        }
    }
}

impl Session {
    /// A new access token: bought with the refresh token, else with the password.
    pub(crate) async fn renew(&mut self, transport: &Transport, login: &Login) -> Result<String, Failed> {
        let user = &login.user;
        if let Some(pair) = self.pair.take() {
            match access::refresh(transport, user, &pair).await {
                Ok(pair) => return Ok(self.pair.insert(pair).access_token.clone()),
                Err(denied) if denied.why == Why::NotDone => {
                    self.pair = Some(pair);
                    return Err(Failed { wait: away(denied.retry_after), error: denied.error });
                }
                // A refresh token buys one pair, so it is not sent again when it may have bought one.
                Err(_) => {}
            }
        }
        let password = login.password().await?;
        let denied = match access::log_in(transport, user, &password).await {
            Ok(pair) => {
                self.tried = None;
                return Ok(self.pair.insert(pair).access_token.clone());
            }
            Err(denied) => denied,
        };
        Err(self.denied(user, password, denied))
    }

    fn denied(&mut self, user: &UserName, password: String, denied: Denied) -> Failed {
        let Denied { why, error, retry_after } = denied;
        let refusals =
            self.tried.take().filter(|(tried, _)| *tried == password).map_or(0, |(_, times)| times);
        let error = match error {
            Error::Unauthorized { reason } => {
                Error::Unauthorized { reason: format!("the login of {user} was refused: {reason}") }
            }
            other => other,
        };
        match why {
            Why::Refused => {
                self.tried = Some((password, refusals.saturating_add(1)));
                Failed { error, wait: Some(at_least(refused(refusals))) }
            }
            Why::Frozen => {
                self.tried = Some((password, refusals));
                Failed { error, wait: away(retry_after.or(Some(AWAY_LONGEST))) }
            }
            Why::NotDone | Why::Unknown => {
                self.tried = (refusals > 0).then_some((password, refusals));
                Failed { error, wait: away(retry_after) }
            }
        }
    }

    /// Whether the password file holds another password than the one that was tried last. Looks once a second.
    pub(crate) async fn has_other_password(&mut self, login: &Login) -> bool {
        let (Password::File(_), Some((tried, _))) = (&login.password, &self.tried) else { return false };
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        login.password().await.is_ok_and(|password| password != *tried)
    }
}

/// The wait after a refusal that followed so many.
fn refused(before: u32) -> Duration {
    REFUSED.saturating_mul(3u32.saturating_pow(before)).min(REFUSED_LONGEST)
}

fn away(wish: Option<Duration>) -> Option<Duration> {
    wish.map(|wish| at_least(wish.min(AWAY_LONGEST)))
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, wait: None }
    }
}

/// `wait` and up to half of it more, at random: never sooner than was asked for, and not in step with others.
fn at_least(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(1.0..=1.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_drawn_apart_and_never_shorter() {
        let wait = Duration::from_secs(10);
        let drawn: Vec<_> = (0..8).map(|_| at_least(wait)).collect();
        assert!(drawn.iter().all(|drawn| (wait..=wait.mul_f64(1.5)).contains(drawn)), "{drawn:?}");
        assert!(drawn.iter().any(|one| *one != drawn[0]), "{drawn:?}");
    }

    #[test]
    fn waits_after_refusals_grow_and_end_beyond_the_servers_memory() {
        let waits: Vec<u64> = (0..6).map(|before| refused(before).as_secs()).collect();
        assert_eq!(waits, [5, 15, 45, 135, 405, 960]);
        assert_eq!(refused(u32::MAX), REFUSED_LONGEST);
    }

    /// One client never tries often enough to freeze the account: no ten tries follow each other within a quarter of an
    /// hour each.
    #[test]
    fn one_wrong_password_freezes_nobody() {
        let memory = Duration::from_secs(cosky_core::account::LOGIN_FREEZE_SECONDS);
        let counted = (0..).take_while(|before| refused(*before) <= memory).count();
        assert!(counted + 1 < cosky_core::account::LOGIN_ATTEMPTS as usize, "{counted}");
    }

    #[test]
    fn a_wish_to_stay_away_is_followed_and_bounded() {
        let drawn = away(Some(Duration::from_secs(1))).unwrap();
        assert!((1.0..=1.5).contains(&drawn.as_secs_f64()), "{drawn:?}");
        assert!(away(Some(Duration::MAX)).unwrap() <= AWAY_LONGEST.mul_f64(1.5));
        assert!(away(None).is_none());
    }

    #[test]
    fn only_a_wrong_password_is_taken_for_one() {
        let user = UserName::new("cosky").unwrap();
        let mut session = Session::default();
        let mut meet = |why, error: Error, retry_after: Option<u64>| {
            let retry_after = retry_after.map(Duration::from_secs);
            session.denied(&user, "word".into(), Denied { why, error, retry_after })
        };
        let no = || Error::Unauthorized { reason: "no".into() };
        let seconds = |failed: Failed| failed.wait.map(|wait| wait.as_secs_f64());
        let near =
            |wait: Option<f64>, least: f64| wait.is_some_and(|wait| (least..=least * 1.5).contains(&wait));
        assert!(near(seconds(meet(Why::Refused, no(), None)), 5.0));
        assert!(near(seconds(meet(Why::Frozen, no(), Some(2))), 2.0));
        assert!(near(seconds(meet(Why::NotDone, Error::unavailable("busy"), Some(1))), 1.0));
        assert!(seconds(meet(Why::Unknown, Error::invalid("request", "odd"), None)).is_none());
        assert!(
            near(seconds(meet(Why::Refused, no(), None)), 15.0),
            "refusals in a row are counted over the rest"
        );
        let failed = session.denied(
            &user,
            "other".into(),
            Denied { why: Why::Refused, error: no(), retry_after: None },
        );
        assert_eq!(failed.error.to_string(), "not authorised: the login of cosky was refused: no");
        assert!(near(seconds(failed), 5.0), "another password begins anew");
    }
}
